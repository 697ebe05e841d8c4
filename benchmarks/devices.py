"""One, two, four and eight devices: a gradient step, draws of a sharded catalogue, and draws in parallel.

    python benchmarks/devices.py [--rank 100] [--cores-each 1] [--out devices.json]
        [--output docs/guides/many_devices.md#devices] [--quick]

The devices are virtual ones of a CPU, and each has a core of its own (``--cores-each``): the process of P devices is
bound to P cores. Left to itself one device takes six to eight cores, for XLA shares elementwise work among all threads.
Eight devices would then be compared with half the machine. Each number of devices has a process of its own. Rows:

- weak: a gradient step, n = 10⁶ items on each device. The efficiency is t(1) / t(P).
- strong: the same with n = 10⁷ in all. The efficiency is t(1) / (P t(P)).
- sharded draw: one exact draw after the other, n = 10⁶ in all. A draw is a chain of small steps: devices share the
  memory, not the time.
- parallel draws: 64 exact draws on each device, n = 10⁵, every device with all items. The efficiency is t(1) / t(P).

"alone" is the code for a single device, without a mesh, measured in the same run as P = 1 for the first and the last.

Bytes are those of a device: the program's arguments and its working memory, as XLA's compiler counts them. Collectives
are counted in the compiled program, with the bytes that one run through it exchanges a device; what stands in a loop
counts once, and is done once for each item that is drawn.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tables import machine, write_table

BASKETS, WIDTH = 256, 8
NUMBERS = (1, 2, 4, 8)
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def exchanged(text: str) -> tuple[int, int]:
    """How many collectives a compiled program has, and the bytes of their results."""
    found = [match[1] for match in _COLLECTIVE.finditer(text)]
    arrays = [match for shapes in found for match in re.findall(r"(\w+)\[([\d,]*)\]", shapes)]
    sizes = [_BYTES[kind] * int(np.prod([int(axis) for axis in shape.split(",") if axis])) for kind, shape in arrays]
    return len(found), sum(sizes)


def median_seconds(call: Callable[[], Any], repetitions: int) -> float:
    import jax

    jax.block_until_ready(call())
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measured(name: str, number: int, n: int, program: Any, arguments: tuple, repetitions: int, per: int = 1) -> dict:
    """A row: the seconds of a run of a program, divided by ``per``, and what it takes and exchanges."""
    import jax

    compiled = jax.jit(program).lower(*arguments).compile()
    collectives, sent = exchanged(compiled.as_text())
    memory = compiled.memory_analysis()
    seconds = median_seconds(lambda: compiled(*arguments), repetitions) / per
    row = {"what": name, "devices": number, "n": n, "seconds": seconds, "collectives": collectives, "sent": sent}
    print(f"{name}, n = {n:,}, {number} devices: {seconds:.4g} s", file=sys.stderr, flush=True)
    return row | {"arguments": memory.argument_size_in_bytes, "working": memory.temp_size_in_bytes}


def kernel(n: int, rank: int, mesh: Any) -> tuple[Any, Any, Any]:
    """V, B and D in float32; V and B by rows over the axis "items" of the mesh, if it has one."""
    import jax
    from jax import random
    from jax.sharding import NamedSharding, PartitionSpec

    def make() -> tuple[Any, Any]:
        return tuple(random.normal(random.key(i), (n, rank // 2), "float32") / n**0.5 for i in range(2))

    if mesh is None:
        V, B = jax.jit(make)()
    else:
        axis = "items" if "items" in mesh.axis_names else None
        sharding = NamedSharding(mesh, PartitionSpec(axis))
        V, B = jax.jit(make, out_shardings=(sharding, sharding))()
    return V, B, np.asarray(np.random.default_rng(0).normal(size=(rank // 2, rank // 2)), np.float32)


def gradient_step(name: str, n: int, rank: int, mesh: Any, number: int, repetitions: int) -> dict:
    import jax
    import jax.numpy as jnp

    from numpyro_ndpp import NDPP

    rng = np.random.default_rng(1)
    baskets = np.sort(np.stack([rng.choice(n, WIDTH, replace=False) for _ in range(BASKETS)]), axis=1).astype(np.int32)

    def loss(parts: tuple[Any, Any, Any]) -> Any:
        return -jnp.mean(NDPP(*parts, validate_args=False).log_prob(baskets))

    with ambient(mesh):
        return measured(name, number, n, jax.value_and_grad(loss), (kernel(n, rank, mesh),), repetitions)


def draws(name: str, n: int, rank: int, mesh: Any, number: int, num_draws: int, repetitions: int) -> dict:
    from jax import random

    from numpyro_ndpp import NDPP, Exact

    V, B, D = kernel(n, rank, mesh)
    law = NDPP(3.0 * V, 3.0 * B, D, sampler=Exact(), validate_args=False).prepare()

    def draw(law: NDPP, key: Any) -> Any:
        return law.sample(key, (num_draws,))

    with ambient(mesh):
        per = 1 if name == "parallel draws" else num_draws
        return measured(name, number, n, draw, (law, random.key(0)), repetitions, per)


def ambient(mesh: Any) -> Any:
    import jax

    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def child(number: int, sizes: dict[str, int], repetitions: int) -> list[dict]:
    """All rows for a number of devices; for one device those of the code without a mesh too."""
    import jax
    from jax.sharding import Mesh

    devices = np.array(jax.devices()[:number])
    items, parallel = Mesh(devices, ("items",)), Mesh(devices, ("draws",))
    rank, rows = sizes["rank"], []
    for label, by_item, by_draw in ((str(number), items, parallel), *([("alone", None, None)] if number == 1 else [])):
        of_label = [
            gradient_step("weak", sizes["weak"] * number, rank, by_item, number, repetitions),
            draws("parallel draws", sizes["parallel"], rank, by_draw, number, sizes["draws"] * number, repetitions),
        ]
        if label != "alone":  # the same program on one device, ten times as long
            of_label += [
                gradient_step("strong", sizes["strong"], rank, by_item, number, repetitions),
                draws("sharded draw", sizes["draw"], rank, by_item, number, 8, repetitions),
            ]
        rows += [row | {"label": label} for row in of_label]
    return rows


def in_process(number: int, sizes: dict[str, int], repetitions: int, cores: list[int]) -> list[dict]:
    flags = f"--xla_force_host_platform_device_count={number} --xla_cpu_multi_thread_eigen=false"
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NPROC": str(max(16, 2 * number))}
    environment = os.environ | threads | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--child", str(number), "--sizes", json.dumps(sizes)]
    done = subprocess.run(
        [*command, "--repetitions", str(repetitions)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict], rank: int, cores_each: int) -> list[str]:
    lines = [
        "| | n | devices | seconds | efficiency | arguments a device | working memory | collectives | bytes sent |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    first = {row["what"]: row["seconds"] for row in rows if row["label"] == "1"}
    for what in dict.fromkeys(row["what"] for row in rows):
        for row in (row for row in rows if row["what"] == what):
            share = row["devices"] if what in ("strong", "sharded draw") else 1
            efficiency = first[what] / (share * row["seconds"])
            shown = "" if row["label"] == "alone" else f"{100 * efficiency:.0f} %"
            memory = " | ".join(f"{row[key] / 1e6:.1f} MB" for key in ("arguments", "working"))
            sent = f"{row['collectives']} | {row['sent']:,}"
            lines.append(
                f"| {what} | {row['n']:,} | {row['label']} | {row['seconds']:.4g} | {shown} | {memory} | {sent} |"
            )
    cores = "one core" if cores_each == 1 else f"{cores_each} cores"
    return [*lines, "", f"{machine()}, {cores} a device, float32, d = {rank}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers to this file, as JSON")
    parser.add_argument("--output", type=Path, help="where to write the table: FILE.md, or PAGE.md#NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--rank", type=int, default=100, help="d, even")
    parser.add_argument("--cores-each", type=int, default=1, help="how many cores a device has")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(child(arguments.child, arguments.sizes, arguments.repetitions)))
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    sizes = {"weak": 10**6, "strong": 10**7, "draw": 10**6, "parallel": 10**5, "draws": 64}
    if arguments.quick:
        sizes = {"weak": 1024, "strong": 8192, "draw": 8192, "parallel": 1024, "draws": 4}
    sizes["rank"] = arguments.rank
    cores, rows = sorted(os.sched_getaffinity(0)), []
    for number in NUMBERS:
        wanted = number * arguments.cores_each
        if wanted > len(cores):
            print(
                f"{number} devices with {arguments.cores_each} cores each: there are only {len(cores)}", file=sys.stderr
            )
        rows += in_process(number, sizes, arguments.repetitions, cores[:wanted])
    lines = table(rows, arguments.rank, arguments.cores_each)
    print("\n".join(lines))
    write_table(arguments.output, lines)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
