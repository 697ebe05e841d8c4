"""Learning a kernel from a file of baskets: the kernel goes to a file, complements and substitutes into a picture.

It is what ``python -m numpyro_ndpp learn`` does, and a picture. Baskets are read as
:func:`numpyro_ndpp.datasets.load_baskets` reads them; without a file, those of a small shop are simulated. A tenth of
them, 2,000 at most, are held out to judge by. The picture has the pairs that attract and repel most, on one scale, and
a check by the held-out baskets: pairs of items are put in groups by how much oftener, or more seldom, than by chance
the kernel has them together, and each group's number is compared with what the held-out baskets have. Shown are pairs
that chance alone would bring together five times in the held-out baskets.

The figure of the README: ``python examples/learn_kernel.py groceries.npz --rank 60 --held-out 2000 --figure
docs/figures/groceries.svg``.
"""

import argparse
import itertools
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numpyro_ndpp import NDPP
from numpyro_ndpp.command_line import add_data_arguments, judge, load
from numpyro_ndpp.datasets import Baskets, simulate_baskets
from numpyro_ndpp.figure_style import ATTRACT, REPEL
from numpyro_ndpp.learning import Fit, fit
from numpyro_ndpp.metrics import hold_out, popularity
from numpyro_ndpp.plots import panels, plot_pairs, strongest_pairs, style

MOST_ITEMS = 200
# The strongest repulsion and attraction have groups of their own, a hundredth of what chance gives.
GROUPS = (0.01, 0.04, 0.15, 0.2, 0.2, 0.2, 0.15, 0.04, 0.01)


def tidy(name: str) -> str:
    """A name for a figure: no stock code in front, no shouting."""
    name = re.sub(r"^\d{5,}\w*\s+(?=\S)", "", name)
    return name.title() if name.isupper() else name


class Lifts(NamedTuple):
    """How often the pairs of a group meet in a basket, over what chance gives; 1 for all pairs together."""

    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray


def held_out_lifts(law: NDPP, shares: np.ndarray, test: Baskets, shares_of_groups: Sequence[float]) -> Lifts:
    """Pairs in groups by the kernel's P(a, b) / (P(a) P(b)): predicted, and observed in held-out baskets.

    What chance gives is the product of the shares of baskets learned from that have the items. Both numbers are
    divided by that of all pairs together, which depends on how much sizes vary: baskets of many sizes have more pairs
    of all kinds. Groups have the given shares of all meetings that chance gives. Intervals (95 %) are those of baskets
    drawn anew.
    """
    items = np.sort(np.argsort(-shares, kind="stable")[:MOST_ITEMS])
    first, second = np.triu_indices(len(items), 1)
    pairs = np.stack([items[first], items[second]], axis=1)
    predicted = np.exp(np.asarray(law.marginal_log_prob(pairs.astype(np.int32)), np.float64))
    chance = shares[pairs[:, 0]] * shares[pairs[:, 1]]
    order = np.argsort(predicted / chance, kind="stable")
    edges = np.cumsum(shares_of_groups)[:-1] * chance.sum()
    group = np.empty(len(pairs), int)
    group[order] = np.searchsorted(edges, np.cumsum(chance[order]) - chance[order] / 2)
    group = np.unique(group, return_inverse=True)[1]  # a small catalogue may leave some empty

    n = len(shares)
    group_of = np.full((n, n), -1)
    group_of[pairs[:, 0], pairs[:, 1]] = group
    meetings = np.zeros((len(test.baskets), group.max() + 1))
    for row, basket in zip(meetings, test.baskets, strict=True):
        found = [group_of[a, b] for a, b in itertools.combinations(sorted(basket), 2)]
        np.add.at(row, [each for each in found if each >= 0], 1)
    expected = np.bincount(group, chance) / chance.sum()

    def relative(numbers: np.ndarray) -> np.ndarray:
        return numbers / numbers.sum(axis=-1, keepdims=True) / expected

    rng = np.random.default_rng(0)
    again = [meetings[rng.integers(len(meetings), size=len(meetings))].sum(axis=0) for _ in range(1000)]
    low, high = np.quantile(relative(np.array(again)), [0.025, 0.975], axis=0)
    return Lifts(relative(np.bincount(group, predicted)), relative(meetings.sum(axis=0)), low, high)


