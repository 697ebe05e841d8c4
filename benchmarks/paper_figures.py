"""The figures of Han, Gartrell, Dohmatob and Karbasi (ICML 2022), made again, with our samplers as further lines.

    python benchmarks/paper_figures.py [--quick] [--only 1 2 3] [--output docs/explanation/paper_figures.md]
                                       [--folder docs/figures] [--draw]

Each figure is drawn from its table; with --draw, from the tables on the page, and nothing is measured.

Kernels as in section 6.1 of the paper: V and B normal with variance √(2/d), D standard normal.

Figure 1: the distance max_S |p(S) - q(S)| (which the paper calls total variation) between the law and the frequencies
of up to 10⁶ draws; n = 10, rank 8, k = 5 and any size. Lines: the published exact sampler (rejection) and the
published walk (k² steps, pairs by rejection), the walk with the direct up operator, the contour sampler. The grey line
is what independent draws have on average; p is that of a chi-square test of all draws.

Figure 2: seconds for the preparation and for one draw, against n = 10² to 10⁶ at rank 100, k = 10, and against
k = 10 to 100 at n = 10⁶. One step of the walk is timed over 25 and a draw given as k² of them.

Figure 3: the empirical mixing time, the first step from which the PSRF of log det L_S over 100 chains stays below 1.1,
for k = 2 to 30 at both ends of the paper's n, 100 and 3,200: the median and the range of five repeats, each with a
kernel and chains of its own. The paper says d = 20, but a kernel of rank 20 has no subset of 30 items with a positive
determinant: here V and B have 20 columns each. The walk does not depend on the up operator, which only says how a pair
is drawn, so one set of lines stands for the published walk and ours. Independent exact draws are the dashed line.

Counted by hand for Figure 1: 10⁶ draws of 25 steps, each some 3 kFlop at rank 8 and k = 5: the hand-over of small
operations, not the arithmetic, is what takes time. Measured: see the table's last line.
"""

import argparse
import itertools
import re
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from matplotlib.figure import Figure
from samplers import draw_time, prepared
from scipy import stats
from tables import machine, read_place, read_table, write_table
from updown import kernel, step_time

from numpyro_ndpp import KNDPP, NDPP, Cholesky, Contour, Exact, Rejection, UpDown, mixing_time
from numpyro_ndpp.diagnostics import running_psrf
from numpyro_ndpp.figure_style import COLOURS, panels, style

PAPER = {
    1: "The distance of MCMC samples decays as fast as that of the exact sampler, so k² steps suffice.",
    2: "Preparation grows linearly in n; sampling time is almost the same, about 10 seconds, at n = 10² and 10⁶; it "
    "grows superlinearly in k.",
    3: "The empirical mixing time grows linearly in k, for all n.",
}
LAWS = {"5-NDPP": "subsets of five items", "NDPP": "subsets of any size"}
THRESHOLD = 1.1
MARKERS = "osD^v"
INDEPENDENT, EXACT_DRAWS, ONE_RUN = "independent draws, mean", "independent draws", "one run"


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


def measure_1(quick: bool) -> list[str]:
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
    for size, name in ((k, f"{k}-NDPP"), (None, "NDPP")):
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
            lines.append(f"| {name} | {label} | {' | '.join(f'{value:.2e}' for value in found)} | {p_value:.2f} |")
        expected = independent_distances(probs, numbers)
        lines.append(f"| {name} | {INDEPENDENT} | {' | '.join(f'{value:.2e}' for value in expected)} | |")
    return lines


def draw_1(rows: list[dict[str, str]]) -> Figure:
    columns = list(rows[0])[2:-1]
    numbers = [int(column.replace(",", "")) for column in columns]
    figure, [plots] = panels(1, 2, figsize=(7.2, 3.2), sharey=True)
    for plot, law, what in zip(
        plots, ("5-NDPP", "NDPP"), ("subsets of five items", "subsets of any size"), strict=True
    ):
        shown = [row for row in rows if row["distribution"] == law]
        for number, row in enumerate(shown):
            values = [float(row[column]) for column in columns]
            if row["sampler"] == INDEPENDENT:
                plot.loglog(numbers, values, color="0.8", linewidth=5, zorder=0, label=row["sampler"])
            else:
                plot.loglog(numbers, values, marker=MARKERS[number], linewidth=0.9, label=row["sampler"])
        plot.set(title=what, xlabel="draws")
        plot.legend(loc="lower left", fontsize=7)
    plots[0].set_ylabel("largest error of a probability,\nmax$_S$ |p(S) − q(S)|")
    return figure


