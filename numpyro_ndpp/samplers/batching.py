"""Many draws of one target by one program: side by side as far as memory allows, those of like sizes together.

A draw is a function of its key alone, not of how many others are made beside it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.platforms import platform

# No step of a draw has this number: the key of its size.
_OF_THE_SIZE = 2**32 - 1


def chunk_size(bytes_per_draw: int) -> int:
    """How many draws are made side by side, by what one of them takes."""
    return max(1, platform().draw_chunk_bytes // bytes_per_draw)


def side_by_side(draw: Callable[..., Any], *arguments: Any) -> Any:
    """``draw`` over the leading axis of its arguments."""
    if len(jax.tree.leaves(arguments)[0]) == 1:
        return jax.tree.map(lambda array: array[None], draw(*jax.tree.map(lambda array: array[0], arguments)))
    return jax.vmap(draw)(*arguments)


def in_chunks(draw: Callable[..., Any], chunk: int, number: Array | int, *arguments: Any) -> Any:
    """``draw`` of arguments (s, ...), arrays or pytrees of them, at most ``chunk`` at a time; the first ``number``.

    :param draw: takes arguments (c, ...) and gives a pytree of arrays (c, ...).
    """
    length = len(jax.tree.leaves(arguments)[0])
    chunk = min(length, 2 ** int(math.log2(chunk)))
    num_chunks = -(-length // chunk)
    if num_chunks == 1:
        return draw(*arguments)
    extra = num_chunks * chunk - length
    filled = jax.tree.map(lambda array: jnp.concatenate([array, array[:extra]]) if extra else array, arguments)

    def parts(first: Array | int) -> Any:
        return jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, first, chunk), filled)

    def fill(index: Array, drawn: Any) -> Any:
        first = index * chunk
        new = draw(*parts(first))
        return jax.tree.map(lambda all, some: lax.dynamic_update_slice_in_dim(all, some, first, 0), drawn, new)

    shapes = jax.eval_shape(draw, *parts(0))
    empty = jax.tree.map(lambda shape: jnp.zeros((num_chunks * chunk, *shape.shape[1:]), shape.dtype), shapes)
    drawn = lax.fori_loop(0, (number + chunk - 1) // chunk, fill, empty)
    return jax.tree.map(lambda array: array[:length], drawn)


def draw_sizes(size_logits: Array, keys: Array) -> Array:
    """The sizes (s,) of subsets by their law (d+1,)."""
    cumulative = jnp.cumsum(jax.nn.softmax(size_logits))

    def draw(key: Array) -> Array:
        u = random.uniform(random.fold_in(key, _OF_THE_SIZE), (), size_logits.dtype)
        return jnp.minimum(jnp.sum(cumulative <= u * cumulative[-1]), len(size_logits) - 1)

    return jax.vmap(draw)(keys)


def by_size(draw: Callable[[Array, Array], Array], chunk: int, number: Array | int, sizes: Array, keys: Array) -> Array:
    """Subsets (s, w) of the sizes (s,), of which the first ``number`` are made, those of like sizes in one chunk."""
    length = len(sizes)
    sizes = jnp.where(jnp.arange(length) < number, sizes, 0)  # what is not asked for takes no time
    order = jnp.argsort(jnp.where(jnp.arange(length) < number, sizes, jnp.iinfo(sizes.dtype).max))
    drawn = in_chunks(draw, chunk, number, sizes[order], keys[order])
    return jnp.zeros_like(drawn).at[order].set(drawn, unique_indices=True)


def until_accepted(attempt: Callable[[Array], tuple[Array, Array]], possible: Array, most: int, width: int) -> Array:
    """The first subset (width,) that is accepted; -1 throughout if none is.

    :param attempt: a subset, by the number of attempts before it, and whether it is accepted.
    :param possible: whether to try at all.
    :param most: attempts before the draw is given up.
    """

    def again(carry: tuple[Array, Array, Array]) -> Array:
        number, _, accepted = carry
        return possible & ~accepted & (number < most)

    def once_more(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return carry[0] + 1, *attempt(carry[0])

    start = jnp.asarray(0), jnp.full(width, -1, jnp.int32), jnp.asarray(False)
    _, subset, accepted = lax.while_loop(again, once_more, start)
    return jnp.where(accepted, subset, -1)
