"""All samplers side by side on the same kernels, one draw at a time; and symmetric kernels against DPPy.

    python benchmarks/samplers.py [--type float32] [--quick] [--output docs/guides/which_sampler.md#samplers]
                                  [--figure docs/figures/samplers.svg] [--draw]

The figure is drawn from the table; with --draw, from the one that is there, and nothing is measured.

Kernels as in section 6.1 of Han et al. (2022): V and B normal with variance √(2/d), D standard normal; for draws of any
size rescaled to a mean size of 15. A time is the best of three draws, after compilation, or the mean of eight where the
size or the number of attempts is random; of the walk at k = 50 it is that of one draw. What could not finish is given
as its expected time, marked by an asterisk: rejection as the time of one proposal times their expected number, which
has a closed form; the linear-time sampler scaled from n = 10⁴. Memory is what a prepared sampler holds beyond X.

Counted by hand for the contour sampler, float64, n = 10⁴, d = 100, k = 10, J = 20 nodes: an item's images under all R_j
read 2 · 2 J d² numbers = 6.4 MB, the weighted sum of their symmetric parts 1.6 MB; the product of the factors is
4 J i d² flop, 4 MFlop at i = 5; a descent is 0.3 MFlop, its leaf 0.8. At 13 GB/s and 22 GFlop/s: 0.9 ms an item.
Profiled: 1.7 ms, of which the images take 0.6, the product 0.4, the weighted sum 0.1, the descent and its leaf 0.2, and
small operations the rest. At k = 50 the products take half of 3.9 ms an item. On a GPU the images of a whole batch are
one product.

The published exact samplers on learned kernels (Han et al. 2022, Table 2, rank 200; seconds on another machine): UK
Retail, n = 3,941, k = 10: rejection 406, MCMC 25; k = 50: rejection 5·10¹² expected, MCMC 334.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax import random
from matplotlib.figure import Figure
from tables import machine, read_place, read_table, write_table
from updown import duration, kernel

from numpyro_ndpp import NDPP, Cholesky, Contour, Exact, Rejection, UpDown
from numpyro_ndpp.figure_style import COLOURS, panels, style
from numpyro_ndpp.kernel import Kernel
from numpyro_ndpp.target import Target

MEAN_SIZE = 15
# Beyond these a draw is not waited for.
MOST_PROPOSALS = 300
MOST_ITEMS_IN_A_SWEEP = 10_000
NAMES = {UpDown: "up-down", Exact: "exact", Cholesky: "linear time", Rejection: "rejection"}
EXACT = {"up-down": "no", "exact": "yes", "linear time": "yes", "rejection": "yes"}


def draw_time(sampler, state, repeats: int, summary) -> float:
    """Seconds for one draw: of several draws the least, or the mean where the cost of a draw is random."""
    times, sample = [], jax.jit(sampler.sample)
    jax.block_until_ready(sample(state, random.split(random.key(1), 1)))  # compiles
    for key in random.split(random.key(0), repeats):
        start = time.perf_counter()
        jax.block_until_ready(sample(state, key[None]))
        times.append(time.perf_counter() - start)
    return float(summary(times))


def prepared(sampler, X, W, low: int, high: int):
    prepare = jax.jit(lambda X, W: sampler.prepare(Target.of(Kernel.of(X, W), low, high))).lower(X, W).compile()
    start = time.perf_counter()
    state = jax.block_until_ready(prepare(X, W))
    return state, time.perf_counter() - start


def run_case(n: int, d: int, k: int | None, dtype: type) -> list[dict]:
    X, W = kernel(n, d, dtype)
    if k is None:
        law = NDPP.from_factors(X, W, validate_args=False).with_expected_size(MEAN_SIZE)
        X, W = law.X, law.W
    low, high = (0, min(n, d)) if k is None else (k, k)
    rows = []
    for sampler in (UpDown(), Exact(), Cholesky(), Rejection()):
        name = NAMES[type(sampler)]
        small_X, scale = X, 1.0
        if name == "linear time" and n > MOST_ITEMS_IN_A_SWEEP:
            small_X, scale = X[:MOST_ITEMS_IN_A_SWEEP] * (n / MOST_ITEMS_IN_A_SWEEP) ** 0.5, n / MOST_ITEMS_IN_A_SWEEP
        state, preparation = prepared(sampler, small_X, W, low, high)
        proposals = float(np.exp(state.log_expected)) if name == "rejection" else None
        guessed = scale > 1 or (proposals is not None and proposals > MOST_PROPOSALS)
        if name == "rejection":
            sampler = Rejection(1) if guessed else Rejection(100 * MOST_PROPOSALS)
        random_cost = k is None or name == "linear time" or (name == "rejection" and not guessed)
        repeats = 1 if name == "up-down" and (k or 0) > 20 else 8 if random_cost else 3
        seconds = draw_time(sampler, state, repeats, np.mean if random_cost else np.min) * scale
        if proposals is not None and guessed:
            seconds *= proposals
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        if name in ("up-down", "linear time"):  # these hold X itself
            held -= small_X.nbytes
        row = {
            "n": n,
            "d": d,
            "k": k,
            "name": name,
            "seconds": seconds,
            "guessed": guessed,
            "preparation": None if scale > 1 else preparation,
            "bytes": held,
            "proposals": proposals,
        }
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
        del state
    return rows


def seconds_in_words(seconds: float) -> str:
    if seconds < 1:
        return duration(seconds)
    return f"{seconds:.2g} s" if seconds < 1000 else f"{seconds:.1e} s"


def table(rows: list[dict]) -> list[str]:
    lines = [
        "| n | d | k | sampler | exact | a draw | preparation | memory beyond X | expected proposals |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        size = f"any, mean {MEAN_SIZE}" if row["k"] is None else row["k"]
        mark = "\\*" if row["guessed"] else ""
        preparation = "" if row["preparation"] is None else f"{row['preparation']:.2g} s"
        proposals = "" if row["proposals"] is None else f"{row['proposals']:.3g}"
        lines.append(
            f"| {row['n']:,} | {row['d']} | {size} | {row['name']} | {EXACT[row['name']]} "
            f"| {seconds_in_words(row['seconds'])}{mark} | {preparation} | {row['bytes'] / 1e6:.3g} MB | {proposals} |"
        )
    return lines


SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


@style()
def figure(text: str) -> Figure:
    """Time against n and against k, from the table."""
    figure, [plots] = panels(1, 2, figsize=(7.2, 3.1), sharey=True)
    cases = (
        ("n", "items n (d = 100, k = 10)", "k", "10"),
        ("k", "items in a subset k (d = 100, n = 10,000)", "n", "10,000"),
    )
    rows = [row for row in read_table(text) if row["d"] == "100" and row["k"].isdecimal()]
    for plot, (against, label, other, fixed) in zip(plots, cases, strict=True):
        for number, name in enumerate(dict.fromkeys(row["sampler"] for row in rows)):
            shown = [row for row in rows if row["sampler"] == name and row[other] == fixed]
            places = [int(row[against].replace(",", "")) for row in shown]
            parts = [row["a draw"].removesuffix("\\*").split() for row in shown]
            seconds = [float(value) * SECONDS[unit] for value, unit in parts]
            colour, marker = COLOURS[number], "osD^"[number]
            plot.loglog(places, seconds, color=colour, label=name)
            for place, value, row in zip(places, seconds, shown, strict=True):
                face = "white" if row["a draw"].endswith("*") else colour
                plot.plot(place, value, marker, color=colour, markerfacecolor=face)
        plot.set(xlabel=label)
    ticks = sorted({int(row["k"]) for row in rows if row["n"] == "10,000"})
    plots[1].set_xticks(ticks, [str(tick) for tick in ticks])
    plots[1].minorticks_off()
    plots[0].set_ylabel("seconds a draw")
    handles, labels = plots[0].get_legend_handles_labels()
    for handle, marker in zip(handles, "osD^", strict=False):
        handle.set_marker(marker)
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def symmetric_table(dtype: type, quick: bool) -> list[str]:
    """Draws of a k-DPP, k = 10: the rejection sampler, which never rejects here, against DPPy."""
    if importlib.util.find_spec("dppy") is None:
        return ["DPPy is not installed: no comparison on symmetric kernels."]
    from dppy.finite_dpps import FiniteDPP

    lines = ["| n | d | k | rejection sampler | DPPy | ratio |", "|---|---|---|---|---|---|"]
    d, k = 100, 10
    for n in (10**4,) if quick else (10**4, 10**5):
        X, _ = kernel(n, d, dtype)
        state, _ = prepared(Rejection(), X, np.eye(d, dtype=dtype), k, k)
        theirs = FiniteDPP("likelihood", L_gram_factor=np.asarray(X, np.float64).T)
        rng = np.random.RandomState(0)
        theirs.sample_exact_k_dpp(size=k, random_state=rng)
        ours, times = draw_time(Rejection(), state, 20, np.min), []
        for _ in range(20):
            start = time.perf_counter()
            theirs.sample_exact_k_dpp(size=k, random_state=rng)
            times.append(time.perf_counter() - start)
        lines.append(f"| {n:,} | {d} | {k} | {duration(ours)} | {duration(min(times))} | {min(times) / ours:.0f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def batch_table(dtype: type) -> list[str]:
    """Exact draws in batches, as one makes them on an accelerator."""
    lines = [
        "| n | d | k | draws a batch | draws a second | preparation | largest mass error | least ρ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n, d, k, number in [
        (10**6, 100, 10, 4096),
        (10**6, 100, 10, 32_768),
        (10**6, 200, 50, 256),
        (10**6, 200, 50, 1024),
    ]:
        X, W = jax.block_until_ready(kernel(n, d, dtype))
        state, preparation = prepared(Contour(), X, W, k, k)
        keys, sample = random.split(random.key(1), number), jax.jit(Contour().sample)
        times = []
        for _ in range(4):  # the first compiles
            start = time.perf_counter()
            subsets = jax.block_until_ready(sample(state, keys))
            times.append(time.perf_counter() - start)
        assert (np.diff(subsets, axis=1) > 0).all()
        _, info = jax.jit(Contour().sample_with_info)(state, keys[:256])
        lines.append(
            f"| {n:,} | {d} | {k} | {number:,} | {number / min(times[1:]):,.0f} | {preparation:.2g} s "
            f"| {np.abs(info.mass_error).max():.1e} | {info.rho.min():.1e} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=["float32", "float64"], default="float64")
    parser.add_argument("--output", type=Path, help="where to write the tables: FILE.md, or PAGE.md#NAME")
    parser.add_argument("--figure", type=Path, help="file to draw time against n and against k to")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the table in --output")
    parser.add_argument("--quick", action="store_true", help="n up to 10⁴ only")
    arguments = parser.parse_args()
    if arguments.draw:
        if arguments.output is None or arguments.figure is None:
            parser.error("--draw needs --output, the file of the table, and --figure")
        figure(read_place(arguments.output)).savefig(arguments.figure, metadata={"Date": None})
        return
    jax.config.update("jax_enable_x64", arguments.type == "float64")
    dtype = getattr(np, arguments.type)
    if jax.default_backend() != "cpu":
        lines = [f"Machine: {machine()}. {arguments.type}.", "", *batch_table(dtype), ""]
        print("\n".join(lines))
        write_table(arguments.output, lines)
        return
    cases = [(10**3, 100, 10), (10**4, 100, 10), (10**4, 100, 5), (10**4, 100, 20), (10**4, 100, 50)]
    cases += [(10**4, 20, 10), (10**4, 200, 10), (10**4, 200, 50), (10**3, 20, None), (10**4, 100, None)]
    if not arguments.quick:
        cases += [(10**5, 100, 10), (10**6, 100, 10)]
    rows: list[dict] = []
    for number, (n, d, k) in enumerate(cases, 1):
        print(f"[{number}/{len(cases)}] n = {n:,}, d = {d}, k = {k or 'any'} ...", file=sys.stderr, flush=True)
        rows += run_case(n, d, k, dtype)
    rows.sort(key=lambda row: (row["k"] is None, row["d"], row["k"] or 0, row["n"]))
    lines = [f"Machine: {machine()}. {arguments.type}.", "", *table(rows), "", "\\* expected, not waited for.", ""]
    lines += ["Symmetric kernels:", "", *symmetric_table(dtype, arguments.quick), ""]
    print("\n".join(lines))
    write_table(arguments.output, lines)
    if arguments.figure:
        arguments.figure.parent.mkdir(exist_ok=True)
        figure("\n".join(lines)).savefig(arguments.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()
