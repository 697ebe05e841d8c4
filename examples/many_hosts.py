"""Many hosts, one catalogue: learn a kernel, draw exactly and judge the draws, each process with its own rows.

The same command on every host, with the address of the first, the number of processes, and the number of this one:

    python examples/many_hosts.py --coordinator 10.0.0.1:1234 --processes 2 --process 0 --folder /shared/run
    python examples/many_hosts.py --coordinator 10.0.0.1:1234 --processes 2 --process 1 --folder /shared/run

The folder is one that all see. Baskets of a shop are simulated; from them a kernel is learned, its features over the
devices of all processes, with a checkpoint in the folder: after a crash, the same commands go on from there. Its
features go to npy files, of which every process maps the rows of its own devices into memory. Exact draws follow. They
are judged by how often items occur in them: the squared deviation from the exact probability, in units of its
variance, is one on average.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from numpyro_ndpp import NDPP, Exact
from numpyro_ndpp.datasets import simulate_baskets
from numpyro_ndpp.devices import shard_rows
from numpyro_ndpp.hosts import start_process
from numpyro_ndpp.learning import fit

# The mean of squared deviations over some tens of items has a standard deviation of about a quarter.
_LARGEST_MEAN = 2.5


@jax.jit
def mean_squared_deviation(probs: Array, counts: Array, num_draws: int) -> Array:
    """Over the items that may occur: (count - s p)² / (s p (1 - p))."""
    possible = (probs > 0) & (probs < 1)
    variance = jnp.where(possible, num_draws * probs * (1 - probs), 1.0)
    squared = jnp.where(possible, (counts - num_draws * probs) ** 2 / variance, 0.0)
    return jnp.sum(squared) / jnp.sum(possible)


def learn(folder: Path, mesh: Mesh, num_baskets: int, num_steps: int) -> None:
    """The kernel, written by process 0 into the folder."""
    shop = simulate_baskets(num_baskets)
    checkpoint = {"checkpoint": folder / "checkpoint.npz", "checkpoint_every": 20}
    settings = {"rank": 12, "batch_size": 100, "num_steps": num_steps, "evaluate_every": 20, "patience": 0}
    result = fit(shop, **settings, **checkpoint, mesh=mesh, progress_bar=True)
    if jax.process_index() == 0:
        for name, part in (("V", result.V), ("B", result.B), ("D", result.D)):
            np.save(folder / f"{name}.npy", part)
        print(f"log-likelihood of held-out baskets: {result.history['validation'].max():.3f}")
    multihost_utils.sync_global_devices("written")


def draw_and_judge(folder: Path, mesh: Mesh, num_draws: int) -> float:
    """The mean squared deviation of the draws."""
    V, B = (shard_rows(np.load(folder / f"{name}.npy", mmap_mode="r"), mesh) for name in "VB")
    law = NDPP(V, B, np.load(folder / "D.npy"), sampler=Exact())
    draws = np.asarray(law.sample(random.key(0), (num_draws,)))
    counts = np.bincount(draws[draws < law.num_items], minlength=law.num_items)
    return float(mean_squared_deviation(law.inclusion_probs(), counts, num_draws))


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", default="localhost:12355", help="host and port of process 0")
    parser.add_argument("--processes", type=int, default=1, help="how many processes there are")
    parser.add_argument("--process", type=int, default=0, help="which of them this is, from 0 on")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the other processes")
    parser.add_argument("--folder", type=Path, required=True, help="a folder that all processes see")
    parser.add_argument("--baskets", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--draws", type=int, default=1000)
    given = parser.parse_args(arguments)
    start_process(given.coordinator, given.processes, given.process, timeout=given.timeout)
    mesh = Mesh(np.array(jax.devices()), ("items",))
    learn(given.folder, mesh, given.baskets, given.steps)
    deviation = draw_and_judge(given.folder, mesh, given.draws)
    if jax.process_index() == 0:
        print(f"{given.draws} exact draws: mean squared deviation of the items' frequencies {deviation:.2f}")
    if deviation > _LARGEST_MEAN:
        raise SystemExit(f"the draws are not those of the kernel: {deviation:.2f} is more than {_LARGEST_MEAN}")
    return deviation


if __name__ == "__main__":
    main()
