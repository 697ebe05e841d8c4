"""What a free size costs: a gradient step of ``SizedNDPP`` beside one of ``NDPP``, and exact draws of varying size.

    python benchmarks/sizes.py [--data baskets.npz] [--draws N]

1. *Value and gradient* of ``log_prob`` for 200 baskets of up to 100 items, n = 3,941, d = 200, float32, sizes as in UK
   Retail. Counted by hand: XᵀX and back 630 MFlop for both; the sizes have 116 nodes on a GPU, each a complex
   factorisation of 8 d³/3 = 21 MFlop, 64 of them an inverse of 64 MFlop. Profiled on an H200 that is no matter of
   flops: of 3.4 ms the factorisations take 1.3, which wait for one column after the other.
2. With ``--draws``, for an accelerator: exact draws a second in calls of N, 2 N and 4 N, n = 10⁶, d = 100, mean size
   15. Each band of sizes ends in a chunk that is not full: the more draws, the less of it.

Both are the best and the median of some calls after the first; calls that are compared take turns.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from first_result import kernel, scaled
from log_prob import WIDTH, N, baskets_of, sizes_of
from tables import machine

from numpyro_ndpp import NDPP, Exact, SizedNDPP, pad_subsets


def seconds(calls: list[Callable[[int], object]], repeats: int) -> np.ndarray:
    """For each of the calls, which take turns: the first time, the best of the others and their median (calls, 3)."""
    times = np.zeros((repeats + 1, len(calls)))
    for number in range(repeats + 1):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            jax.block_until_ready(call(number))
            times[number, place] = time.perf_counter() - start
    return np.stack([times[0], times[1:].min(axis=0), np.median(times[1:], axis=0)], axis=1)


def gradient_table(data: Path | None) -> list[str]:
    parts = jax.device_put(kernel(N, 200))
    baskets = np.asarray(pad_subsets(baskets_of(sizes_of(data, 200)), N, WIDTH))
    logits = np.zeros(WIDTH + 1, np.float32)
    laws = {
        "`NDPP`": lambda V, B, D: NDPP(V, B, D),
        "`SizedNDPP`": lambda V, B, D: SizedNDPP(V, B, D, size_logits=logits),
    }
    steps = [
        jax.jit(jax.value_and_grad(lambda parts, law=law: law(*parts).log_prob(baskets).sum())) for law in laws.values()
    ]
    times = seconds([lambda _, step=step: step(parts) for step in steps], 30)
    lines = ["| value and gradient | first, s | best, ms | median, ms |", "|---|---|---|---|"]
    for name, (first, best, median) in zip(laws, times, strict=True):
        lines.append(f"| {name} | {first:.1f} | {1e3 * best:.3g} | {1e3 * median:.3g} |")
    _, best, median = times[1] / times[0]
    return [*lines, f"| ratio | | {best:.2f} | {median:.2f} |"]


def draws_table(num_draws: int) -> list[str]:
    law = NDPP(*scaled(10**6, 100, 15), sampler=Exact())
    lines = ["| draws a call | first, s | median, s | draws a second |", "|---|---|---|---|"]
    for number in (num_draws, 2 * num_draws, 4 * num_draws):
        first, _, median = seconds([lambda seed, number=number: law.sample(jax.random.key(seed), (number,))], 4)[0]
        lines.append(f"| {number:,} | {first:.1f} | {median:.3g} | {number / median:,.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="baskets whose sizes are taken")
    parser.add_argument("--draws", type=int, help="measure draws too, so many in the smallest call")
    arguments = parser.parse_args()
    print(f"Machine: {machine()}. float32.", "", *gradient_table(arguments.data), "", sep="\n")
    if arguments.draws:
        print(*draws_table(arguments.draws), sep="\n")


if __name__ == "__main__":
    main()
