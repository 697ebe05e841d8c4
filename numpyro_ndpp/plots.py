"""Pictures of chains and kernels: traces and ranks, PSRF against steps, frequencies against exact ones, the kernel.

Each function returns a matplotlib figure and shows nothing: ``figure.savefig("chains.pdf")`` works without a screen.
:func:`panels` and :func:`style` give figures of your own the same style.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.checks import check_distribution
from numpyro_ndpp.diagnostics import MixingTime, running_psrf
from numpyro_ndpp.figure_style import attraction_map, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["panels", "plot_chains", "plot_fit_check", "plot_inclusion", "plot_kernel", "plot_psrf", "style"]

# More chains than this have one colour: nobody can tell twenty colours apart.
_MOST_COLOURS = 10
_RANK_BINS = 20


def _variable(data: Any, name: str) -> np.ndarray:
    try:
        return data["posterior"][name].values
    except (KeyError, TypeError):
        raise ValueError(f"data must come from run_chains or chains_to_arviz; it has no {name!r}") from None


def plot_chains(data: Any) -> "Figure":
    """Traces and ranks of log det, and of the size if it varies.

    Left: every chain against its draws; chains that have mixed lie over one another. Right: the ranks of each chain's
    draws among all draws, as bars; chains that have mixed have flat ones. If there are many chains, a band shows the
    middle half of their bars, and a line the most extreme chain.

    :param data: from :func:`run_chains` or :func:`chains_to_arviz`.
    """
    quantities = {"log det $L_S$": _variable(data, "log_det"), "size": _variable(data, "size")}
    quantities = {name: x for name, x in quantities.items() if name != "size" or (x != x[0, 0]).any()}
    figure, axes = panels(len(quantities), 2, figsize=(10, 2.8 * len(quantities)), width_ratios=[3, 2])
    for (name, x), (trace, ranks) in zip(quantities.items(), axes, strict=True):
        num_chains, num_draws = x.shape
        few = num_chains <= _MOST_COLOURS
        for chain, values in enumerate(x):
            colour = f"C{chain}" if few else "C0"
            trace.plot(values, color=colour, linewidth=0.7, alpha=0.9 if few else max(0.1, 5 / num_chains))
        trace.set(xlabel="draw", ylabel=name, xlim=(0, max(num_draws - 1, 1)))

        # Sizes have many ties. They are broken at random: average ranks would leave bins empty.
        noise = np.random.default_rng(0).permutation(x.size)
        order = np.lexsort((noise, x.reshape(-1)))
        rank = np.empty(x.size, int)
        rank[order] = np.arange(x.size)
        bins = min(_RANK_BINS, num_draws)
        edges = np.linspace(0, x.size, bins + 1)
        share = np.stack([np.histogram(row, edges)[0] for row in rank.reshape(x.shape)]) * bins / num_draws
        centres = (edges[1:] + edges[:-1]) / 2 / x.size
        if few:
            for chain, heights in enumerate(share):
                ranks.step(centres, heights, where="mid", color=f"C{chain}", linewidth=1.2, label=f"chain {chain}")
        else:
            low, high = np.quantile(share, [0.25, 0.75], axis=0)
            ranks.fill_between(centres, low, high, step="mid", alpha=0.35, label="middle half of the chains")
            extreme = int(np.argmax(np.abs(share - 1).sum(axis=1)))
            ranks.step(centres, share[extreme], where="mid", color="C3", label=f"chain {extreme}, the most extreme")
        ranks.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        ranks.set(xlabel=f"rank of {name}", ylabel="share of draws (1 = even)", xlim=(0, 1))
        ranks.set_ylim(0, max(2.0, 1.25 * share.max()))
    axes[0, 1].legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    return figure


def plot_psrf(result: MixingTime | Any) -> "Figure":
    """The classical PSRF of log det against the number of steps, with the threshold.

    :param result: from :func:`mixing_time`, or data from :func:`run_chains`, for which the threshold is 1.1.
    """
    if isinstance(result, MixingTime):
        psrf, threshold, first, thin = result.psrf, result.threshold, result.num_steps, 1
    else:
        psrf, threshold, first = running_psrf(_variable(result, "log_det")), 1.1, None
        thin = int(result["posterior"].attrs.get("thin", 1))
    figure, [[plot]] = panels(1, 1, figsize=(6, 3.6))
    steps = thin * np.arange(1, len(psrf) + 1)
    shown = np.isfinite(psrf)
    plot.plot(steps[shown], psrf[shown], linewidth=1.4)
    plot.axhline(threshold, color="C3", linewidth=0.9, linestyle="--")
    plot.annotate(f"{threshold:g}", (steps[-1], threshold), color="C3", ha="right", va="bottom", fontsize=9)
    if first is not None:
        plot.axvline(first, color="0.5", linewidth=0.9)
        plot.annotate(f" {first} steps", (first, 0.95), xycoords=("data", "axes fraction"), va="top", fontsize=9)
    plot.set(xlabel="steps", ylabel="PSRF of log det $L_S$", xscale="log")
    top = np.max(psrf[shown], initial=threshold)
    plot.set_ylim(0.98, max(threshold + 0.1, min(3.0, 1.05 * top)))
    return figure


def plot_inclusion(data: Any) -> "Figure":
    """How often items are drawn against their exact probabilities, with twice the standard error of independent draws.

    Points are means over all chains; bars show the spread of the chains.

    :param data: from :func:`run_chains` or :func:`chains_to_arviz`.
    """
    included = _variable(data, "included")
    exact = np.asarray(data["constant_data"]["inclusion_probs"].values)
    figure, [[plot]] = panels(1, 1, figsize=(4.6, 4.4))
    of_chains = included.mean(axis=1)
    mean = of_chains.mean(axis=0)
    low, high = np.quantile(of_chains, [0.1, 0.9], axis=0)
    top = 1.06 * max(exact.max(), high.max(), 1e-3)
    line = np.linspace(0, min(top, 1), 200)
    error = 2 * np.sqrt(line * (1 - line) / included[..., 0].size)
    plot.fill_between(line, line - error, line + error, color="0.85", zorder=0, label="two standard errors")
    plot.plot(line, line, color="0.6", linewidth=0.8, zorder=1)
    if len(of_chains) > 1:
        plot.vlines(exact, low, high, color="C0", alpha=0.35, linewidth=0.8, zorder=2, label="eight chains in ten")
    plot.scatter(exact, mean, s=12, zorder=3, label="all draws")
    plot.set(xlabel="exact P(item is in S)", ylabel="share of draws with the item", xlim=(0, top), ylim=(0, top))
    plot.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def pair_correlations(dist: SubsetDistribution, items: ArrayLike) -> np.ndarray:
    """The correlation (m, m) of the indicators of chosen items (m,): above zero they attract, below zero they repel.

    It is zero for an item that is certain or impossible, and on the diagonal.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.array([[1.0, 0.0], [0.9, 0.1]])
    >>> pair_correlations(NDPP(V, jnp.zeros((2, 1)), jnp.zeros((1, 1))), [0, 1]).round(2).tolist()
    [[0.0, -0.46], [-0.46, 0.0]]
    """
    items = np.asarray(items)
    p = np.asarray(dist.inclusion_probs(), np.float64)[items]
    first, second = np.triu_indices(len(items), 1)
    pairs = np.sort(np.stack([items[first], items[second]], axis=1), axis=1).astype(np.int32)
    both = np.exp(np.asarray(dist.marginal_log_prob(jnp.asarray(pairs)), np.float64))
    scale = np.sqrt(np.maximum(p * (1 - p), 0.0))  # p may be above 1 by a rounding
    product = scale[first] * scale[second]
    varies = product > 1e-9
    matrix = np.zeros((len(items), len(items)))
    values = np.where(varies, (both - p[first] * p[second]) / np.where(varies, product, 1.0), 0.0)
    matrix[first, second] = matrix[second, first] = values
    return matrix


def plot_kernel(
    dist: SubsetDistribution, items: ArrayLike | None = None, names: Sequence[str] | None = None
) -> "Figure":
    """A map of which items attract (blue) and repel (vermilion): the correlation of their indicators.

    Items that attract and repel alike stand together.

    :param dist: an NDPP or KNDPP without batch dimensions.
    :param items: the items to show; by default the 20 likeliest.
    :param names: a name for every item of the catalogue; by default its number.
    :raises ValueError: for items out of range or repeated, fewer than two items, or names that are not n.
    """
    check_distribution(dist, SubsetDistribution)
    n = dist.num_items
    if names is not None and len(names) != n:
        raise ValueError(f"names must have one name for each of {n} items, got {len(names)}")
    if items is None:
        items = np.argsort(-np.asarray(dist.inclusion_probs()), kind="stable")[:20]
    chosen = np.asarray(items)
    if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer) or len(chosen) < 2:
        raise ValueError(f"items must be two or more item numbers, got {chosen.tolist()}")
    if chosen.min() < 0 or chosen.max() >= n or len(np.unique(chosen)) < len(chosen):
        raise ValueError(f"items must be 0 to {n - 1}, each once, got {chosen.tolist()}")
    matrix = pair_correlations(dist, chosen)
    if len(chosen) > 2:
        order = _in_order_of_likeness(matrix)
        chosen, matrix = chosen[order], matrix[np.ix_(order, order)]
    labels = [names[item] if names is not None else str(item) for item in chosen]
    places = range(len(chosen))

    size = 2.2 + 0.26 * len(chosen)
    figure, [[plot]] = panels(1, 1, figsize=(size + 1.2, size))
    limit = max(np.abs(matrix).max(), 1e-3)
    shown = np.ma.masked_array(matrix, np.eye(len(chosen)) > 0)
    image = plot.imshow(shown, cmap=attraction_map(), vmin=-limit, vmax=limit)
    plot.set_facecolor("0.93")
    plot.set_xticks(places, labels, rotation=90, fontsize=8)
    plot.set_yticks(places, labels, fontsize=8)
    plot.tick_params(length=0)
    plot.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=plot, shrink=0.8)
    bar.set_label("repel  ←  correlation of being in S  →  attract")
    bar.outline.set_visible(False)
    return figure


def _in_order_of_likeness(matrix: np.ndarray) -> np.ndarray:
    """An order in which items with like rows are neighbours, by hierarchical clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    # Items that attract are near; items that repel are far.
    distance = matrix.max() - matrix
    np.fill_diagonal(distance, 0.0)
    return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))


