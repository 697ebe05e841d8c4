"""Steps of the up-down walk: against n, d, k and the number of chains, with the tree's memory and the rejections.

    python benchmarks/updown.py [--type float32] [--quick] [--output docs/explanation/benchmarks.md#updown]

Kernels as in section 6.1 of Han et al. (2022): V and B normal with variance √(2/d), D standard normal. Every chain
starts at the greedy subset; a time is the best of three runs of a loop of steps, divided by steps and chains. Ratios
are to a baseline in the same run: the paper's rejection operator (proposals from the Youla symmetrisation, here on
the same tree and compiled by the same compiler), and the naive operator, which looks at all pairs, where that is
feasible. The authors' own code takes 200 ms a step at n = 10⁴, d = 100, k = 10, 750 ms at d = 200 and 184 ms at k =
50, on two cores of a machine of this kind.

Counted by hand, float64, n = 10⁴, d = 100, k = 10 (leaves of 40 items, 8 levels): the two low-rank products 2 d² · 3k
= 0.6 MFlop and as much for what stands in them, a leaf 2 · 40 · d · 4k = 0.3 and 0.2 MFlop, the tree 2 · 13 rows of
5,050 numbers = 0.3 MFlop and 1.1 MB read, the rest (images of the new items, a 10 × 10 inverse) 0.3 MFlop: 2 MFlop,
0.2 ms at the 12 GFlop/s of small products on one core. At k = 50: 8 MFlop. In float32 W'CW' adds 2 d³ = 2 MFlop.

Profiled on two cores: of 0.42 ms the two low-rank products take 0.06, the descents 0.14, the leaves 0.07, packing
0.03, the small matrices of A 0.06; the rest is the hand-over between some 250 small operations. On an H200 with 1,024
chains a step takes 1.05 ms in 136 kernels: products over d × d matrices 0.3 ms, the tree 0.2 ms, passes over d × d
matrices 0.2 ms, and the tail of small kernels, 4 µs each, the rest.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from tables import machine, write_table

from numpyro_ndpp import UpDown
from numpyro_ndpp.kernel import Kernel, inner_matrix
from numpyro_ndpp.samplers.walk import Walk
from numpyro_ndpp.target import Target


def kernel(n: int, d: int, dtype: type, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    key_x, key_d = random.split(random.key(seed))
    X = random.normal(key_x, (n, d), dtype) * (2 / d) ** 0.25
    D = random.normal(key_d, (d // 2, d // 2), dtype)
    return X, inner_matrix(d // 2, D - D.T)


def prepared(n: int, d: int, k: int, dtype: type, **settings: object) -> tuple[Walk, float]:
    """The walk and the seconds that its preparation takes once compiled."""
    X, W = jax.block_until_ready(kernel(n, d, dtype))
    prepare = jax.jit(lambda X, W: UpDown(**settings).prepare(Target.of(Kernel.of(X, W), k, k))).lower(X, W).compile()
    start = time.perf_counter()
    walk = jax.block_until_ready(prepare(X, W))
    return walk, time.perf_counter() - start


def step_time(walk: Walk, chains: int, num_steps: int) -> tuple[float, float, float]:
    """Seconds a step and chain, seconds to compile, and the mean number of rejections."""

    def run(walk: Walk, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            def step(number, carry):
                state, rejections = carry
                state, info = walk.step(random.fold_in(key, number), state)
                return state, rejections + info.num_rejections

            state, rejections = lax.fori_loop(0, num_steps, step, (walk.init(walk.starts), jnp.asarray(0)))
            return state.subset, rejections

        return chain(keys) if chains == 1 else jax.vmap(chain)(keys)

    keys = random.key(1) if chains == 1 else random.split(random.key(1), chains)
    start = time.perf_counter()
    compiled = jax.jit(run).lower(walk, keys).compile()
    compile_time = time.perf_counter() - start
    subsets, rejections = jax.block_until_ready(compiled(walk, keys))
    items = np.sort(np.atleast_2d(subsets), axis=1)
    assert (np.diff(items, axis=1) > 0).all()
    assert items.min() >= 0
    assert items.max() < walk.kernel.num_items
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(compiled(walk, keys))
        times.append(time.perf_counter() - start)
    return min(times) / num_steps / chains, compile_time, float(np.mean(rejections)) / num_steps


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds > 1e-4 else f"{seconds * 1e6:.3g} µs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=["float32", "float64"], default="float64")
    parser.add_argument("--output", type=Path, help="where to write the table: FILE.md, or PAGE.md#NAME")
    parser.add_argument("--quick", action="store_true", help="no baselines, and on a CPU only n up to 10⁴")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.type == "float64")
    dtype = getattr(np, arguments.type)
    on_cpu = jax.default_backend() == "cpu"
    lines = [
        f"Machine: {machine()}. {arguments.type}.",
        "",
        "| n | d | k | chains | direct, a step and chain | rejection | rejections a step | ratio | compilation "
        "| preparation | tree / X |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    cases = [(10**3, 100, 10, 1), (10**4, 100, 10, 1), (10**4, 200, 10, 1), (10**4, 100, 50, 1), (10**4, 100, 10, 64)]
    if not arguments.quick:
        cases += [(10**5, 100, 10, 1), (10**6, 100, 10, 1)]
    if not on_cpu:
        cases = [(10**6, 100, 10, 256), (10**6, 100, 10, 1024), (10**6, 100, 10, 2048), (10**4, 100, 50, 1024)]
    with_baseline = {(10**4, 100, 10, 1), (10**4, 200, 10, 1), (10**4, 100, 50, 1), (10**4, 100, 50, 1024)}
    for number, (n, d, k, chains) in enumerate(cases, 1):
        print(f"[{number}/{len(cases)}] n = {n:,}, d = {d}, k = {k}, {chains} chains ...", file=sys.stderr, flush=True)
        walk, preparation = prepared(n, d, k, dtype)
        seconds, compilation, _ = step_time(walk, chains, 50 if chains > 1 else 300)
        rejection, rejections, ratio = "", "", ""
        if not arguments.quick and (n, d, k, chains) in with_baseline:
            baseline, _ = prepared(n, d, k, dtype, up="rejection")
            theirs, _, mean = step_time(baseline, chains, 100 if chains == 1 else 10)
            rejection, rejections, ratio = duration(theirs), f"{mean:.1f}", f"{theirs / seconds:.0f}"
        share = walk.kernel.tree.lefts.nbytes / walk.kernel.tree.X.nbytes
        lines.append(
            f"| {n:,} | {d} | {k} | {chains:,} | {duration(seconds)} | {rejection} | {rejections} | {ratio} "
            f"| {compilation:.0f} s | {preparation:.2g} s | {share:.2f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    if on_cpu:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        lines += ["", f"Peak memory of the whole run: {peak:.1f} GB."]
    print("\n".join(lines))
    write_table(arguments.output, lines)


if __name__ == "__main__":
    main()
