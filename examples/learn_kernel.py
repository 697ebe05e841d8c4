"""Learning a kernel from a file of baskets: the kernel goes to a file, complements and substitutes into a picture.

It is what ``python -m numpyro_ndpp learn`` does, and a picture. Baskets are read as
:func:`numpyro_ndpp.datasets.load_baskets` reads them; without a file, those of a small shop are simulated. A tenth of
them, 2,000 at most, are held out to judge by. The picture has the pairs of frequent items that attract and repel most:
the logarithm of P(ab) P(∅) / (P(a) P(b)), and the log-likelihood during the run.
"""

import argparse
import re
import time
from pathlib import Path

import matplotlib
import numpy as np

from numpyro_ndpp import NDPP
from numpyro_ndpp.command_line import add_data_arguments, judge, load
from numpyro_ndpp.datasets import Baskets, simulate_baskets
from numpyro_ndpp.learning import Fit, fit
from numpyro_ndpp.metrics import hold_out, popularity

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams["text.parse_math"] = False  # a name may have a dollar sign

LONGEST_NAME = 26


def attraction(law: NDPP, items: np.ndarray) -> np.ndarray:
    """log [P(ab) P(∅) / (P(a) P(b))] for all pairs of chosen items: log(1 - L_ab L_ba / (L_aa L_bb))."""
    X, W = (np.asarray(part, np.float64) for part in (law.X, law.W))
    L = X[items] @ W @ X[items].T
    own = np.diag(L)
    ratio = L * L.T / np.outer(own, own)
    np.fill_diagonal(ratio, 0.0)
    return np.log(np.maximum(1 - ratio, 1e-6))


Pair = tuple[float, int, int]


def strongest(law: NDPP, counts: np.ndarray, number: int) -> tuple[list[Pair], list[Pair]]:
    """The pairs (value, a, b) of the hundred most frequent items that attract most, and those that repel most."""
    items = np.argsort(-counts, kind="stable")[:100]
    matrix = attraction(law, items)
    first, second = np.triu_indices(len(items), 1)
    values = matrix[first, second]
    order = np.argsort(-values, kind="stable")
    pairs = [(float(values[i]), int(items[first[i]]), int(items[second[i]])) for i in order]
    return [pair for pair in pairs[:number] if pair[0] > 0], [pair for pair in pairs[::-1][:number] if pair[0] < 0]


def short(name: str) -> str:
    """A name that fits beside a bar: no stock code in front, no shouting, cut where it is too long."""
    name = re.sub(r"^\d{5,}\w*\s+(?=\S)", "", name)
    name = name.title() if name.isupper() else name
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1].rstrip() + "…"


def draw_figure(path: Path, pairs: tuple[list[Pair], list[Pair]], names: list[str], result: Fit) -> None:
    """Pairs that attract and pairs that repel, each on a scale of its own, and the learning curve."""
    heights = [max(len(shown), 2) for shown in pairs]
    figure = plt.figure(figsize=(12, 1.6 + 0.26 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[2, 1], height_ratios=heights)
    axes = [figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[:, 1])]
    kinds = (("complements", "C2"), ("substitutes", "C3"))
    for axis, (title, colour), shown in zip(axes, kinds, pairs, strict=False):
        axis.barh(range(len(shown)), [value for value, _, _ in shown], color=colour)
        axis.set_yticks(range(len(shown)), [f"{short(names[a])} + {short(names[b])}" for _, a, b in shown], fontsize=8)
        axis.invert_yaxis()
        axis.axvline(0, color="0.3", linewidth=0.8)
        axis.set_title(title if shown else f"{title}: none found", fontsize=10)
    axes[1].set_xlabel("attraction (log-odds of being together)")
    history, curve = result.history, axes[2]
    curve.plot(history["step"], history["validation"], marker=".")
    score = history["validation"] - history["price"]
    best = int(np.argmax(score)) if np.isfinite(score).any() else -1
    curve.plot(history["step"][best], history["validation"][best], "o", color="C1", label="kept")
    curve.set_title("log-likelihood, held-out baskets", fontsize=10)
    curve.set_xlabel("steps")
    curve.legend(frameon=False, loc="lower right")
    for axis in axes:
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> Fit:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="baskets: orders and items, a basket per line, or npz")
    add_data_arguments(parser)
    parser.add_argument("--model", choices=["ndpp", "ondpp", "symmetric"], default="ndpp")
    parser.add_argument("--rank", type=int, help="features of an item, and most items of a basket")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kernel", type=Path, default=Path("kernel.npz"), help="file for the kernel")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from if the run is interrupted")
    parser.add_argument("--figure", type=Path, default=Path("learn_kernel.png"), help="file for the picture")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    options = parser.parse_args(arguments)
    start = time.perf_counter()

    if options.data is None:
        shop = simulate_baskets(300 if options.quick else 4000)
        data, rank = Baskets(shop.baskets, shop.items, {}), options.rank or 18
        strengths = {"alpha": 1.0} if options.model == "symmetric" else {"alpha": 1.0, "beta": 1.0}
    else:
        rank, strengths = options.rank or 200, {}
        data = load(options, options.data, max_size=rank)
    train, test = hold_out(data)
    options.kernel.parent.mkdir(parents=True, exist_ok=True)
    print(f"{len(train.baskets)} baskets of {len(data.items)} items to learn from, {len(test.baskets)} to judge by")
    steps = {"num_steps": 20, "evaluate_every": 10} if options.quick else {"num_steps": options.steps}
    result = fit(train, model=options.model, rank=rank, checkpoint=options.checkpoint, **strengths, **steps)
    result.save(options.kernel)
    print(*judge(result, train, test), sep="\n")

    counts = popularity(train, len(data.items))
    pairs = strongest(result.distribution(), counts, 3 if options.data is None else 10)
    for value, a, b in [*pairs[0], *pairs[1]]:
        print(f"  {short(data.items[a]):>{LONGEST_NAME}} + {short(data.items[b]):<{LONGEST_NAME}} {value:+6.2f}")
    draw_figure(options.figure, pairs, data.items, result)
    print(f"The kernel is in {options.kernel}, the picture in {options.figure} ({time.perf_counter() - start:.0f} s)")
    return result


if __name__ == "__main__":
    main()
