"""What is padded, computed at about its own width: a few widths are compiled, and each case takes the narrowest.

A basket of 5 padded to 100 would cost up to 20³ times its share.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def power_of_two(number: int) -> int:
    """The smallest that is at least the number, and one: what has room for it needs no other program for one more."""
    return 1 << max(number - 1, 0).bit_length()


def narrowing_widths(width: int, smallest: int, share: float) -> tuple[int, ...]:
    """Widths up to the given one, increasing, each about that share of the next; one at most is below ``smallest``."""
    widths = [width]
    while widths[0] > smallest:
        widths.insert(0, math.ceil(share * widths[0]))
    return tuple(widths)


@functools.cache
def _place_among(widths: tuple[int, ...]) -> Callable[[Array], Array]:
    """The function that gives the place of the smallest of the widths that holds all the sizes.

    Of a batch it gives one place, for the largest: then the switch over widths stays a switch within vmap, where it
    would become a computation at every width, and several batches of factorisations at once.
    """

    @jax.custom_batching.custom_vmap
    def place(sizes: Array) -> Array:
        # No table of widths: under vmap a condition around this hands it a copy for each, which JAX does not allow.
        largest = jnp.max(sizes)
        return sum(((largest > w).astype(jnp.int32) for w in widths), jnp.zeros((), jnp.int32))

    @place.def_vmap
    def _(axis_size: int, in_batched: list[bool], sizes: Array) -> tuple[Array, bool]:
        return place(jnp.max(sizes, axis=0)), False

    return place


def at_own_width(function: Callable[[int], Callable], widths: tuple[int, ...], sizes: Array, *operands: Array) -> Any:
    """``function(w)(*operands)`` for the smallest of the widths that holds all the sizes."""
    if len(widths) == 1:
        return function(widths[0])(*operands)
    return lax.switch(_place_among(widths)(sizes), [function(w) for w in widths], *operands)
