r"""The thin factors of the contour sampler: what conditioning on items takes off the R_j of a stage.

The R_j are the same for all draws and never copied. What an item takes off them is an outer product,

.. math:: R_j \leftarrow R_j - R_j x x^\top R_j / (x^\top R_j x) ,

kept as two vectors for each item and node. The query for the next item is a product of two matrices of those.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.circle import Complex, Stage, multiply, turn
from numpyro_ndpp.samplers.packing import symmetric_part, unpack
from numpyro_ndpp.samplers.tree import Tree

# So many items' factors, or fewer, make a page. On a CPU even a few items have two pages, of which the second is read
# only when it is needed; on an accelerator, which reads many draws' pages at once, a loop over few costs more than it
# saves.
_PAGE = 16
_FEW = 8


class Factors(NamedTuple):
    """What conditioning on items has subtracted from R_j, Σ_m left_m right_mᵀ, and the weights w_j of the J nodes.

    Items are kept in pages of s slots, of which only those in use are read. Complex numbers are pairs of real ones,
    along an axis of two. What is known of an item is the part of its features, in the stage's units, that is orthogonal
    to those of the items before it.
    """

    left: Array  # (pages, d, 2, s, J)
    right: Array  # (pages, 2, s, J, d)
    weights: Array  # (2, J)
    basis: Array  # (pages · s, d) orthonormal rows; in float64 none


def _normalized(weights: Array) -> Array:
    largest = jnp.sqrt(jnp.max(jnp.sum(weights**2, axis=0)))
    return weights / jnp.where(largest > 0, largest, 1.0)


def _start(stage: Stage, size: Array | int, slots: int) -> Factors:
    """Nothing conditioned on yet, room for so many items."""
    d, _, num_upper, _ = stage.right.shape
    dtype = stage.right.dtype
    num_pages = -(-slots // _PAGE)
    if platform().is_cpu and num_pages == 1 and slots >= _FEW:
        num_pages = 2
    if not platform().is_cpu and num_pages > 1:
        num_pages = -(-slots // _FEW)
    slots = -(-slots // num_pages)
    return Factors(
        left=jnp.zeros((num_pages, d, 2, slots, num_upper), dtype),
        right=jnp.zeros((num_pages, 2, slots, num_upper, d), dtype),
        weights=turn(stage.weights, size * stage.angles),
        basis=jnp.zeros((num_pages * slots if dtype == jnp.float32 else 0, d), dtype),
    )


def _orthogonal_part(x: Array, basis: Array) -> Array:
    """What of x (d,) is orthogonal to the rows of ``basis`` (m, d), of length one; nothing if x is zero.

    In float64, which has the digits, x itself.
    """
    if x.dtype == jnp.float64:
        return x
    for _ in range(2):  # once more for what rounding has left
        x = x - matmul(matmul(basis, x), basis)
        length = jnp.sqrt(jnp.sum(x**2))
        x = x / jnp.where(length > 0, length, 1.0)
    return x


def _sum_over_pages(
    factors: Factors, first: Array | int, end: Array | int, of_page: Callable[[Array, Array], Any]
) -> Any:
    """The sum of ``of_page(left, right)`` over the pages on which the slots from ``first`` up to ``end`` lie."""
    num_pages, slots = factors.left.shape[0], factors.left.shape[3]
    if num_pages == 1:
        return of_page(factors.left[0], factors.right[0])

    def add(page: Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, of_page(factors.left[page], factors.right[page]))

    shapes = jax.eval_shape(of_page, factors.left[0], factors.right[0])
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return lax.fori_loop(first // slots, (end + slots - 1) // slots, add, zeros)


def query(stage: Stage, factors: Factors, first: Array | int, end: Array | int) -> tuple[Array, Array]:
    """The query (d, d) for the next item, symmetric, where slots from ``first`` up to ``end`` are taken, and ρ."""
    d = stage.right.shape[-1]
    total = jnp.sum(factors.weights[0])
    magnitude = jnp.sum(jnp.sqrt(jnp.sum(factors.weights**2, axis=0)))
    weights = factors.weights / jnp.where(total > 0, total, 1.0)
    conjugate = weights * jnp.array([[1.0], [-1.0]], weights.dtype)
    base = unpack(matmul(conjugate.reshape(-1), stage.symmetric), d)

    def of_page(left: Array, right: Array) -> Array:
        # Re(w l rᵀ) is one product of real matrices
        real, imag = multiply((left[:, 0], left[:, 1]), weights)
        return matmul(jnp.stack([real, -imag], axis=1).reshape(d, -1), right.reshape(-1, d))

    Q = base - symmetric_part(_sum_over_pages(factors, first, end, of_page))
    return Q * (stage.units[:, None] * stage.units), total / magnitude


def _condition(factors: Factors, left: Complex, right: Complex, x: Array, first: Array | int, slot: Array) -> Factors:
    """The factors given one more item, with x (d,) its part of the basis, R_j x left (d, J) and x R_j right (J, d)."""
    slots = factors.left.shape[3]

    def of_page(L: Array, R: Array) -> tuple[Complex, Complex]:
        if not platform().is_cpu:  # which sums while it reads, and would copy the page for a product
            to_x, from_x = jnp.sum(R * x, axis=-1), jnp.sum(L * x[:, None, None, None], axis=0)
            by_left, by_right = multiply((L[:, 0], L[:, 1]), to_x), multiply(R, from_x[..., None])
            return (by_left[0].sum(1), by_left[1].sum(1)), (by_right[0].sum(0), by_right[1].sum(0))
        to_x = matmul(R, x)  # (2, s, J)
        from_x = jnp.einsum("dcsj,d->csj", L, x, precision="highest")

        def add(place: Array, total: tuple[Complex, Complex]) -> tuple[Complex, Complex]:
            by_left = multiply((L[:, 0, place], L[:, 1, place]), to_x[:, place])
            by_right = multiply(R[:, place], from_x[:, place, :, None])
            return jax.tree.map(jnp.add, total, (by_left, by_right))

        zeros = jax.tree.map(jnp.zeros_like, ((left[0], left[1]), (right[0], right[1])))
        return lax.fori_loop(0, slots, add, zeros)

    from_left, from_right = _sum_over_pages(factors, first, slot, of_page)
    left = left[0] - from_left[0], left[1] - from_left[1]
    right = right[0] - from_right[0], right[1] - from_right[1]
    p = matmul(x, left[0]), matmul(x, left[1])
    squared = p[0] ** 2 + p[1] ** 2
    usable = squared > 0
    inverse = usable / jnp.where(usable, squared, 1.0)
    left = multiply(left, (p[0] * inverse, -p[1] * inverse))
    page, place = slot // slots, slot % slots
    # an empty slot changes nothing
    weights = jnp.where(jnp.any(x != 0), jnp.stack(multiply(factors.weights, p)), factors.weights)
    return Factors(
        left=factors.left.at[page, :, :, place].set(jnp.stack(left, axis=1)),
        right=factors.right.at[page, :, place].set(jnp.stack(right)),
        weights=_normalized(weights),
        basis=factors.basis.at[slot].set(x) if len(factors.basis) else factors.basis,
    )


def join(stage: Stage, factors: Factors, x: Array, first: Array | int, slot: Array) -> Factors:
    """The factors given one more item, with features x (d,), beside those in the slots from ``first`` on."""
    x = _orthogonal_part(x * stage.units, factors.basis)
    return _condition(factors, *_images(stage, x), x, first, slot)


def _images(stage: Stage, x: Array) -> tuple[Array, Array]:
    """R_j x (..., 2, d, J) and x R_j (..., 2, J, d) of features x (..., d)."""
    d = x.shape[-1]
    # The features come first: of many draws each then has its own images in one piece.
    left, right = (matmul(x, side.reshape(d, -1)) for side in (stage.left, stage.right))
    return left.reshape(*x.shape[:-1], *stage.left.shape[1:]), right.reshape(*x.shape[:-1], *stage.right.shape[1:])


def enter(tree: Tree, stage: Stage, size: Array | int, items: Array, first: Array | int, num_before: Array) -> Factors:
    """The factors of a stage of draws of ``size`` items, given the first of the items (w,); there is room for all.

    :param first: the slots before this one are empty.
    """
    factors = _start(stage, size, len(items))
    is_before = jnp.arange(len(items)) < num_before
    rows = jnp.where(is_before[:, None], tree.rows(items) * stage.units, 0.0)

    def orthogonalize(slot: Array, rows: Array) -> Array:
        before = jnp.where(jnp.arange(len(items))[:, None] < slot, rows, 0)
        return rows.at[slot].set(_orthogonal_part(rows[slot], before))

    def given_those_before() -> Factors:
        units = lax.fori_loop(first, num_before, orthogonalize, rows) if rows.dtype == jnp.float32 else rows
        lefts, rights = _images(stage, units)

        def again(slot: Array, factors: Factors) -> Factors:
            return _condition(factors, lefts[slot], rights[slot], units[slot], first, slot)

        return lax.fori_loop(first, num_before, again, factors)

    return lax.cond(num_before > first, given_those_before, lambda: factors)
