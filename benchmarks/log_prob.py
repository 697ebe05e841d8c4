"""Speed and memory of ``log_prob`` and its gradient at the size of UK Retail: n = 3,941, rank 200, a random kernel.

    python benchmarks/log_prob.py [--data baskets.npz] [--output docs/explanation/benchmarks.md#log_prob]

Two questions:

1. *A gradient step on 200 baskets* (mean size 16 or 17, at most 100), against the way of the papers' code: PyTorch, a
   loop over the baskets with an unpadded ``slogdet`` each. Both in this run, on the same kernel and baskets.
2. *20,000 subsets padded to 100, with gradient*: the memory beyond the parameters, and the time.

Counted by hand, for 200 baskets of Σ m = 3,700, Σ m² = 117,000 (somewhat more than in the table): XᵀX and its gradient
2·2 n d² = 630 MFlop; B K for all items and its gradient 3·2 n d₂² = 240 MFlop; the minors and their gradients 3·2·d Σ
m² = 140 MFlop, 360 at the widths at which groups are computed. Padding all to 100 would take 2,400 for the minors
alone. Bytes: X is 6.3 MB in float64, its gradient as much; the rows of a group of nine subsets 2.2 MB.

Profiled on two cores in float64: of 160 ms the normaliser takes 45 (XᵀX and back 21), B K and back 15, the first
touch of fresh memory 20, and the groups the rest: small batched products run on one core at 11 GFlop/s, LU factors and
triangular solves take 15 ms.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tables import machine, write_table

N, D1, D2 = 3941, 100, 100
WIDTH = 100


def parameters(dtype: type) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [a.astype(dtype) for a in (rng.random((N, D1)) * 0.1, rng.random((N, D2)) * 0.1, rng.normal(size=(D2, D2)))]


def sizes_of(data: Path | None, count: int) -> np.ndarray:
    """Basket sizes: real ones, or where there is no data a distribution of the same mean and tail."""
    rng = np.random.default_rng(1)
    if data is not None:
        sizes = np.diff(np.load(data)["indptr"])
        return rng.choice(sizes[sizes <= WIDTH], count)
    return np.clip(np.round(rng.gamma(1.15, 16.3, count)), 1, WIDTH).astype(int)


def baskets_of(sizes: np.ndarray) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [np.sort(rng.choice(N, size, replace=False)) for size in sizes]


def median_time(step, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def our_step(dtype: type, baskets: list[np.ndarray]) -> Callable[[], float]:
    """A gradient step; it returns the mean log-likelihood."""
    import jax

    from numpyro_ndpp import NDPP, pad_subsets

    values = pad_subsets(baskets, N, WIDTH)

    @jax.jit
    def gradient(V, B, D, values):
        def mean_log_prob(V, B, D):
            return NDPP(V, B, D).log_prob(values).mean()

        return jax.value_and_grad(mean_log_prob, argnums=(0, 1, 2))(V, B, D)

    parts = [jax.numpy.asarray(part) for part in parameters(dtype)]
    return lambda: float(jax.block_until_ready(gradient(*parts, values))[0])


def papers_step(dtype: type, baskets: list[np.ndarray]) -> Callable[[], float]:
    """The same in PyTorch, with a loop over the baskets."""
    import torch

    V, B, D = (torch.tensor(part, requires_grad=True) for part in parameters(dtype))
    rows = [torch.tensor(basket, dtype=torch.long) for basket in baskets]

    def step() -> float:
        for part in (V, B, D):
            part.grad = None
        skew = D - D.T
        X = torch.cat([V, B], dim=1)
        W = torch.block_diag(torch.eye(D1, dtype=V.dtype), skew)
        log_normalizer = torch.linalg.slogdet(torch.eye(D1 + D2, dtype=V.dtype) + W @ (X.T @ X))[1]
        total = sum(torch.linalg.slogdet(V[r] @ V[r].T + B[r] @ skew @ B[r].T)[1] for r in rows)
        objective = total / len(rows) - log_normalizer
        objective.backward()
        return objective.item()

    return step


def check_same_value(dtype: type, ours: float, theirs: float) -> None:
    tolerance = 1e-3 if dtype == np.float32 else 1e-8
    assert abs(ours - theirs) <= tolerance * abs(ours), (ours, theirs)


def memory_child(dtype_name: str) -> None:
    """Run in a process of its own: the peak of its memory is that of this one job."""
    import jax

    from numpyro_ndpp import NDPP, pad_subsets

    parts = [jax.numpy.asarray(part) for part in parameters(getattr(np, dtype_name))]
    values = pad_subsets(baskets_of(sizes_of(None, 20_000)), N, WIDTH)

    def total(V, B, D, values):
        return NDPP(V, B, D).log_prob(values).sum()

    compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))).lower(*parts, values).compile()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    jax.block_until_ready(compiled(*parts, values))
    seconds = time.perf_counter() - start
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    print(extra, compiled.memory_analysis().temp_size_in_bytes / 1e9, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="npz file of baskets with an array indptr, for real basket sizes")
    parser.add_argument("--output", type=Path, help="where to write the tables: FILE.md, or PAGE.md#NAME")
    parser.add_argument("--skip-torch", action="store_true", help="leave the baseline out")
    parser.add_argument("--memory-child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    import jax

    jax.config.update("jax_enable_x64", True)
    if arguments.memory_child:
        memory_child(arguments.memory_child)
        return

    sizes = sizes_of(arguments.data, 200)
    baskets = baskets_of(sizes)
    where = f"sizes of {arguments.data.name}" if arguments.data else "simulated sizes"
    lines = [
        f"Machine: {machine()}.",
        "",
        f"A gradient step on 200 baskets ({where}: mean {sizes.mean():.1f}, largest {sizes.max()}):",
        "",
        "| type | PyTorch loop, unpadded | numpyro_ndpp, padded to 100 | ratio | compilation |",
        "|---|---|---|---|---|",
    ]
    for dtype in (np.float32, np.float64):
        print(f"{dtype.__name__} ...", file=sys.stderr, flush=True)
        step, start = our_step(dtype, baskets), time.perf_counter()
        value, compile_time = step(), time.perf_counter() - start
        seconds = median_time(step, 20)
        if arguments.skip_torch:
            loop, ratio = "", ""
        else:
            papers = papers_step(dtype, baskets)
            check_same_value(dtype, value, papers())
            theirs = median_time(papers, 8)
            loop, ratio = f"{theirs * 1e3:.0f} ms", f"{theirs / seconds:.1f}"
        lines.append(f"| {dtype.__name__} | {loop} | {seconds * 1e3:.1f} ms | {ratio} | {compile_time:.0f} s |")
    lines += [
        "",
        "20,000 subsets padded to 100, value and gradient:",
        "",
        "| type | rise of the process's peak memory beyond compilation | temporaries, by XLA's count | time |",
        "|---|---|---|---|",
    ]
    for name in ("float32", "float64"):
        print(f"memory, {name} ...", file=sys.stderr, flush=True)
        child = subprocess.run(
            [sys.executable, __file__, "--memory-child", name], capture_output=True, text=True, check=True
        )
        extra, counted, seconds = map(float, child.stdout.split())
        lines.append(f"| {name} | {extra:.2f} GB | {counted:.2f} GB | {seconds:.1f} s |")
    print("\n".join(lines))
    write_table(arguments.output, lines)


if __name__ == "__main__":
    main()
