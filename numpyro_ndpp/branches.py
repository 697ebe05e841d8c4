"""A condition that stays one within vmap: what few members of a batch need is not computed where none does.

Within vmap ``lax.cond`` becomes a choice between two results, both of which are computed for every member.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = ["where_needed"]


@jax.custom_batching.custom_vmap
def _any_of_batch(needed: Array) -> Array:
    return needed


@_any_of_batch.def_vmap
def _any_of_batch_vmap(axis_size: int, in_batched: list[bool], needed: Array) -> tuple[Array, bool]:
    return _any_of_batch(jnp.any(needed, axis=0)), False


def where_needed(needed: Array, function: Callable[[], Any], otherwise: Any) -> Any:
    """``function()`` where it is needed, else ``otherwise``; computed if any member of a batch needs it.

    :param otherwise: a pytree of arrays like that of the function's, or a function that computes one: then what is
        large is not copied.
    """
    compute_otherwise = otherwise if callable(otherwise) else lambda: otherwise

    def compute() -> Any:
        return jax.tree.map(lambda new, old: jnp.where(needed, new, old), function(), compute_otherwise())

    return lax.cond(_any_of_batch(needed), compute, compute_otherwise)
