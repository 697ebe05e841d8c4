"""A draw by circles, stage by stage: its items, its slots, and how it is made anew where rounding led it astray.

:mod:`.contour` draws subsets of one size by it, :mod:`.bands` those of like sizes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.samplers.circle import Stage
from numpyro_ndpp.samplers.factors import Factors, enter, join, query
from numpyro_ndpp.samplers.tree import Tree, descend_symmetric

# Rounding may lead a descent to where there is no mass; then the draw is made again.
_MAX_ATTEMPTS = 20


class ContourInfo(NamedTuple):
    """How a draw went, for each of its items in order.

    ``rho`` (w,) is the sum of the weights w_j over that of their magnitudes, one where nothing cancels. ``mass_error``
    (w,) is what the query's mass is off from the number of missing items, some roundings over rho.
    """

    rho: Array
    mass_error: Array


class Draw(NamedTuple):
    """A draw on its way: its items (w,), the pinned ones first, and how it went."""

    items: Array
    found: Array
    info: ContourInfo

    @classmethod
    def empty(cls, n: int, width: int, dtype: jnp.dtype, pinned: Array) -> "Draw":
        """A draw that has nothing but its pinned items (j,), and room for ``width`` others."""
        items = jnp.append(pinned.astype(jnp.int32), jnp.full(width, n, jnp.int32))
        return cls(items, jnp.asarray(True), ContourInfo(jnp.ones(len(items), dtype), jnp.zeros(len(items), dtype)))


class Slots(NamedTuple):
    """The slots of a draw: ``size`` of the first ``room`` are taken in the end, and those from ``first`` on are drawn.

    Between the pinned items and the first one that is drawn they may be empty. Those before ``begin`` are so in all
    draws that are made side by side.
    """

    room: Array | int
    size: Array | int
    first: Array | int
    begin: Array | int


def run_stage(tree: Tree, C: Array, stage: Stage, draw: Draw, uniforms: Array, slots: Slots) -> Draw:
    """The items of one stage, by numbers (w, decisions). The item drawn while m are missing has the slot room - m."""
    n, room = tree.num_items, slots.room
    num_before = room - stage.high
    factors = enter(tree, stage, slots.size, draw.items, slots.begin, num_before)

    def take(slot: Array, carry: tuple[Draw, Factors]) -> tuple[Draw, Factors]:
        draw, factors = carry
        Q, rho = query(stage, factors, slots.begin, slot)
        item, found = descend_symmetric(tree, Q, uniforms[slot], draw.items)
        is_empty = slot < slots.first
        item = jnp.where(found & ~is_empty, item, n)
        factors = join(stage, factors, tree.rows(item), slots.begin, slot)
        info = ContourInfo(
            rho=draw.info.rho.at[slot].set(rho),
            mass_error=draw.info.mass_error.at[slot].set(jnp.sum(Q * C) - (room - slot)),
        )
        items = draw.items.at[slot].set(item.astype(draw.items.dtype))
        # A sum that is nothing but rounding is no law to draw from.
        found &= rho > factors.weights.size * jnp.finfo(rho.dtype).eps
        return Draw(items, draw.found & (found | is_empty), info), factors

    return lax.fori_loop(num_before, room - stage.low, take, (draw, factors))[0]


def until_found(attempt: Callable[[Array], Draw], key: Array, start: Draw) -> Draw:
    """A draw that found all its items, made anew where rounding led a descent to a place without mass."""

    def failed(carry: tuple[Array, Draw]) -> Array:
        number, draw = carry
        return ((number == 0) | ~draw.found) & (number < _MAX_ATTEMPTS)

    def once_more(carry: tuple[Array, Draw]) -> tuple[Array, Draw]:
        return carry[0] + 1, attempt(random.fold_in(key, carry[0]))

    return lax.while_loop(failed, once_more, (jnp.asarray(0), start))[1]


def uniforms_of(tree: Tree, num_items: int, key: Array) -> Array:
    """All the random numbers (w, decisions) of a draw."""
    return random.uniform(key, (num_items, tree.num_decisions), tree.X.dtype)


def lost_in_rounding(dtype: jnp.dtype) -> str:
    """Why a draw by circles was not made."""
    return (
        f"their probability is so small beside those of other sizes that nothing but rounding is left of it in {dtype}"
    )
