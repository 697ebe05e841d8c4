"""Many draws of one kernel by one program: side by side as far as memory allows, those of like sizes together.

Outside jit the number of draws is rounded up to a power of two for what is compiled; only as many as were asked for are
made. A draw is a function of its key alone, not of how many others are made beside it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.util import not_jax_tracer

from numpyro_ndpp.platforms import platform
from numpyro_ndpp.programs import program
from numpyro_ndpp.samplers.base import Sampler

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


@program("often", static_argnums=(0, 1, 2))
def _sample(sampler: Sampler, length: int, num_kernels: int | None, states: Any, key: Array, number: Array) -> Array:
    """Subsets (length, w) of one kernel, or (kernels, length, w)."""
    if num_kernels is None:
        return sampler.sample(states, random.split(key, length), number)
    keys = jax.vmap(lambda key: random.split(key, length))(random.split(key, num_kernels))
    if length == 1:
        return jax.vmap(lambda state, keys: sampler.sample(state, keys, number))(states, keys)
    # A sampler has as many draws of one kernel at a time as memory allows.
    return lax.map(lambda kernel: sampler.sample(kernel[0], kernel[1], number), (states, keys))


def sample(sampler: Sampler, states: Any, num_kernels: int | None, key: Array, num_draws: int) -> Array | np.ndarray:
    """Subsets (draws, w) of one kernel (None), or (kernels, draws, w) of several, prepared by the sampler."""
    length = 2 ** (num_draws - 1).bit_length()
    drawn = _sample(sampler, length, num_kernels, states, key, num_draws)
    if not_jax_tracer(drawn):
        drawn = np.asarray(drawn)  # a slice of a JAX array would be a program for each number of draws
    return drawn[:num_draws] if num_kernels is None else drawn[:, :num_draws]
