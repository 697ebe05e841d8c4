"""Pictures of chains: traces and ranks, PSRF against steps, frequencies against exact ones.

Those of kernels (:mod:`numpyro_ndpp.kernel_plots`) and of fits (:mod:`numpyro_ndpp.fit_plots`) are here too. Each
function returns a matplotlib figure and shows nothing: ``figure.savefig("chains.pdf")`` works without a screen.
:func:`panels` and :func:`style` give figures of your own the same style.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_ndpp.diagnostics import MixingTime, running_psrf
from numpyro_ndpp.figure_style import COLOURS, panels, style
from numpyro_ndpp.fit_plots import plot_fit_check
from numpyro_ndpp.kernel_plots import pair_correlations, pair_log_odds, plot_kernel, plot_pairs, strongest_pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "pair_correlations",
    "pair_log_odds",
    "panels",
    "plot_chains",
    "plot_fit_check",
    "plot_inclusion",
    "plot_kernel",
    "plot_pairs",
    "plot_psrf",
    "strongest_pairs",
    "style",
]

# More chains than this have one colour: the style has no more that all readers can tell apart.
_MOST_COLOURS = 7
_RANK_BINS = 20


def _variable(data: Any, name: str) -> np.ndarray:
    try:
        return data["posterior"][name].values
    except (KeyError, TypeError):
        raise ValueError(f"data must come from run_chains or chains_to_arviz; it has no {name!r}") from None


@style()
def plot_chains(data: Any) -> "Figure":
    """Traces and ranks of log det, and of the size if it varies.

    Left: every chain against its draws; chains that have mixed lie over one another. Right: the ranks of each chain's
    draws among all draws, as bars; chains that have mixed have flat ones. If there are many chains, a band shows the
    middle half of their bars, and a line the most extreme chain.

    :param data: from :func:`run_chains` or :func:`chains_to_arviz`.
    """
    quantities = {"log det $L_S$": _variable(data, "log_det"), "size": _variable(data, "size")}
    quantities = {name: x for name, x in quantities.items() if name != "size" or (x != x[0, 0]).any()}
    figure, axes = panels(len(quantities), 2, figsize=(7.2, 0.3 + 2.2 * len(quantities)), width_ratios=[3, 2])
    for (name, x), (trace, ranks) in zip(quantities.items(), axes, strict=True):
        num_chains, num_draws = x.shape
        few = num_chains <= _MOST_COLOURS
        for chain, values in enumerate(x):
            colour = COLOURS[chain] if few else COLOURS[0]
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
                ranks.step(centres, heights, where="mid", color=COLOURS[chain], linewidth=1.2, label=f"chain {chain}")
        else:
            low, high = np.quantile(share, [0.25, 0.75], axis=0)
            ranks.fill_between(centres, low, high, step="mid", alpha=0.35, label="middle half of the chains")
            extreme = int(np.argmax(np.abs(share - 1).sum(axis=1)))
            ranks.step(
                centres, share[extreme], where="mid", color=COLOURS[1], label=f"chain {extreme}, the most extreme"
            )
        ranks.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        ranks.set(xlabel=f"rank of {name}, 0 to 1", ylabel="share of draws (1 = even)", xlim=(0, 1))
        ranks.set_ylim(0, max(2.0, 1.25 * share.max()))
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), columnspacing=1.2, handlelength=1.4)
    return figure


@style()
def plot_psrf(result: MixingTime | Any) -> "Figure":
    """The classical PSRF of log det against the number of steps, with the threshold.

    :param result: from :func:`mixing_time`, or data from :func:`run_chains`, for which the threshold is 1.1.
    """
    if isinstance(result, MixingTime):
        psrf, threshold, first, thin = result.psrf, result.threshold, result.num_steps, 1
    else:
        psrf, threshold, first = running_psrf(_variable(result, "log_det")), 1.1, None
        thin = int(result["posterior"].attrs.get("thin", 1))
    figure, [[plot]] = panels(1, 1, figsize=(4.6, 2.9))
    steps = thin * np.arange(1, len(psrf) + 1)
    shown = np.isfinite(psrf)
    plot.plot(steps[shown], psrf[shown], linewidth=1.4)
    plot.axhline(threshold, color=COLOURS[1], linewidth=0.9, linestyle="--")
    plot.annotate(f"{threshold:g}", (steps[-1], threshold), color=COLOURS[1], ha="right", va="bottom")
    if first is not None:
        plot.axvline(first, color="0.5", linewidth=0.9)
        plot.annotate(f" {first} steps", (first, 0.95), xycoords=("data", "axes fraction"), va="top")
    plot.set(xlabel="steps", ylabel="PSRF of log det $L_S$", xscale="log")
    top = np.max(psrf[shown], initial=threshold)
    plot.set_ylim(0.98, max(threshold + 0.1, min(3.0, 1.05 * top)))
    return figure


@style()
def plot_inclusion(data: Any) -> "Figure":
    """How often items are drawn against their exact probabilities, with twice the standard error of independent draws.

    Points are means over all chains; bars show the spread of the chains.

    :param data: from :func:`run_chains` or :func:`chains_to_arviz`.
    """
    included = _variable(data, "included")
    exact = np.asarray(data["constant_data"]["inclusion_probs"].values)
    figure, [[plot]] = panels(1, 1, figsize=(3.8, 3.6))
    of_chains = included.mean(axis=1)
    mean = of_chains.mean(axis=0)
    low, high = np.quantile(of_chains, [0.1, 0.9], axis=0)
    top = 1.06 * max(exact.max(), high.max(), 1e-3)
    line = np.linspace(0, min(top, 1), 200)
    error = 2 * np.sqrt(line * (1 - line) / included[..., 0].size)
    plot.fill_between(line, line - error, line + error, color="0.85", zorder=0, label="two standard errors")
    plot.plot(line, line, color="0.6", linewidth=0.8, zorder=1)
    if len(of_chains) > 1:
        plot.vlines(
            exact, low, high, color=COLOURS[0], alpha=0.35, linewidth=0.8, zorder=2, label="eight chains in ten"
        )
    plot.scatter(exact, mean, s=12, zorder=3, label="all draws")
    plot.set(xlabel="exact P(item is in S)", ylabel="share of draws with the item", xlim=(0, top), ylim=(0, top))
    plot.legend(loc="upper left")
    return figure
