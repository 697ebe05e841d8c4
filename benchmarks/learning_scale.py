"""What a fit takes as the number of items grows, peak memory and the time of a step; and the time of the metrics.

    python benchmarks/learning_scale.py [--output docs/tables/learning_scale.md] [--quick]

An NDPP with 100 columns in V and in B, float32, steps of 500 baskets out of 20,000 simulated ones of 1 to 20 items,
whose popularity falls as a power of their rank. Each n has a process of its own, whose largest resident memory is
given: it includes Python, JAX and what compiling takes (0.5 GB or so).

Counted by hand at n = 10⁶, d = 200: the features and Adam's two moments are 3·4 n d = 2.4 GB, their gradient 0.8, the
centre of V's prior 0.4, the best kernel so far 0.8 (in the machine's memory): 4.4 GB, to which comes what a step holds
in between, one or two times 4 n d = 0.8 GB. A step does 4 n d² + O(n d) = 0.17 TFlop, of which Adam's share is small in
flops and large in bytes: some ten passes over 0.8 GB.

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


def measure(n: int) -> dict[str, float]:
    """Peak memory in GB and seconds a step, in this process."""
    result = fit(baskets_of(n), n, num_steps=NUM_STEPS, evaluate_every=2, patience=0, progress_bar=False)
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
    parser.add_argument("--one", type=int, help="measure this number of items in this process, and print it as JSON")
    parser.add_argument("--output", type=Path, help="file for the table, as Markdown")
    parser.add_argument("--quick", action="store_true", help="small numbers of items, to see that it runs")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one)))
        return []
    lines = ["| items | peak memory | a step, evaluation included | for each item |", "|---|---|---|---|"]
    for n in (1000, 2000) if options.quick else (10_000, 100_000, 300_000, 1_000_000):
        command = [sys.executable, __file__, "--one", str(n)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        seconds = found["seconds"]
        lines.append(f"| {n:,} | {found['peak']:.1f} GB | {seconds:.3g} s | {seconds / n * 1e6:.2g} µs |")
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
