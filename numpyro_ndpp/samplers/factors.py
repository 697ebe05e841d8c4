r"""The thin factors of the contour sampler: what conditioning on items takes off the R_j of a stage.

The R_j are the same for all draws and never copied. What an item takes off them is an outer product,

.. math:: R_j \leftarrow R_j - R_j x x^\top R_j / (x^\top R_j x) ,

kept as two vectors for each item and node. The query for the next item is a product of two matrices of those.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.circle import Stage, multiply, turn
from numpyro_ndpp.samplers.packing import symmetric_part, unpack
from numpyro_ndpp.samplers.tree import Tree

# So many items' factors, or fewer, make a page. On a CPU even a few items have two pages, of which the second is read
# only when it is needed. An accelerator, which reads many draws' pages at once, gains by smaller ones, and by the
# smallest unless there are many.
_PAGE, _SMALL_PAGE, _SMALLEST_PAGE = 16, 8, 4
_FEW, _MANY = 8, 32


class Factors(NamedTuple):
    """What conditioning on items has subtracted from R_j, Σ_m left_m right_mᵀ, and the weights w_j of the J nodes.

    Items are kept in pages of s slots, of which only those in use are read. Complex numbers are pairs of real ones,
    along an axis of two. What is known of an item is the part of its features, in the stage's units, that is orthogonal
    to those of the items before it.
    """

    sides: Array  # (pages, s, 2, 2, J, d) real and imaginary part of left and of right
    weights: Array  # (2, J)
    basis: Array  # (pages · s, d) orthonormal rows; in float64 none


def _normalized(weights: Array) -> Array:
    largest = jnp.sqrt(jnp.max(jnp.sum(weights**2, axis=0)))
    return weights / jnp.where(largest > 0, largest, 1.0)


def _start(stage: Stage, size: Array | int, slots: int) -> Factors:
    """Nothing conditioned on yet, room for so many items."""
    d, dtype = len(stage.sides), stage.sides.dtype
    on_cpu = platform().is_cpu
    page = _PAGE if on_cpu else _SMALL_PAGE if slots > _MANY else _SMALLEST_PAGE
    num_pages = max(-(-slots // page), 2 if on_cpu and slots >= _FEW else 1)
    slots = -(-slots // num_pages)
    return Factors(
        sides=jnp.zeros((num_pages, slots, *stage.sides.shape[1:]), dtype),
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


def _sum_over_pages(factors: Factors, first: Array | int, end: Array | int, of_page: Callable[[Array], Array]) -> Array:
    """The sum of ``of_page(sides)`` over the pages on which the slots from ``first`` up to ``end`` lie."""
    num_pages, slots = factors.sides.shape[:2]
    if num_pages == 1:
        return of_page(factors.sides[0])

    def add(page: Array, total: Array) -> Array:
        return total + of_page(factors.sides[page])

    shape = jax.eval_shape(of_page, factors.sides[0])
    zeros = jnp.zeros(shape.shape, shape.dtype)
    return lax.fori_loop(first // slots, (end + slots - 1) // slots, add, zeros)


def query(stage: Stage, factors: Factors, first: Array | int, end: Array | int) -> tuple[Array, Array]:
    """The query (d, d) for the next item, symmetric, where slots from ``first`` up to ``end`` are taken, and ρ."""
    d = len(stage.sides)
    total = jnp.sum(factors.weights[0])
    magnitude = jnp.sum(jnp.sqrt(jnp.sum(factors.weights**2, axis=0)))
    weights = factors.weights / jnp.where(total > 0, total, 1.0)
    conjugate = weights * jnp.array([[1.0], [-1.0]], weights.dtype)
    base = unpack(matmul(conjugate.reshape(-1), stage.symmetric), d)

    def of_page(sides: Array) -> Array:
        # Re(w l rᵀ) is one product of real matrices
        real, imag = multiply((sides[:, 0, 0], sides[:, 1, 0]), weights[..., None])
        return matmul(jnp.stack([real, -imag], axis=1).reshape(-1, d).T, sides[:, :, 1].reshape(-1, d))

    Q = base - symmetric_part(_sum_over_pages(factors, first, end, of_page))
    return Q * (stage.units[:, None] * stage.units), total / magnitude


def _condition(factors: Factors, images: Array, x: Array, first: Array | int, slot: Array) -> Factors:
    """The factors given one more item: x (d,) is its part of the basis, R_j x and x R_j its images (2, 2, J, d)."""
    slots = factors.sides.shape[1]

    def taken(sides: Array, along: Array) -> Array:
        """What an item takes off: its right side times what is along its left one, and the other way round."""
        return jnp.stack(multiply(sides, along[:, ::-1, :, None]))

    def of_page(sides: Array) -> Array:
        if not platform().is_cpu:  # which sums while it reads, and would copy the page for a product
            return jnp.sum(jax.vmap(taken)(sides, jnp.sum(sides * x, axis=-1)), axis=0)
        along = matmul(sides, x)

        def add(place: Array, total: Array) -> Array:
            return total + taken(sides[place], along[place])

        return lax.fori_loop(0, slots, add, jnp.zeros_like(images))

    images = images - _sum_over_pages(factors, first, slot, of_page)
    p = matmul(images[:, 0], x)
    squared = p[0] ** 2 + p[1] ** 2
    usable = squared > 0
    inverse = usable / jnp.where(usable, squared, 1.0)
    left = jnp.stack(multiply(images[:, 0], jnp.stack([p[0] * inverse, -p[1] * inverse])[..., None]))
    # an empty slot changes nothing
    weights = jnp.where(jnp.any(x != 0), jnp.stack(multiply(factors.weights, p)), factors.weights)
    return Factors(
        sides=factors.sides.at[slot // slots, slot % slots].set(jnp.stack([left, images[:, 1]], axis=1)),
        weights=_normalized(weights),
        basis=factors.basis.at[slot].set(x) if len(factors.basis) else factors.basis,
    )


def join(stage: Stage, factors: Factors, x: Array, first: Array | int, slot: Array) -> Factors:
    """The factors given one more item, with features x (d,), beside those in the slots from ``first`` on."""
    x = _orthogonal_part(x * stage.units, factors.basis)
    return _condition(factors, _images(stage, x), x, first, slot)


def _images(stage: Stage, x: Array) -> Array:
    """R_j x and x R_j (..., 2, 2, J, d) of features x (..., d)."""
    return matmul(x, stage.sides.reshape(len(stage.sides), -1)).reshape(*x.shape[:-1], *stage.sides.shape[1:])


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
        images = _images(stage, units)

        def again(slot: Array, factors: Factors) -> Factors:
            return _condition(factors, images[slot], units[slot], first, slot)

        return lax.fori_loop(first, num_before, again, factors)

    return lax.cond(num_before > first, given_those_before, lambda: factors)
