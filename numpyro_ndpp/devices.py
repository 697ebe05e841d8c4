r"""Features over many devices: each device of a mesh axis holds n/P rows of X, and what is small is on all of them.

JAX does the work. A sum over all items, :math:`X^\top X = \sum_p X_p^\top X_p`, is one all-reduce of d × d numbers.
XLA finds that by itself, and likewise log-probabilities, their gradients and all that is one number an item. Where it
would gather X on every device (slices at a place that is known at run time only), functions here say what each device
does with its own rows, by ``shard_map``.

How a distribution knows: V and B, or X, lie on their devices when it is made; within jit, where nobody sees that, the
ambient mesh (``jax.set_mesh``) counts if it has an axis called "items".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from numpyro.util import not_jax_tracer

__all__ = ["DRAWS", "ITEMS", "Shards", "ambient_shards", "check_axis", "check_same", "shard_rows", "shards_of"]

ITEMS = "items"
"""The mesh axis over which :func:`~numpyro_ndpp.learning.fit` and distributions within jit have the items."""
DRAWS = "draws"
"""The mesh axis over which draws and chains are made in parallel."""


@dataclass(frozen=True)
class Shards:
    """Rows over an axis of a mesh, as many on each device: those of item a are on device ⌊a P / n⌋ of P."""

    mesh: Mesh | AbstractMesh
    axis: str

    @property
    def number(self) -> int:
        """The number P of devices along the axis."""
        return self.mesh.shape[self.axis]

    @property
    def is_inside(self) -> bool:
        """Whether this is a device's own part of a program already, where an array has the device's rows only."""
        return self.axis in jax.sharding.get_abstract_mesh().manual_axes

    def num_rows(self, X: Array) -> int:
        """The rows of X on all devices together."""
        return len(X) * (self.number if self.is_inside else 1)

    def run(
        self,
        function: Callable[..., Any],
        by_item: tuple[Any, ...],
        others: tuple[Any, ...],
        out: Any = PartitionSpec(),
    ) -> Any:
        """``function(*by_item, *others)`` on every device, with its own rows of the first and all of the others.

        :param out: where the results are; by default all devices have the same.
        """
        if self.is_inside:
            return function(*by_item, *others)
        specs = (self.by_rows,) * len(by_item) + (PartitionSpec(),) * len(others)
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)(
            *by_item, *others
        )

    @property
    def by_rows(self) -> PartitionSpec:
        return PartitionSpec(self.axis)

    @property
    def index(self) -> Array:
        """The number of this device along the axis, inside."""
        return lax.axis_index(self.axis)

    def sum_of_one(self, is_mine: Array, values: Any) -> Any:
        """What one device has, on all of them: one all-reduce for each type of numbers. Inside."""
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda value: jnp.where(is_mine, value, 0), values))
        return jax.tree.unflatten(structure, lax.psum(leaves, self.axis))


def rows_on_devices(shards: Shards | None, X: Array, items: Array) -> Array:
    """The rows (..., d) of items (...) on all devices, zero where the number is n: one all-reduce of as many rows.

    Without shards X is whole, and rows are read as they are.
    """
    if shards is None:
        return X.at[items].get(mode="fill", fill_value=0)

    def of_device(X: Array, items: Array) -> Array:
        place = items - shards.index * len(X)
        place = jnp.where(place < 0, len(X), place)  # a negative number would count from the end
        return lax.psum(X.at[place].get(mode="fill", fill_value=0), shards.axis)

    return shards.run(of_device, (X,), (items,))


def shards_of(name: str, X: Any) -> Shards | None:
    """Where the rows of X (..., n, d) are, if they are on several devices; None if each has all of them.

    :raises ValueError: for features that are sharded by columns, or by rows over several axes at once.
    """
    if not not_jax_tracer(X):
        _check_not_explicit(name, X)
        return ambient_shards(X.shape[-2])
    sharding = getattr(X, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.is_fully_replicated:
        return None
    spec = [*sharding.spec, *[None] * (X.ndim - len(sharding.spec))]
    rows, columns = spec[-2:]
    if _size(sharding.mesh, columns) > 1:
        raise ValueError(
            f"{name} is sharded by columns ({sharding.spec}): shard it by rows, one for each item, as shard_rows does"
        )
    if _size(sharding.mesh, rows) == 1:
        return None
    names = [axis for axis in (rows if isinstance(rows, tuple) else (rows,)) if sharding.mesh.shape[axis] > 1]
    if len(names) > 1:
        raise ValueError(f"{name} is sharded by rows over several axes, {tuple(names)}: shard it over one")
    return Shards(sharding.mesh, names[0])


def is_spread(array: Any) -> bool:
    """Whether no device has the whole of an array; within jit nobody knows."""
    sharding = getattr(array, "sharding", None) if not_jax_tracer(array) else None
    return sharding is not None and not sharding.is_fully_replicated


def _size(mesh: Any, axes: Any) -> int:
    names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
    return int(np.prod([mesh.shape[name] for name in names], dtype=int))


def _check_not_explicit(name: str, X: Any) -> None:
    spec = getattr(jax.typeof(X).sharding, "spec", ())
    if any(axes is not None for axes in spec):
        raise ValueError(
            f"{name} is sharded over explicit axes ({spec}) within jit: give the mesh axes of AxisType.Auto, "
            "jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))"
        )


def ambient_shards(num_rows: int = 0) -> Shards | None:
    """The devices of the ambient mesh along its axis "items", if it has one that divides the number of rows."""
    mesh = jax.sharding.get_abstract_mesh()
    number = dict(mesh.shape).get(ITEMS, 1)
    if number == 1 or num_rows % number or ITEMS in mesh.manual_axes:
        return None
    return Shards(mesh, ITEMS)


def with_auto_axes(array: Array) -> Array:
    """The same array on the same devices, the axes of its mesh left to the compiler; nothing is copied.

    ``jax.make_mesh`` has explicit axes by default, for which every operation would have to say where its result is.
    """
    sharding = getattr(array, "sharding", None) if not_jax_tracer(array) else None
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return array
    return jax.device_put(array, NamedSharding(auto_mesh(sharding.mesh), sharding.spec))


def auto_mesh(mesh: Any) -> Mesh:
    """The mesh with all its axes left to the compiler."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def check_axis(name: str, mesh: Any, axis: str) -> Mesh:
    """The mesh, its axes left to the compiler.

    :raises TypeError: for what is no mesh.
    :raises ValueError: for an axis that it does not have.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{name} must be a jax.sharding.Mesh, got {type(mesh).__name__}")
    if axis not in mesh.axis_names:
        raise ValueError(f"{name} has no axis {axis!r}: its axes are {mesh.axis_names}")
    return auto_mesh(mesh)


def shard_rows(features: Any, mesh: Mesh, axis: str = ITEMS) -> Array:
    """Features (n, d) with their rows over a mesh axis: V and B for :class:`~numpyro_ndpp.NDPP`.

    :param features: an array, or a memory-mapped file (``np.load(path, mmap_mode="r")``), of which every process reads
        the rows of its own devices, and no others.
    :param mesh: the devices; on many hosts those of all processes.
    :param axis: the axis over which the rows are. Other axes have copies.
    :return: the features, with rows of zeros at the end if n is not divisible by the number of devices. No subset with
        a positive probability holds one of those; item numbers stay, and padding is the number of all rows.
    :raises ValueError: for an axis that the mesh does not have, what is no matrix, and, on many hosts, a number of rows
        or columns that is not the same in all processes.
    :raises TypeError: for what is no mesh.

    >>> import jax
    >>> import numpy as np
    >>> from numpyro_ndpp import NDPP
    >>> from numpyro_ndpp.devices import shard_rows
    >>> mesh = jax.make_mesh((jax.device_count(),), ("items",))
    >>> V = shard_rows(np.eye(jax.device_count(), 3), mesh)
    >>> NDPP(V).num_items == jax.device_count()
    True
    """
    mesh = check_axis("mesh", mesh, axis)
    if np.ndim(features) != 2:
        raise ValueError(f"features must be a matrix (n, d), got shape {np.shape(features)}")
    n, d = features.shape
    check_same("features: the shape", [n, d])
    rows = -(-n // mesh.shape[axis]) * mesh.shape[axis]
    dtype = jax.dtypes.canonicalize_dtype(features.dtype)

    def part(index: Any) -> np.ndarray:
        first, last, _ = index[0].indices(rows)
        own = np.asarray(features[min(first, n) : min(last, n)], dtype)
        return np.concatenate([own, np.zeros((last - first - len(own), d), dtype)]) if len(own) < last - first else own

    return jax.make_array_from_callback((rows, d), NamedSharding(mesh, PartitionSpec(axis)), part)


def check_same(what: str, numbers: Any) -> None:
    """Refuse numbers that differ from process to process; on one host there is nothing to compare.

    :raises ValueError: with the numbers of every process, in all of them.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    # As bytes: the hosts may be without 64-bit numbers.
    own = np.frombuffer(np.asarray(numbers, np.int64).tobytes(), np.uint8)
    given = np.asarray(multihost_utils.process_allgather(own)).reshape(jax.process_count(), -1)
    by_process = [np.frombuffer(row.tobytes(), np.int64).tolist() for row in given]
    if any(numbers != by_process[0] for numbers in by_process):
        listed = ", ".join(f"{numbers} in process {i}" for i, numbers in enumerate(by_process))
        raise ValueError(f"{what} must be the same in all processes, got {listed}")