# --- Figure 2 --------------------------------------------------------------------------------------------------------


def times(n: int, d: int, k: int) -> dict[str, tuple[float, float]]:
    """Seconds of preparation and of a draw, by sampler; those of a walk's draw are reckoned from those of a step."""
    X, W = kernel(n, d, np.float64)
    found = {}
    for label, up in (("MCMC, rejection (paper)", "rejection"), ("MCMC, direct", "direct")):
        walk, preparation = prepared(UpDown(up=up), X, W, k, k)
        seconds, _, _ = step_time(walk, 1, 25)
        found[label] = (preparation, k**2 * seconds)
    if k < d:
        state, preparation = prepared(Contour(), X, W, k, k)
        found["exact, contour"] = (preparation, draw_time(Contour(), state, 3, min))
    return found


def measure_2(quick: bool) -> list[str]:
    d, k = (20, 4) if quick else (100, 10)
    many = [1000] if quick else [100, 1000, 10_000, 100_000, 1_000_000]
    sizes = [k] if quick else [k, 20, 40, 60, 80, 100]
    lines = ["| n | k | sampler | preparation (s) | one draw (s) |", "|---|---|---|---|---|"]
    for n, size in [*((n, k) for n in many), *((many[-1], size) for size in sizes[1:])]:
        for label, (preparation, seconds) in times(n, d, size).items():
            lines.append(f"| {n:,} | {size} | {label} | {preparation:.3g} | {seconds:.3g} |")
    return lines


def draw_2(rows: list[dict[str, str]]) -> Figure:
    figure, [plots] = panels(1, 3, figsize=(9.0, 2.9))
    smallest, largest = min(int(row["k"]) for row in rows), max((row["n"] for row in rows), key=len)
    shown = (
        ("n", "one draw (s)", lambda row: int(row["k"]) == smallest),
        ("n", "preparation (s)", lambda row: int(row["k"]) == smallest),
        ("k", "one draw (s)", lambda row: row["n"] == largest),
    )
    for plot, (against, column, chosen) in zip(plots, shown, strict=True):
        for number, label in enumerate(dict.fromkeys(row["sampler"] for row in rows)):
            of_label = [row for row in rows if row["sampler"] == label and chosen(row)]
            places = [int(row[against].replace(",", "")) for row in of_label]
            plot.loglog(places, [float(row[column]) for row in of_label], marker=MARKERS[number], label=label)
        name = "items n" if against == "n" else "items in a subset k"
        fixed = f"k = {smallest}" if against == "n" else f"n = {largest}"
        plot.set(xlabel=f"{name} ({fixed})", ylabel=column.replace("(s)", "(seconds)"))
    ticks = sorted({int(row["k"]) for row in rows})
    plots[2].set_xticks(ticks, [str(tick) for tick in ticks])
    plots[2].minorticks_off()
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


# --- Figure 3 --------------------------------------------------------------------------------------------------------


def exact_mixing_time(law, num_chains: int, length: int = 16) -> int:
    """The same of chains whose draws are independent."""
    draws = law.sample(random.key(2), (num_chains, length))
    psrf = running_psrf(np.asarray(law.log_prob(draws)))
    return int(np.flatnonzero(~(psrf < THRESHOLD))[-1]) + 2


