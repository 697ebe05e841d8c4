"""The figures of Han, Gartrell, Dohmatob and Karbasi (ICML 2022), made again, with our samplers as further lines.

    python benchmarks/paper_figures.py [--quick] [--only 1 2 3] [--output docs/explanation/paper_figures.md]
                                       [--folder docs/figures]

Kernels as in section 6.1 of the paper: V and B normal with variance √(2/d), D standard normal.

Figure 1: the distance max_S |p(S) - q(S)| (which the paper calls total variation) between the law and the frequencies
of up to 10⁶ draws; n = 10, rank 8, k = 5 and any size. Lines: the published exact sampler (rejection) and the
published walk (k² steps, pairs by rejection), the walk with the direct up operator, the contour sampler. The grey line
is what independent draws have on average; p is that of a chi-square test of all draws.

Figure 2: seconds for the preparation and for one draw, against n = 10² to 10⁶ at rank 100, k = 10, and against
k = 10 to 100 at n = 10⁶. One step of the walk is timed over 25 and a draw given as k² of them.

Figure 3: the empirical mixing time, the first step from which the PSRF of log det L_S over 100 chains stays below 1.1,
for n = 100 to 3,200 and k = 2 to 30. The paper says d = 20, but a kernel of rank 20 has no subset of 30 items with a
positive determinant: here V and B have 20 columns each. The walk does not depend on the up operator, which only says
how a pair is drawn, so one set of lines stands for the published walk and ours. Independent exact draws are the dashed
line.

Counted by hand for Figure 1: 10⁶ draws of 25 steps, each some 3 kFlop at rank 8 and k = 5: the hand-over of small
operations, not the arithmetic, is what takes time. Measured: see the table's last line.
"""

import argparse
import itertools
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax import random
from samplers import draw_time, prepared
from scipy import stats
from tables import machine, write_table
from updown import kernel, step_time

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Contour, Exact, Rejection, UpDown, mixing_time
from numpyro_ndpp.diagnostics import running_psrf

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PAPER = {
    1: "The distance of MCMC samples decays as fast as that of the exact sampler, so k² steps suffice.",
    2: "Preparation grows linearly in n; sampling time is almost the same, about 10 seconds, at n = 10² and 10⁶; it "
    "grows superlinearly in k.",
    3: "The empirical mixing time grows linearly in k, for all n.",
}
THRESHOLD = 1.1


# --- Figure 1 --------------------------------------------------------------------------------------------------------


def exact_law(X: np.ndarray, W: np.ndarray, k: int | None) -> np.ndarray:
    """The probability of every subset, by its code Σ 2^item."""
    n = len(X)
    L = X @ W @ X.T
    probs = np.zeros(2**n)
    for size in range(n + 1) if k is None else [k]:
        for subset in itertools.combinations(range(n), size):
            probs[sum(1 << item for item in subset)] = max(np.linalg.det(L[np.ix_(subset, subset)]), 0.0) if size else 1
    return probs / probs.sum()


def distances(law, probs: np.ndarray, numbers: list[int], chunk: int) -> tuple[list[float], float]:
    """max_S |p(S) - q(S)| after so many draws, and the chi-square p-value of all of them, rare subsets in one class."""
    n, counts, drawn, found = law.num_items, np.zeros(len(probs)), 0, []
    powers = jnp.append(2 ** jnp.arange(n), 0)
    for number in numbers:
        while drawn < number:
            todo = min(chunk, number - drawn)
            subsets = law.sample(random.fold_in(random.key(1), drawn), (chunk,))[:todo]
            counts += np.bincount(np.asarray(jnp.sum(powers[subsets], axis=-1)), minlength=len(probs))
            drawn += todo
        found.append(float(np.abs(counts / drawn - probs).max()))
    often = drawn * probs >= 5
    observed, expected = (np.append(x[often], x[~often].sum()) for x in (counts, drawn * probs))
    used = expected > 0
    p_value = stats.chisquare(observed[used], expected[used] * observed[used].sum() / expected[used].sum()).pvalue
    return found, float(p_value)


