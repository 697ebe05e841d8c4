"""What a fit takes as the number of items grows, peak memory and the time of a step; and the time of the metrics.

    python benchmarks/learning_scale.py [--output docs/explanation/learning.md#learning_scale] [--quick]

An NDPP of rank 100 (50 columns in V and in B) and one of rank 200, float32, steps of 500 baskets out of 20,000
simulated ones of 1 to 20 items, whose popularity falls as a power of their rank. Each n has a process of its own, whose
largest resident memory is given: it includes Python, JAX and what compiling takes (0.5 GB or so).

Counted by hand at n = 10⁶, d = 100, where features take 4 n d = 0.4 GB: they and Adam's two moments are 1.2 GB, the
centre of V's prior 0.2, the best kernel so far 0.4 (on a GPU in the machine's memory); in a step V and B side by side
0.4, the gradients of the normaliser and of the minors 0.4 each, and copies that XLA makes 0.4: 3.4 GB, and twice that
for d = 200. A step does 6 n d² = 60 GFlop, of the Gram matrix and its gradient, and some ten passes over the features.

The metrics judge 2,000 such baskets at n = 50,000 with a kernel drawn at random: seconds of the first call, which
compiles, and of one more. Percentile ranks need the scores of all items, 2,000 · 2 n d m = 0.4 TFlop for baskets of 10.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tables import machine, write_table

from numpyro_ndpp import NDPP
from numpyro_ndpp.learning import fit
from numpyro_ndpp.metrics import mean_log_likelihood, mean_percentile_rank, subset_auc

NUM_BASKETS, LARGEST, NUM_STEPS = 20_000, 20, 6


def baskets_of(n: int) -> list[np.ndarray]:
    """Baskets of distinct items; the item of rank r is drawn with probability proportional to 1/r, roughly."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, LARGEST + 1, NUM_BASKETS)
    return [np.unique(np.exp(rng.uniform(0, np.log(n), size)).astype(int) - 1) for size in sizes]


def measure(n: int, columns: int) -> dict[str, float]:
    """Peak memory in GB and seconds a step, in this process, with so many columns in V and in B."""
    settings = {"num_steps": NUM_STEPS, "evaluate_every": 2, "patience": 0, "min_size": 0, "progress_bar": False}
    result = fit(baskets_of(n), n, rank=(columns, columns), **settings)
    # Kibibytes, on Linux. The first evaluation includes compilation.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"peak": peak, "seconds": float(result.history["seconds"][1:].min() / 2)}


def metric_rows(n: int, number: int) -> list[str]:
    """For each metric, the seconds of the first call and of the second."""
    rng = np.random.default_rng(0)
    scale = 1 / np.sqrt(1 + np.arange(n, dtype=np.float32))[:, None]
    V, B = (scale * rng.normal(size=(n, 100)).astype(np.float32) / 10 for _ in range(2))
    law, baskets = NDPP(V, B, rng.normal(size=(100, 100)).astype(np.float32) / 10), baskets_of(n)[:number]
    rows = []
    for name, metric in (("log-likelihood", mean_log_likelihood), ("AUC", subset_auc), ("MPR", mean_percentile_rank)):
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            metric(law, baskets)
            seconds.append(f"{time.perf_counter() - start:.2g} s")
        rows.append(f"| {name} | {' | '.join(seconds)} |")
    return rows


def main(arguments: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=int, nargs=2, help="items and columns to measure in this process; prints JSON")
    parser.add_argument("--output", type=Path, help="where to write the table: FILE.md, or PAGE.md#NAME")
    parser.add_argument("--quick", action="store_true", help="small numbers of items, to see that it runs")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(*options.one)))
        return []
    lines = ["| items | rank | peak memory | a step, evaluation included | for each item |", "|---|---|---|---|---|"]
    cases = [(10_000, 50), (100_000, 50), (300_000, 50), (1_000_000, 50), (1_000_000, 100)]
    for n, columns in [(1000, 10), (2000, 10)] if options.quick else cases:
        command = [sys.executable, __file__, "--one", str(n), str(columns)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        seconds = found["seconds"]
        lines.append(
            f"| {n:,} | {columns} + {columns} | {found['peak']:.1f} GB | {seconds:.3g} s | {seconds / n * 1e6:.2g} µs |"
        )
        print(lines[-1], flush=True)
    n, number = (1000, 50) if options.quick else (50_000, 2000)
    lines += ["", f"Metrics of {number:,} baskets, n = {n:,}:", "", "| | first call | second |", "|---|---|---|"]
    lines += metric_rows(n, number)
    print("\n".join(lines[-3:]), flush=True)
    lines += ["", f"{machine()}, float32."]
    write_table(options.output, lines)
    return lines


if __name__ == "__main__":
    main()
