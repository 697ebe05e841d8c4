"""Many draws of one kernel: side by side as far as memory allows, and those of like sizes together.

A draw costs its width, which is static under jit. Where the size varies, it is drawn first, from its law; outside jit
the draws are then grouped by size, each group at about its own width.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.util import not_jax_tracer

from numpyro_ndpp.kernel import halving_widths

# What the draws side by side take together: within a cache, or as many as fill an accelerator.
_CHUNK_BYTES = {"cpu": 16 * 2**20}
_CHUNK_BYTES_ELSEWHERE = 4 * 2**30
_SMALLEST_WIDTH = 8


def chunk_size(bytes_per_draw: int) -> int:
    """How many draws are made side by side, by what one of them takes."""
    return max(1, _CHUNK_BYTES.get(jax.default_backend(), _CHUNK_BYTES_ELSEWHERE) // bytes_per_draw)


def in_chunks(draw: Callable[..., Any], chunk: int, *arguments: Array) -> Any:
    """``draw`` over the leading axis (s,) of its arguments, at most ``chunk`` of them side by side."""
    number = len(arguments[0])
    if number == 1:
        return jax.tree.map(lambda array: array[None], draw(*(array[0] for array in arguments)))
    num_chunks = max(1, -(-number // chunk))
    if num_chunks == 1:
        return jax.vmap(draw)(*arguments)
    chunk = -(-number // num_chunks)
    extra = num_chunks * chunk - number
    filled = (jnp.concatenate([array, array[:extra]]) for array in arguments)
    chunks = tuple(array.reshape(num_chunks, chunk, *array.shape[1:]) for array in filled)
    draws = lax.map(lambda chunk: jax.vmap(draw)(*chunk), chunks)
    return jax.tree.map(lambda array: array.reshape(num_chunks * chunk, *array.shape[2:])[:number], draws)


@jax.jit
def draw_sizes(size_logits: Array, keys: Array) -> tuple[Array, Array]:
    """The sizes (s,) of subsets, and keys (s,) to go on with."""

    def draw(key: Array) -> tuple[Array, Array]:
        size_key, key = random.split(key)
        return random.categorical(size_key, size_logits), key

    return jax.vmap(draw)(keys)


def draws_of_varying_size(
    draws: Callable[[int, Array, Array], Array],
    chunk_of_width: Callable[[int], int],
    size_logits: Array,
    n: int,
    max_size: int,
    keys: Array,
) -> Array:
    """Subsets (s, w) of an NDPP, w = ``max_size``, padded with n; -1 throughout where none can be drawn.

    :param draws: ``draws(width, sizes, keys)`` gives subsets (s, width) of the sizes (s,).
    :param chunk_of_width: how many draws of a width are made at a time.
    """
    sizes, keys = draw_sizes(size_logits, keys)
    if not not_jax_tracer(sizes):
        return draws(max_size, sizes, keys)
    sizes = np.asarray(sizes)
    widths = np.array(halving_widths(max_size, _SMALLEST_WIDTH))
    subsets = np.full((len(sizes), max_size), n, np.int32)
    by_width = np.searchsorted(widths, sizes)
    for index in np.unique(by_width):
        width = int(widths[index])
        members = np.flatnonzero(by_width == index)
        members = members[np.argsort(sizes[members], kind="stable")]  # draws of like cost side by side
        # A power of two: no more than a few shapes are ever compiled for a width.
        chunk = min(2 ** (len(members) - 1).bit_length(), chunk_of_width(width))
        for first in range(0, len(members), chunk):
            rows = members[first : first + chunk]
            filled = np.resize(rows, chunk)
            drawn = np.asarray(draws(width, jnp.asarray(sizes[filled]), keys[filled]))[: len(rows)]
            subsets[rows, :width] = drawn
            subsets[rows[(drawn < 0).any(axis=1)]] = -1
    return jnp.asarray(subsets)


def pinned_items(max_size: int, pinned: Array | None, width: int | None) -> tuple[Array, int]:
    """The items (j,) that are in every subset, padded, and the largest number of others.

    :param max_size: the largest size of a subset, pinned items included.
    :param pinned: the items; None is none.
    :param width: how many others there may be; None says that no pinned item is padding.
    """
    items = jnp.zeros(0, jnp.int32) if pinned is None else pinned
    return items, max_size - len(items) if width is None else width