def plot_fit_check(check: Any) -> "Figure":
    """Observed against expected: the sizes, every item, pairs of items, and the pairs that fit worst.

    Grey bands are two standard errors. Items and pairs are drawn if they are observed or expected once at least; those
    beyond three standard errors are red.

    :param check: from :func:`numpyro_ndpp.fit_checks.check_fit`.
    """
    figure, [[sizes, items], [pairs, worst]] = panels(2, 2, figsize=(10, 8))
    part = check.each_size
    number = np.arange(len(part.observed))
    error = 2 * np.sqrt(part.expected * (1 - part.expected / check.num_baskets))
    sizes.bar(number, part.observed, 0.8, color="C0", alpha=0.45, label="observed")
    sizes.fill_between(number, part.expected - error, part.expected + error, color="0.5", alpha=0.35, linewidth=0)
    sizes.plot(number, part.expected, color="0.2", marker=".", linewidth=1, label="expected")
    # The sizes of all but a few baskets, observed or expected.
    common = (np.cumsum(np.maximum(part.observed, part.expected)[::-1])[::-1] > 0.005 * check.num_baskets).sum()
    sizes.set(xlabel="size", ylabel="baskets", xlim=(-0.7, common - 0.3))
    sizes.legend(frameon=False, fontsize=8)
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
    plot.scatter([row[2] for row in rows], places, color="C0", s=18, zorder=2, label="observed")
    white = {"facecolor": "white", "edgecolor": "0.2"}
    plot.scatter([row[3] for row in rows], places, s=18, zorder=2, label="expected", **white)
    plot.set_yticks(places, [f"{_short(first)} + {_short(second)}" for first, second, *_ in rows], fontsize=7)
    plot.margins(x=0.18)
    plot.set(xlabel="baskets with both")
    plot.set_title("pairs that fit worst", fontsize=9)
    if rows:
        plot.set_ylim(-1.6, len(rows) - 0.4)  # room for the legend
        plot.legend(frameon=False, fontsize=8, loc="lower right", ncols=2)


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _observed_against_expected(plot: Any, part: Any, num_baskets: int) -> None:
    shown = np.maximum(part.observed, part.expected) >= 1
    x, y = np.maximum(part.expected[shown], 0.5), np.maximum(part.observed[shown], 0.5)
    top = 1.5 * max(np.max(x, initial=1.0), np.max(y, initial=1.0))
    line = np.geomspace(0.5, top, 200)
    error = 2 * np.sqrt(line * np.maximum(1 - line / num_baskets, 0.0))
    plot.fill_between(line, np.maximum(line - error, 0.4), line + error, color="0.87", zorder=0)
    plot.plot(line, line, color="0.6", linewidth=0.8, zorder=1)
    far = np.abs(part.z[shown]) > 3
    for which, colour in ((~far, "C0"), (far, "C3")):
        plot.scatter(x[which], y[which], s=8, color=colour, alpha=0.6, linewidths=0, zorder=2)
    plot.set(xscale="log", yscale="log", xlim=(0.4, top), ylim=(0.4, top))
