"""How long a new user waits: the first result of everyday calls, compilation included, and the same call again.

    python benchmarks/first_result.py [--only NAME] [--output docs/explanation/benchmarks.md#first_result]

Each row is a process of its own, float32, no compilation cache: the package and JAX are imported before the clock runs,
the distribution is made and the call made three times, with other keys. "Programs" counts what XLA compiled until the
first result, "lines" how long these programs are before XLA sees them: seconds follow the lines, at some 1.5 to 2 ms
each.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tables import machine, write_table


def kernel(n: int, d: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(n, d // 2), (n, d // 2), (d // 2, d // 2)]
    V, B, D = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return [V / np.float32(n**0.5), B / np.float32(n**0.5), D]


def scaled(n: int, d: int, mean: float) -> list[np.ndarray]:
    """A kernel of the mean size, scaled without JAX, so that no more is compiled than the row is about."""
    V, B, D = kernel(n, d)
    X = np.hstack([V, B]).astype(np.float64)
    W = np.eye(d)
    W[d // 2 :, d // 2 :] = D - D.T
    values = np.linalg.eigvals(W @ (X.T @ X))
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        size = np.sum(np.exp(middle) * values / (1 + np.exp(middle) * values)).real
        low, high = (middle, high) if size < mean else (low, middle)
    root = np.float32(np.exp(low / 2))
    return [root * V, root * B, D]


def draws(law, num_draws: int) -> Callable[[int], object]:
    import jax

    return lambda seed: law.sample(jax.random.key(seed), (num_draws,))


def varying(n: int, d: int, mean: float, num_draws: int, sampler: str) -> Callable[[int], object]:
    import numpyro_ndpp as package

    return draws(package.NDPP(*scaled(n, d, mean), sampler=getattr(package, sampler)()), num_draws)


def one_size(n: int, d: int, k: int, sampler: str) -> Callable[[int], object]:
    import numpyro_ndpp as package

    return draws(package.KNDPP(*kernel(n, d), k, sampler=getattr(package, sampler)()), 1)


def conditioned() -> Callable[[int], object]:
    import jax

    from numpyro_ndpp import KNDPP

    law = KNDPP(*kernel(10_000, 100), k=10)

    def of_user(seed: int) -> object:
        items = np.arange(4) + 10 * seed
        return law.condition(include=items[:2], exclude=items[2:]).sample(jax.random.key(seed))

    return of_user


def gradient() -> Callable[[int], object]:
    import jax

    from numpyro_ndpp import NDPP, pad_subsets

    rng = np.random.default_rng(1)
    n, parts = 4000, kernel(4000, 200)
    sizes = np.clip(np.round(rng.gamma(1.15, 16.3, 200)), 1, 100).astype(int)
    baskets = np.asarray(pad_subsets([rng.choice(n, size, replace=False) for size in sizes], n, 100))
    step = jax.jit(jax.value_and_grad(lambda parts: NDPP(*parts).log_prob(baskets).sum()))
    return lambda _: step(parts)


def next_item() -> Callable[[int], object]:
    from numpyro_ndpp import NDPP

    law = NDPP(*kernel(4000, 100))
    return lambda seed: law.next_item_log_prob(np.array([3, 50, 700]) + seed)


def predictive() -> Callable[[int], object]:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Predictive

    from numpyro_ndpp import NDPP

    def model() -> None:
        shapes = {"V": (200, 5), "B": (200, 5), "D": (5, 5)}
        sites = [numpyro.sample(name, dist.Normal(0, 0.1).expand(shape).to_event(2)) for name, shape in shapes.items()]
        numpyro.sample("S", NDPP(*sites))

    call = Predictive(model, num_samples=200, parallel=True)
    return lambda seed: call(jax.random.key(seed))["S"]


ROWS: dict[str, tuple[str, Callable[[], Callable[[int], object]], str]] = {
    "small": (
        "`NDPP`, n = 1,000, d = 20, mean 6, walk: 100 draws",
        lambda: varying(1000, 20, 6, 100, "UpDown"),
        "5; 0.3",
    ),
    "walk": (
        "`NDPP`, n = 10⁴, d = 100, mean 15, walk: 20 draws",
        lambda: varying(10_000, 100, 15, 20, "UpDown"),
        "8; 3",
    ),
    "exact": ("the same, exact", lambda: varying(10_000, 100, 15, 20, "Exact"), "8; 1"),
    "k-walk": ("`KNDPP`, n = 10⁴, d = 100, k = 10, walk: one draw", lambda: one_size(10_000, 100, 10, "UpDown"), "5"),
    "k-exact": ("the same, exact", lambda: one_size(10_000, 100, 10, "Exact"), "6"),
    "condition": ("the same, walk, given two items and without two: a draw", conditioned, "6; 0.1"),
    "gradient": ("value and gradient of `log_prob`, 200 baskets to 100 items, d = 200", gradient, "5"),
    "next": ("`next_item_log_prob`, n = 4,000, d = 100", next_item, "2"),
    "predictive": ("`Predictive`, 200 kernels, n = 200, d = 10", predictive, "8; 1"),
}
# For an accelerator: only by name.
ROWS_BY_NAME = ROWS | {
    "many": (
        "`NDPP`, n = 10⁴, d = 100, mean 15, exact: 4,096 draws",
        lambda: varying(10_000, 100, 15, 4096, "Exact"),
        "30; 0.3",
    )
}


def measure(name: str) -> dict[str, object]:
    """One row, in this process."""
    import jax
    from jax._src import compiler  # there is no public way to see what is compiled

    programs: list[int] = []
    compile_program = compiler.backend_compile_and_load

    def counted(backend: object, module: object, *arguments: object, **settings: object) -> object:
        programs.append(str(module).count("\n"))
        return compile_program(backend, module, *arguments, **settings)

    compiler.backend_compile_and_load = counted
    import numpyro_ndpp  # noqa: F401

    start = time.perf_counter()
    call = ROWS_BY_NAME[name][1]()
    times, first = [], None
    for seed in range(3):
        jax.block_until_ready(call(seed))
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        first = (len(programs), sum(programs)) if first is None else first
    return {"times": times, "programs": first[0], "lines": first[1], "again": len(programs) - first[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROWS_BY_NAME, help="measure one row and print it")
    parser.add_argument("--inside", choices=ROWS_BY_NAME, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="where to write the table: FILE.md, or PAGE.md#NAME")
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(measure(arguments.inside)))
        return
    lines = [
        f"Machine: {machine()}. float32, seconds, compilation included.",
        "",
        "| call | first | second | third | asked for | programs | lines | compiled later |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [arguments.only] if arguments.only else ROWS:
        command = [sys.executable, __file__, "--inside", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{seconds:.2g}" for seconds in row["times"]]
        counts = [f"{row[count]:,}" for count in ("programs", "lines", "again")]
        lines.append(f"| {ROWS_BY_NAME[name][0]} | {' | '.join([*cells, ROWS_BY_NAME[name][2], *counts])} |")
        print(lines[-1], flush=True)
    write_table(arguments.output, lines)


if __name__ == "__main__":
    main()