@style()
def draw_figure(path: Path, law: NDPP, names: list[str], num: int, num_baskets: int, lifts: Lifts) -> None:
    """The pairs that attract and repel most, on one scale, and whether groups of pairs do so in held-out baskets."""
    figure, [[pairs, check]] = panels(1, 2, figsize=(8.2, max(2.9, 1.1 + 0.29 * num)), width_ratios=[1.15, 1])
    plot_pairs(law, names, num, num_baskets=num_baskets, ax=pairs)
    error = [lifts.observed - lifts.low, lifts.high - lifts.observed]
    ends = np.array([0.9 * lifts.predicted.min(), 1.1 * lifts.predicted.max()])
    check.plot(ends, ends, color="0.6", label="as predicted")
    check.axhline(1, color="0.3", linestyle=":", label="as all pairs together")
    colours = np.where(lifts.predicted > 1, ATTRACT, REPEL)
    for place, colour in enumerate(colours):
        bar = [[part[place]] for part in error]
        x, y = lifts.predicted[place], lifts.observed[place]
        check.errorbar(x, y, bar, fmt="o", color=colour, capsize=2, linewidth=1)
    check.set(xscale="log", yscale="log", ylabel="observed meetings / chance")
    check.set_xlabel("predicted meetings / chance\n(all pairs together: 1)")
    for axis in (check.xaxis, check.yaxis):
        low, high = axis.get_view_interval()
        ticks = [tick for tick in (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20) if low <= tick <= high]
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    check.set_title("baskets that were held out")
    check.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> Fit:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="baskets: orders and items, a basket per line, or npz")
    add_data_arguments(parser)
    parser.add_argument("--model", choices=["ndpp", "ondpp", "symmetric", "sized"], default="ndpp")
    parser.add_argument("--rank", type=int, help="features of an item, and most items of a basket")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kernel", type=Path, default=Path("kernel.npz"), help="file for the kernel")
    parser.add_argument("--held-out", type=int, help="how many baskets to judge by")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from if the run is interrupted")
    parser.add_argument("--figure", type=Path, default=Path("learn_kernel.svg"), help="file for the picture")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    options = parser.parse_args(arguments)
    start = time.perf_counter()

    if options.data is None:
        shop = simulate_baskets(1000 if options.quick else 4000)
        data, rank = Baskets(shop.baskets, shop.items, {}), options.rank or 18
        strengths = {"alpha": 1.0} if options.model == "symmetric" else {"alpha": 1.0, "beta": 1.0}
    else:
        rank, strengths = options.rank or 200, {}
        data = load(options, options.data, max_size=rank)
    train, test = hold_out(data, options.held_out)
    options.kernel.parent.mkdir(parents=True, exist_ok=True)
    print(f"{len(train.baskets)} baskets of {len(data.items)} items to learn from, {len(test.baskets)} to judge by")
    steps = {"num_steps": 20, "evaluate_every": 10} if options.quick else {"num_steps": options.steps}
    result = fit(train, model=options.model, rank=rank, checkpoint=options.checkpoint, **strengths, **steps)
    result.save(options.kernel)
    print(*judge(result, train, test), sep="\n")

    # Pairs that chance would bring together five times in the held-out baskets, so that they can be checked there.
    law, names, number = result.distribution(), [tidy(name) for name in data.items], 3 if options.data is None else 6
    for a, b, value in itertools.chain(*strongest_pairs(law, number, num_baskets=len(test.baskets))):
        print(f"  {names[a]:>30} + {names[b]:<30} {value:+6.2f}")
    shares = (popularity(train, len(names)) + 0.5) / (len(train.baskets) + 1)
    lifts = held_out_lifts(law, shares, test, GROUPS)
    draw_figure(options.figure, law, names, number, len(test.baskets), lifts)
    print(f"The kernel is in {options.kernel}, the picture in {options.figure} ({time.perf_counter() - start:.0f} s)")
    return result


if __name__ == "__main__":
    main()
