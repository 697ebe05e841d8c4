"""This package beside others that do the same: DPPy, TensorFlow Probability, and the papers' way in PyTorch.

    OPENBLAS_NUM_THREADS=1 python benchmarks/comparison.py [--quick] [--output PAGE.md#NAME]

Needs the packages of the extra "benchmark"; TensorFlow Probability (its JAX substrate) is measured where it is there.
All in one run, in float64. A first result is counted from arrays in memory, with what either side compiles or
decomposes at its first call; imports are not in it. After that calls of both sides alternate, and a time is the median.
A ratio is theirs over ours: above one we are faster.

Draws are of symmetric kernels, since the others have no low-rank nonsymmetric ones: V normal, n × 50, scaled to a mean
size of 15 for draws of any size. 100 draws are one call here and a loop of 100 calls for DPPy, which has no batches.
Mean sizes of both sides are compared with the exact one. The log-likelihood is that of benchmarks/log_prob.py: n =
3,941, rank 200, 1,000 baskets of 17 items on average, against a loop over the baskets. Greedy: n = 10⁴, rank 100,
nonsymmetric, 20 items, against the same recursion as a loop in PyTorch; both have to find the same items. PyTorch and
BLAS have one thread: for products this small two wait for each other, for seconds where other work runs beside them.

Counted by hand, float64, d = 50, k = 15 items:

- DPPy's draw: it copies k columns of n × d eigenvectors, and the i-th item takes products with them of 4 n i flop: 2 n
  k² flop and 8 n k² bytes read, 4.5 MFlop and 18 MB at n = 10⁴; the first result 2 n d² = 50 MFlop for eigenvectors.
- Ours by Rejection: per item a descent of log₂(n / 25) levels at d² flop, a leaf of 2 · 25 d² and the query's update of
  3 d² flop: 0.15 MFlop and 0.1 MB, 2.3 MFlop a draw whatever n; preparation 3 n d² = 75 MFlop. So at n = 10⁴ both do
  about the same arithmetic, and beyond it DPPy's grows with n.
- Ours by leaps: about 20 d³ = 2.5 MFlop an item, 38 MFlop a draw.
- By a circle at k = 10, J = 20 nodes: images 8 J d² = 0.4, sums 4 J i d² = 1 MFlop at i = 5: 14 MFlop a draw.
- A gradient step on 1,000 baskets, Σ m = 17,000 and Σ m² = 540,000: 870 MFlop for the normaliser and B (D - Dᵀ), and
  6 d Σ m² = 650 MFlop for minors; see benchmarks/log_prob.py.
- Greedy: 4 n d flop an item for the gains, 2 n d² once: 80 + 200 MFlop; X, 8 MB, is read once an item.
"""

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import torch
from jax import random
from log_prob import baskets_of, check_same_value, our_step, papers_step, sizes_of
from tables import machine, write_table
from updown import duration, kernel

from numpyro_ndpp import KNDPP, NDPP, Exact, Rejection

MEAN_SIZE, SIZE, RANK, NUM_DRAWS = 15, 10, 50, 100
NUM_CALLS = 3
# TensorFlow Probability's sampler takes seconds a draw beyond this.
TFP_ITEMS, TFP_DRAWS = 200, 10


class Row:
    """One line of the table, of two functions without arguments that do the same."""

    def __init__(self, what: str, ours: str, theirs: str) -> None:
        self.names = what, ours, theirs

    def measure(self, ours: Callable[[], object], theirs: Callable[[], object], calls: int = NUM_CALLS) -> str:
        firsts, times = [], []
        for function in (ours, theirs):
            start = time.perf_counter()
            function()
            firsts.append(time.perf_counter() - start)
        for _ in range(calls):
            for function in (ours, theirs):
                start = time.perf_counter()
                function()
                times.append(time.perf_counter() - start)
        steady = [float(np.median(times[side::2])) for side in (0, 1)]
        cells = [*self.names[:2], *map(seconds, (firsts[0], steady[0])), self.names[2]]
        cells += [*map(seconds, (firsts[1], steady[1])), *map(ratio, (firsts[1] / firsts[0], steady[1] / steady[0]))]
        line = f"| {' | '.join(cells)} |"
        print(line, file=sys.stderr, flush=True)
        return line


def seconds(number: float) -> str:
    if number < 1:
        return duration(number)
    return f"{number:.2g} s" if number < 10 else f"{number:.0f} s"


