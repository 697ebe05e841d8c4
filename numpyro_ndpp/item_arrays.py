"""Arrays of a fit on the devices of a mesh and back: those with a row for each item by rows, the others on all devices.

JAX splits an axis over P devices only if P divides its length. So rows of zeros follow the last item wherever an array
is kept, and are cut off wherever something is computed or written: what is written does not depend on P.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from numpyro_ndpp.devices import ITEMS

__all__ = ["ItemArrays"]


class ItemArrays(NamedTuple):
    """Where the arrays of a fit of ``num_items`` items are: on the mesh, or without one on a single device."""

    num_items: int
    mesh: Mesh | None

    @property
    def num_rows(self) -> int:
        """The rows of an array as it is kept."""
        number = 1 if self.mesh is None else self.mesh.shape[ITEMS]
        return -(-self.num_items // number) * number

    def context(self) -> Any:
        """In which programs run: distributions within them see the mesh."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    # --- Within programs ---------------------------------------------------------------------------------------------

    def keeping(self, function: Callable) -> Callable:
        """The function, with results as they are kept."""
        if self.mesh is None:
            return function
        return lambda *arguments: jax.tree.map(self._keep, function(*arguments))

    def given_whole(self, function: Callable, shapes: Callable[[Any], Any]) -> Callable:
        """``function(state, (baskets, *by_item), numbers, ...)``, for a state and data that are kept.

        :param shapes: the shapes of the state by the numbers: an array may happen to have as many rows as are kept.
        """
        if self.mesh is None:
            return function

        def call(state: Any, data: tuple[Any, ...], numbers: Any, *others: Any) -> Any:
            state = jax.tree.map(_cut, state, shapes(numbers))
            baskets, *by_item = data
            whole = jax.tree.map(lambda kept: kept[: self.num_items], by_item)
            return function(state, (baskets, *whole), numbers, *others)

        return call

    def _keep(self, array: Array) -> Array:
        by_item = self._is_by_item(array.shape)
        if by_item:
            array = jnp.pad(array, [(0, self.num_rows - len(array)), *[(0, 0)] * (array.ndim - 1)])
        return lax.with_sharding_constraint(array, self._sharding(by_item))

    def _is_by_item(self, shape: tuple[int, ...]) -> bool:
        return len(shape) > 0 and shape[0] == self.num_items

    def _sharding(self, by_item: bool) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(ITEMS) if by_item else PartitionSpec())

    # --- Between processes and devices -------------------------------------------------------------------------------

    def make(self, function: Callable[[], Any]) -> Any:
        """What a function without arguments makes, as it is kept; no device ever has the whole of it."""
        return function() if self.mesh is None else jax.jit(self.keeping(function))()

    def place(self, array: np.ndarray) -> Array:
        """An array as it is kept. Every process has the whole of it, and places the rows of its own devices."""
        if self.mesh is None:
            return jnp.asarray(array)
        array = np.asarray(array)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        by_item = self._is_by_item(array.shape)
        shape = (self.num_rows, *array.shape[1:]) if by_item else array.shape

        def part(index: Any) -> np.ndarray:
            own = array[index]
            missing = len(range(*index[0].indices(shape[0]))) - len(own) if by_item else 0
            return np.pad(own, [(0, missing), *[(0, 0)] * (array.ndim - 1)]) if missing else own

        return jax.make_array_from_callback(shape, self._sharding(by_item), part)

    def fetch(self, array: Array, shape: tuple[int, ...]) -> np.ndarray:
        """The whole of an array that has the shape, in the memory of every process."""
        if not array.is_fully_addressable and not array.is_fully_replicated:
            from jax.experimental import multihost_utils

            array = multihost_utils.process_allgather(array, tiled=True)
        return np.asarray(array)[: shape[0]] if shape else np.asarray(array)


def _cut(kept: Array, like: Any) -> Array:
    return kept[: like.shape[0]] if like.shape else kept
