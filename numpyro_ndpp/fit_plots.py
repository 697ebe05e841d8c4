"""The picture of a fit's check: sizes, items and pairs, observed against expected."""

from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_ndpp.figure_style import COLOURS, panels, short_name, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_fit_check"]


@style()
def plot_fit_check(check: Any) -> "Figure":
    """Observed against expected: the sizes, every item, pairs of items, and the pairs that fit worst.

    Grey bands are two standard errors. Items and pairs are drawn if they are observed or expected once at least; those
    beyond three standard errors are vermilion.

    :param check: from :func:`numpyro_ndpp.fit_checks.check_fit`.
    """
    figure, [[sizes, items], [pairs, worst]] = panels(2, 2, figsize=(7.6, 6.4))
    part = check.each_size
    number = np.arange(len(part.observed))
    error = 2 * np.sqrt(part.expected * (1 - part.expected / check.num_baskets))
    sizes.bar(number, part.observed, 0.8, color=COLOURS[0], alpha=0.45, label="observed")
    sizes.fill_between(number, part.expected - error, part.expected + error, color="0.5", alpha=0.35, linewidth=0)
    sizes.plot(number, part.expected, color="0.2", marker=".", linewidth=1, label="expected")
    # The sizes of all but a few baskets, observed or expected.
    common = (np.cumsum(np.maximum(part.observed, part.expected)[::-1])[::-1] > 0.005 * check.num_baskets).sum()
    sizes.set(xlabel="items in a basket", ylabel="baskets", xlim=(-0.7, common - 0.3))
    sizes.legend()
    for plot, part, what in ((items, check.items, "item"), (pairs, check.pairs, "pair of items")):
        _observed_against_expected(plot, part, check.num_baskets)
        plot.set(xlabel=f"expected baskets with the {what}", ylabel=f"observed baskets with the {what}")
    _worst_pairs(worst, check.worst_pairs(12)[::-1])
    return figure


def _worst_pairs(plot: Any, rows: list[tuple[str, str, int, float, float]]) -> None:
    places = range(len(rows))
    for place, (_, _, observed, expected, z) in enumerate(rows):
        plot.plot([expected, observed], [place, place], color="0.7", linewidth=1.2, zorder=1)
        beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
        plot.annotate(f"z = {z:.1f}", (max(observed, expected), place), **beside)
    plot.scatter([row[2] for row in rows], places, color=COLOURS[0], s=18, zorder=2, label="observed")
    white = {"facecolor": "white", "edgecolor": "0.2"}
    plot.scatter([row[3] for row in rows], places, s=18, zorder=2, label="expected", **white)
    plot.set_yticks(
        places, [f"{short_name(first, 18)} + {short_name(second, 18)}" for first, second, *_ in rows], fontsize=7
    )
    plot.margins(x=0.18)
    plot.set(xlabel="baskets with both")
    plot.set_title("pairs that fit worst")
    if rows:
        plot.set_ylim(-1.6, len(rows) - 0.4)  # room for the legend
        plot.legend(loc="lower right", ncols=2)


def _observed_against_expected(plot: Any, part: Any, num_baskets: int) -> None:
    shown = np.maximum(part.observed, part.expected) >= 1
    x, y = np.maximum(part.expected[shown], 0.5), np.maximum(part.observed[shown], 0.5)
    top = 1.5 * max(np.max(x, initial=1.0), np.max(y, initial=1.0))
    line = np.geomspace(0.5, top, 200)
    error = 2 * np.sqrt(line * np.maximum(1 - line / num_baskets, 0.0))
    plot.fill_between(line, np.maximum(line - error, 0.4), line + error, color="0.87", zorder=0)
    plot.plot(line, line, color="0.6", linewidth=0.8, zorder=1)
    far = np.abs(part.z[shown]) > 3
    for which, colour in ((~far, COLOURS[0]), (far, COLOURS[1])):
        plot.scatter(x[which], y[which], s=8, color=colour, alpha=0.6, linewidths=0, zorder=2)
    plot.set(xscale="log", yscale="log", xlim=(0.4, top), ylim=(0.4, top))