def measure_3(quick: bool) -> list[str]:
    columns, num_chains, repeats = (10, 50, 2) if quick else (20, 100, 5)
    many = [100] if quick else [100, 3200]
    sizes = [2, 6] if quick else [2, 6, 12, 20, 30]
    lines = [f"| n | {' | '.join(f'k = {size}' for size in sizes)} |", "|---" * (1 + len(sizes)) + "|"]
    for n in many:
        kernels = [kernel(n, 2 * columns, np.float64, seed) for seed in range(repeats)]
        cells = []
        for size in sizes:
            laws = [KNDPP.from_factors(X, W, size) for X, W in kernels]
            found = [
                mixing_time(law, random.key(100 + seed), num_chains, THRESHOLD, progress_bar=False).num_steps
                for seed, law in enumerate(laws)
            ]
            cells.append(median_and_range(found))
            print(f"n = {n}, k = {size}: {found}", file=sys.stderr, flush=True)
        lines.append(f"| {n:,} | {' | '.join(cells)} |")
    cells = [""] * len(sizes)
    for place in (0, -1):
        laws = [KNDPP.from_factors(X, W, sizes[place], sampler=Exact()) for X, W in kernels]
        cells[place] = median_and_range([exact_mixing_time(law, num_chains) for law in laws])
    lines.append(f"| {many[-1]:,}, {EXACT_DRAWS} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"Median and range of {repeats} repeats, each with a kernel and {num_chains} chains of its own.",
    ]


def median_and_range(values: list[int]) -> str:
    return f"{np.median(values):.0f} ({min(values)} to {max(values)})"


def draw_3(rows: list[dict[str, str]]) -> Figure:
    figure, [[plot]] = panels(1, 1, figsize=(7.0, 3.1))
    most = 0
    for number, row in enumerate(rows):
        cells = {int(name.removeprefix("k = ")): cell for name, cell in row.items() if name != "n" and cell}
        found = [[int(x) for x in re.findall(r"\d+", cell)] for cell in cells.values()]
        median, low, high = np.array([values if len(values) == 3 else 3 * values for values in found]).T
        sizes, most = list(cells), max(most, *high)
        if row["n"].endswith(ONE_RUN):  # of an earlier measurement, without repeats
            first = not any(each["n"].endswith(ONE_RUN) for each in rows[:number])
            label = f"walk, {ONE_RUN} each, n = 100 to 3,200" if first else None
            plot.plot(sizes, median, "x", color="0.55", zorder=0, label=label)
            continue
        exact = row["n"].endswith(EXACT_DRAWS)
        line = {"color": "0.2", "linestyle": "--"} if exact else {"color": COLOURS[number], "marker": MARKERS[number]}
        plot.plot(sizes, median, label=EXACT_DRAWS if exact else f"walk, n = {row['n']}", **line)
        plot.fill_between(sizes, low, high, color=line["color"], alpha=0.18, linewidth=0)
    every = np.linspace(2, max(sizes), 200)
    plot.plot(every, every**2, ":", color="0.5", label="k², what a draw is given")
    plot.set(xlabel="items in a subset k", ylabel=f"steps until the PSRF stays below {THRESHOLD}")
    plot.set_ylim(0, 1.1 * most)
    figure.legend(loc="outside right upper")
    return figure


# --- All -------------------------------------------------------------------------------------------------------------

MEASURE, DRAW = {1: measure_1, 2: measure_2, 3: measure_3}, {1: draw_1, 2: draw_2, 3: draw_3}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs")
    parser.add_argument("--only", type=int, nargs="+", choices=[1, 2, 3], default=[1, 2, 3], help="which figures")
    parser.add_argument("--output", type=Path, help="page for the tables, with places for figure_1 and so on")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the tables in --output")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder for the figures")
    options = parser.parse_args(arguments)
    if options.draw and options.output is None:
        parser.error("--draw needs --output, the page that has the tables")
    jax.config.update("jax_enable_x64", True)
    options.folder.mkdir(parents=True, exist_ok=True)
    for number in options.only:
        place = None if options.output is None else Path(f"{options.output}#figure_{number}")
        if options.draw:
            text = read_place(place)
        else:
            start = time.perf_counter()
            lines = MEASURE[number](options.quick)
            lines += ["", f"Paper: {PAPER[number]}", "", f"{machine()}; made in {time.perf_counter() - start:.0f} s."]
            write_table(place, lines)
            text = "\n".join(lines)
        with style():
            figure = DRAW[number](read_table(text))
        path = options.folder / f"paper_figure_{number}.svg"
        figure.savefig(path, metadata={"Date": None})
        print(f"{text}\n\ndrawn in {path}\n", flush=True)


if __name__ == "__main__":
    main()