def independent_distances(probs: np.ndarray, numbers: list[int], repeats: int = 20) -> np.ndarray:
    """What so many independent draws have on average, by NumPy's multinomial draws."""
    rng = np.random.default_rng(0)
    return np.array([np.mean(np.abs(rng.multinomial(m, probs, repeats) / m - probs).max(axis=1)) for m in numbers])


def figure_1(quick: bool, axes) -> list[str]:
    n, d, k = 10, 8, 5
    top = 3 if quick else 6
    numbers = [round(10 ** (2 + step / 2)) for step in range(2 * (top - 2) + 1)]
    X, W = kernel(n, d, np.float64)
    samplers = {
        "exact, rejection (paper)": Rejection(),
        "MCMC, rejection (paper)": UpDown(up="rejection"),
        "MCMC, direct": UpDown(),
        "exact": Exact(),
    }
    lines = [
        f"| distribution | sampler | {' | '.join(f'{m:,}' for m in numbers)} | p |",
        "|---" * (3 + len(numbers)) + "|",
    ]
    for axis, size, name in ((axes[0], k, f"{k}-NDPP"), (axes[1], None, "NDPP")):
        probs = exact_law(np.asarray(X), np.asarray(W), size)
        for label, sampler in samplers.items():
            if quick and size is None and label != "exact":
                continue  # each takes ten seconds to compile
            if size is None:
                law = NDPP.from_factors(X, W, sampler=Cholesky() if label.startswith("exact, rej") else sampler)
                label = label.replace("exact, rejection (paper)", "exact, linear time (paper)")
            else:
                law = KNDPP.from_factors(X, W, size, sampler=sampler)
            chunk = 10_000 if jax.default_backend() == "cpu" else 100_000
            found, p_value = distances(law, probs, numbers, min(chunk, numbers[-1]))
            axis.loglog(numbers, found, marker="o", markersize=3.5, label=label)
            lines.append(f"| {name} | {label} | {' | '.join(f'{value:.2e}' for value in found)} | {p_value:.2f} |")
        expected = independent_distances(probs, numbers)
        axis.loglog(numbers, expected, color="0.6", linewidth=4, alpha=0.5, zorder=0, label="independent draws, mean")
        lines.append(f"| {name} | independent draws, mean | {' | '.join(f'{value:.2e}' for value in expected)} | |")
        axis.set(title=f"{name}, n = {n}, d = {d}", xlabel="draws", ylabel="max$_S$ |p(S) − q(S)|")
    axes[1].legend(fontsize=7, frameon=False)
    return lines


# --- Figure 2 --------------------------------------------------------------------------------------------------------


def times(n: int, d: int, k: int) -> dict[str, tuple[float, float, bool]]:
    """Seconds of preparation and of a draw, by sampler, and whether the draw's are reckoned from those of a step."""
    X, W = kernel(n, d, np.float64)
    found = {}
    for label, up in (("MCMC, rejection (paper)", "rejection"), ("MCMC, direct", "direct")):
        walk, preparation = prepared(UpDown(up=up), X, W, k, k)
        seconds, _, _ = step_time(walk, 1, 25)
        found[label] = (preparation, k**2 * seconds, True)
    if k < d:
        state, preparation = prepared(Contour(), X, W, k, k)
        found["exact, contour"] = (preparation, draw_time(Contour(), state, 3, min), False)
    return found