def ratio(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def check_mean_size(sizes: np.ndarray, probs: np.ndarray) -> None:
    """Whether sizes could be those of independent coins, which a symmetric kernel's are, at five standard errors."""
    error = np.sqrt(np.sum(probs * (1 - probs)) / len(sizes))
    assert abs(sizes.mean() - probs.sum()) < 5 * error, (sizes.mean(), probs.sum(), error)


def symmetric_law(n: int) -> tuple[NDPP, np.ndarray]:
    """A symmetric kernel of the mean size, and the eigenvalues of its marginal kernel."""
    V = np.random.default_rng(0).normal(size=(n, RANK))
    law = NDPP(V).with_expected_size(MEAN_SIZE)
    eigenvalues = np.linalg.eigvalsh(np.asarray(law.V).T @ np.asarray(law.V))
    return law, eigenvalues / (1 + eigenvalues)


def our_draws(make: Callable[[], NDPP | KNDPP], number: int = NUM_DRAWS) -> Callable[[], np.ndarray]:
    """Calls that make draws, one after the other with other keys; the first makes the distribution."""
    laws, keys = [], iter(random.split(random.key(0), 100))

    def draw() -> np.ndarray:
        laws.extend([] if laws else [make()])
        return np.asarray(laws[0].sample(next(keys), (number,)))

    return draw


def dppy_draws(V: np.ndarray, k: int | None) -> Callable[[], list]:
    from dppy.finite_dpps import FiniteDPP

    processes, rng = [], np.random.RandomState(0)

    def draw() -> list:
        with contextlib.redirect_stdout(None):  # it tells which matrices it computes
            processes.extend([] if processes else [FiniteDPP("likelihood", L_gram_factor=V.T)])
        process = processes[0]
        process.flush_samples()
        for _ in range(NUM_DRAWS):
            if k is None:
                process.sample_exact(random_state=rng)
            else:
                process.sample_exact_k_dpp(size=k, random_state=rng)
        return process.list_of_samples

    return draw


def tfp_draws(V: np.ndarray) -> Callable[[], np.ndarray]:
    import tensorflow_probability.substrates.jax as tfp

    keys, programs = iter(random.split(random.key(1), 100)), []

    def make() -> Callable:
        values, vectors = np.linalg.eigh(V.T @ V)
        # It takes eigenvectors of rank d only, which is less work than n of them.
        process = tfp.distributions.DeterminantalPointProcess(values, V @ vectors / np.sqrt(values))
        return jax.jit(lambda key: process.sample(TFP_DRAWS, seed=key))

    def draw() -> np.ndarray:
        programs.extend([] if programs else [make()])
        return np.asarray(programs[0](random.key_data(next(keys))))

    return draw


def draw_rows(sizes: tuple[int, ...]) -> list[str]:
    lines = []
    for n in sizes:
        law, probs = symmetric_law(n)
        V = np.asarray(law.V)
        for sampler in (Rejection(), Exact()):
            ours, theirs = our_draws(lambda sampler=sampler, V=V: NDPP(V, sampler=sampler)), dppy_draws(V, None)
            what = f"{NUM_DRAWS} draws, n = {n:,}, mean size {MEAN_SIZE}"
            lines.append(Row(what, f"`{type(sampler).__name__}()`", "DPPy").measure(ours, theirs))
            check_mean_size(np.sum(ours() < n, axis=1), probs)
            check_mean_size(np.array([len(sample) for sample in theirs()]), probs)
        for sampler in (Rejection(), Exact()):
            ours, theirs = our_draws(lambda s=sampler, V=V: KNDPP(V, k=SIZE, sampler=s)), dppy_draws(V, SIZE)
            what = f"{NUM_DRAWS} draws, n = {n:,}, k = {SIZE}"
            lines.append(Row(what, f"`{type(sampler).__name__}()`", "DPPy").measure(ours, theirs))
            assert ours().shape == (NUM_DRAWS, SIZE)
            assert all(len(set(sample)) == SIZE for sample in theirs())
    return lines


def tfp_row() -> list[str]:
    if importlib.util.find_spec("tensorflow_probability") is None:
        return []
    law, probs = symmetric_law(TFP_ITEMS)
    V = np.asarray(law.V)
    ours, theirs = our_draws(lambda: NDPP(V, sampler=Rejection()), TFP_DRAWS), tfp_draws(V)
    what = f"{TFP_DRAWS} draws, n = {TFP_ITEMS}, mean size {MEAN_SIZE}"
    line = Row(what, "`Rejection()`", "TFP on JAX").measure(ours, theirs)
    check_mean_size(np.sum(theirs(), axis=1), probs)
    return [line]


def likelihood_rows() -> list[str]:
    baskets, lines = baskets_of(sizes_of(None, 1000)), []
    for dtype in (np.float32, np.float64):
        ours, theirs = our_step(dtype, baskets), papers_step(dtype, baskets)
        what = f"log-likelihood of 1,000 baskets and its gradient, {dtype.__name__}"
        lines.append(Row(what, "`log_prob`", "PyTorch, a loop").measure(ours, theirs))
        check_same_value(dtype, ours(), theirs())
    return lines


def greedy_row(n: int, d: int, k: int) -> list[str]:
    X, W = (np.asarray(part) for part in kernel(n, d, np.float64))
    features, inner = torch.tensor(X), torch.tensor(W)

    def theirs() -> list[int]:
        gains, conditioned, items = ((features @ inner) * features).sum(1), inner.clone(), []
        for _ in range(k):
            items.append(int(gains.argmax()))
            x, gain = features[items[-1]], gains[items[-1]].clone()
            left, right = conditioned @ x, x @ conditioned
            gains -= (features @ left) * (features @ right) / gain
            gains[items[-1]] = -torch.inf
            conditioned -= torch.outer(left, right) / gain
        return sorted(items)

    law = NDPP.from_factors(X, W)
    what = f"greedy subset of {k}, n = {n:,}, rank {d}"
    line = Row(what, "`greedy`", "PyTorch, a loop").measure(lambda: np.asarray(law.greedy(k)), theirs)
    assert np.asarray(law.greedy(k)).tolist() == theirs()
    return [line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table to this file, or PAGE.md#NAME")
    parser.add_argument("--quick", action="store_true", help="draws at n = 1,000 only")
    parser.add_argument("--remark", default="", help="what else there is to say about the machine")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    lines = [
        f"Machine: {machine()}{arguments.remark}. float64 where nothing else is said.",
        "",
        "| what | ours | first | then | theirs | first | then | ratio, first | ratio, then |",
        "|---|---|---|---|---|---|---|---|---|",
        *draw_rows((10**3,) if arguments.quick else (10**3, 10**4)),
        *tfp_row(),
        *likelihood_rows(),
        *greedy_row(10**4, 100, 20),
    ]
    print("\n".join(lines))
    write_table(arguments.output, lines)


if __name__ == "__main__":
    main()
