"""Has my chain mixed? Three runs of the walk: one that has mixed, one that was too short, and one that is stuck.

Ten of sixty items are drawn from a random kernel. The stuck run is made by hand, as the walk itself has no barriers of
that kind: half of its chains may not use the first thirty items, the others not the last thirty. For each run the table
and what is wrong in words are printed, and the traces, the ranks and the frequencies are drawn.
"""

import argparse
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import random

from numpyro_ndpp import (
    KNDPP,
    ConvergenceWarning,
    chains_to_arviz,
    mixing_time,
    plot_chains,
    plot_inclusion,
    plot_kernel,
    plot_psrf,
    run_chains,
    summarize_chains,
)


def random_kernel() -> KNDPP:
    """Ten of sixty items."""
    V, B, D = (random.normal(random.key(i), shape) for i, shape in enumerate([(60, 10), (60, 10), (10, 10)]))
    return KNDPP(V, 0.7 * B, D, k=10)


def subsets_within(law: KNDPP, excluded: range, num_steps: int) -> np.ndarray:
    """Three chains that never leave one half of the items."""
    half = law.condition(exclude=jnp.array(excluded))
    return run_chains(half, random.key(1), num_chains=3, num_steps=num_steps)["posterior"]["subset"].values


def judge(title: str, data, folder: Path, name: str) -> list[str]:
    """Print the table and what is wrong, and draw the chains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # printed below
        table = summarize_chains(data)
    print(f"\n{title}\n{table.round(2).to_string(na_rep='')}")
    print("\n".join(table.attrs["problems"]) or "Nothing is wrong.")
    for kind, plot in (("chains", plot_chains), ("inclusion", plot_inclusion)):
        plot(data).savefig(folder / f"{name}_{kind}.svg")
    return table.attrs["problems"]


def main(arguments: list[str] | None = None) -> dict[str, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=Path("chain_diagnostics"), help="folder for the figures")
    parser.add_argument("--quick", action="store_true", help="fewer steps, to see that it runs")
    options = parser.parse_args(arguments)
    options.figures.mkdir(parents=True, exist_ok=True)
    law, steps = random_kernel(), 200 if options.quick else 2000

    healthy = run_chains(law, random.key(1), num_chains=6, num_steps=steps)
    found = {"healthy": judge("A healthy run:", healthy, options.figures, "healthy")}
    short = run_chains(law, random.key(1), num_chains=6, num_steps=30)
    found["short"] = judge("Too short:", short, options.figures, "short")
    halves = [subsets_within(law, excluded, steps) for excluded in (range(30), range(30, 60))]
    stuck = chains_to_arviz(np.concatenate(halves), law)
    found["stuck"] = judge("Stuck in two halves:", stuck, options.figures, "stuck")

    result = mixing_time(law, random.key(2), 20 if options.quick else 100)
    print(f"\nMixing time of the first kernel: {result.num_steps} steps; k² is 100.")
    plot_psrf(result).savefig(options.figures / "psrf.svg")
    plot_kernel(law).savefig(options.figures / "kernel.svg")
    print(f"Traces, ranks, frequencies, PSRF and the kernel are drawn in {options.figures}")
    return found


if __name__ == "__main__":
    main()