def figure_2(quick: bool, axes) -> list[str]:
    d, k = (20, 4) if quick else (100, 10)
    many = [1000] if quick else [100, 1000, 10_000, 100_000, 1_000_000]
    largest = many[-1]
    sizes = [4] if quick else [10, 20, 40, 60, 80, 100]
    lines = ["| n | k | sampler | preparation (s) | one draw (s) |", "|---|---|---|---|---|"]
    cases = {(n, k): times(n, d, k) for n in many}
    cases |= {(largest, size): times(largest, d, size) for size in sizes if (largest, size) not in cases}
    for (n, size), found in cases.items():
        for label, (preparation, seconds, _) in found.items():
            lines.append(f"| {n:,} | {size} | {label} | {preparation:.3g} | {seconds:.3g} |")
    labels = list(cases[many[0], k])
    for number, label in enumerate(labels):
        of_n = [cases[n, k][label] for n in many]
        axes[0].loglog(many, [seconds for _, seconds, _ in of_n], marker="o", color=f"C{number}", label=label)
        axes[0].loglog(
            many, [preparation for preparation, _, _ in of_n], "--", marker=".", color=f"C{number}", alpha=0.6
        )
        shown = [size for size in sizes if label in cases[largest, size]]
        of_k = [cases[largest, size][label] for size in shown]
        axes[1].loglog(shown, [seconds for _, seconds, _ in of_k], marker="o", color=f"C{number}", label=label)
    axes[0].plot([], [], "--", color="0.4", label="preparation")
    axes[0].set(title=f"d = {d}, k = {k}", xlabel="n", ylabel="seconds")
    axes[1].set(title=f"d = {d}, n = {largest:,}", xlabel="k", ylabel="seconds for one draw")
    axes[0].legend(fontsize=7, frameon=False)
    return lines


# --- Figure 3 --------------------------------------------------------------------------------------------------------


def exact_mixing_time(law, num_chains: int, length: int = 16) -> int:
    """The same of chains whose draws are independent."""
    draws = law.sample(random.key(2), (num_chains, length))
    psrf = running_psrf(np.asarray(law.log_prob(draws)))
    return int(np.flatnonzero(~(psrf < THRESHOLD))[-1]) + 2


def figure_3(quick: bool, axis) -> list[str]:
    columns, num_chains = (10, 50) if quick else (20, 100)
    many = [100] if quick else [100, 200, 400, 800, 1600, 3200]
    sizes = [6] if quick else [2, 6, 12, 18, 24, 30]
    lines = [f"| n | {' | '.join(f'k = {size}' for size in sizes)} |", "|---" * (1 + len(sizes)) + "|"]
    for n in many:
        X, W = kernel(n, 2 * columns, np.float64)
        found = []
        for size in sizes:
            law = KNDPP.from_factors(X, W, size)
            found.append(mixing_time(law, random.key(1), num_chains, THRESHOLD, progress_bar=False).num_steps)
        axis.plot(sizes, found, marker="o", markersize=3.5, label=f"MCMC, n = {n:,}")
        lines.append(f"| {n:,} | {' | '.join(map(str, found))} |")
    if not quick:
        law = [KNDPP.from_factors(X, W, size, sampler=Contour()) for size in (sizes[0], sizes[-1])]
        exact = [exact_mixing_time(each, num_chains) for each in law]
        axis.plot([sizes[0], sizes[-1]], exact, "k--", label="exact, contour")
        lines.append(f"| exact, n = {n:,} | {exact[0]} | {' | '.join([''] * (len(sizes) - 2))} | {exact[1]} |")
    axis.set(xlabel="k", ylabel=f"steps until PSRF < {THRESHOLD}", title=f"{columns} columns in V and in B")
    axis.legend(fontsize=7, frameon=False)
    return lines


# --- All -------------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs")
    parser.add_argument("--only", type=int, nargs="+", choices=[1, 2, 3], default=[1, 2, 3], help="which figures")
    parser.add_argument("--output", type=Path, help="page for the tables, with places for figure_1 and so on")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder for the figures")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    options.folder.mkdir(parents=True, exist_ok=True)
    for number in options.only:
        start = time.perf_counter()
        width = 1 if number == 3 else 2
        figure, axes = plt.subplots(1, width, figsize=(4.7 * width + 0.6, 3.9), layout="constrained")
        lines = {1: figure_1, 2: figure_2, 3: figure_3}[number](options.quick, axes)
        lines += ["", f"Paper: {PAPER[number]}", "", f"{machine()}; made in {time.perf_counter() - start:.0f} s."]
        for axis in np.atleast_1d(axes):
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
        path = options.folder / f"paper_figure_{number}.png"
        figure.savefig(path, dpi=150)
        plt.close(figure)
        print("\n".join(lines), f"\n\ndrawn in {path}\n", flush=True)
        if options.output:
            write_table(Path(f"{options.output}#figure_{number}"), lines)


if __name__ == "__main__":
    main()
