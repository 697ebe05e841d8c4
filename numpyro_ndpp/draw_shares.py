r"""Draws and chains in parallel: each device along the mesh axis "draws" makes its share, or each core of a CPU.

A draw is a function of its key alone, so it is the same on any device, and on any number of them. What was prepared is
on every device, or, where its items are over another axis of the mesh, on every group of devices that has them all.

A CPU is one device. XLA shares what is large among its cores, but a draw is a chain of small steps, which one core
makes. So outside jit each core runs the program of a share, in a thread of its own.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from numpyro.util import not_jax_tracer

from numpyro_ndpp.devices import DRAWS, Shards

__all__ = ["by_cores", "in_shares", "mesh_of_draws", "num_core_shares"]

# The arrays of what samplers prepare that have a row for every item, leaf or node.
_BY_ITEM = ("X", "item_scale", "lefts", "nodes", "others", "own")

# OpenBLAS, whose LAPACK threads call, has buffers for some 64 of its own threads.
_MOST_CORES = 16


def mesh_of_draws(shards: Shards | None, X: Any, number: int) -> Mesh | AbstractMesh | None:
    """The mesh whose axis "draws" shares so many draws: that of the features, or else the ambient one.

    None where there is no such axis, or fewer draws than devices.
    """
    current = jax.sharding.get_abstract_mesh()
    mesh: Mesh | AbstractMesh = current
    sharding = getattr(X, "sharding", None) if not_jax_tracer(X) else None
    if shards is not None:
        mesh = shards.mesh
    elif isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
    num_devices = dict(mesh.shape).get(DRAWS, 1)
    return mesh if 1 < num_devices <= number and not current.manual_axes else None


def in_shares(
    mesh: Mesh | AbstractMesh, function: Callable[..., Any], state: Any, arguments: Any, number: Array | int
) -> Any:
    """``function(state, arguments, number)`` of arguments (s, ...), of which each device has its share.

    :param function: gives a pytree of arrays (s, ...), of which it makes the first ``number``.
    :param state: what was prepared. Its ``shards``, if it has any, are the devices over which its items are.
    :return: the same as on one device, and on all devices.

    Device i of P has the entries i, i + P, ...: about as many of the first ``number`` as any other.
    """
    num_devices, length = mesh.shape[DRAWS], len(jax.tree.leaves(arguments)[0])
    extra = -length % num_devices

    def deal(array: Array) -> Array:
        filled = jnp.concatenate([array, array[:extra]]) if extra else array
        return filled.reshape(-1, num_devices, *array.shape[1:]).swapaxes(0, 1).reshape(filled.shape)

    def collect(array: Array) -> Array:
        dealt = array.reshape(num_devices, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
        return lax.with_sharding_constraint(dealt[:length], NamedSharding(mesh, PartitionSpec()))

    def of_device(state: Any, arguments: Any, number: Array) -> Any:
        own = (number - lax.axis_index(DRAWS) + num_devices - 1) // num_devices
        return function(state, arguments, own)

    share = PartitionSpec(DRAWS)
    run = jax.shard_map(
        of_device, mesh=mesh, in_specs=(_specs(state), share, PartitionSpec()), out_specs=share, check_vma=False
    )
    return jax.tree.map(collect, run(state, jax.tree.map(deal, arguments), jnp.asarray(number)))


def _specs(state: Any) -> Any:
    """Where the arrays of what was prepared are: those with a row for every item over the axis of the items."""
    shards: Shards | None = getattr(state, "shards", None)

    def spec(path: tuple[Any, ...], _: Array) -> PartitionSpec:
        is_by_item = shards is not None and getattr(path[-1], "name", None) in _BY_ITEM
        return PartitionSpec(shards.axis) if shards is not None and is_by_item else PartitionSpec()

    return jax.tree_util.tree_map_with_path(spec, state)


def num_core_shares(length: int) -> int:
    """How many shares so many draws, a power of two, have on a CPU: at most one for each core that there is for us."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 ** int(math.log2(min(cores, length, _MOST_CORES)))


def by_cores(draw: Callable[[int], Array], num_shares: int) -> np.ndarray:
    """The draws of all shares, each made by a thread: those of share i are the numbers i, i + P, ... of P shares.

    :param draw: the draws (s, w) of a share, by a program that is compiled.
    """
    with ThreadPoolExecutor(num_shares) as threads:
        shares = list(threads.map(lambda share: np.asarray(draw(share)), range(num_shares)))
    return np.concatenate(np.stack(shares, axis=1))
