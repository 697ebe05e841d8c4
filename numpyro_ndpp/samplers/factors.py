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
# only when it is needed; on an accelerator a loop over pages costs more than it saves.
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
    _, num_upper, d, _ = stage.right.shape
    dtype = stage.right.dtype
    num_pages = -(-slots // _PAGE)
    if num_pages == 1 and slots >= _FEW and platform().is_cpu:
        num_pages = 2
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


def _sum_over_pages(factors: Factors, used: Array | int, of_page: Callable[[Array, Array], Any]) -> Any:
    """The sum of ``of_page(left, right)`` over the pages on which the first ``used`` slots lie."""
    num_pages, slots = factors.left.shape[0], factors.left.shape[3]
    if num_pages == 1:
        return of_page(factors.left[0], factors.right[0])

    def add(page: Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, of_page(factors.left[page], factors.right[page]))

    shapes = jax.eval_shape(of_page, factors.left[0], factors.right[0])
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return lax.fori_loop(0, (used + slots - 1) // slots, add, zeros)


def query(stage: Stage, factors: Factors, used: Array | int) -> tuple[Array, Array]:
    """The query (d, d) for the next item, symmetric, where ``used`` slots are taken, and ρ."""
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

    Q = base - symmetric_part(_sum_over_pages(factors, used, of_page))
    return Q * (stage.units[:, None] * stage.units), total / magnitude


def _condition(factors: Factors, left: Complex, right: Complex, x: Array, slot: Array) -> Factors:
    """The factors given one more item, with x (d,) its part of the basis, R_j x left (d, J) and x R_j right (J, d)."""
    slots = factors.left.shape[3]

    def of_page(L: Array, R: Array) -> tuple[Complex, Complex]:
        to_x = matmul(R, x)  # (2, s, J)
        from_x = jnp.einsum("dcsj,d->csj", L, x, precision="highest")
        if not platform().is_cpu:  # which sums while it reads
            by_left, by_right = multiply((L[:, 0], L[:, 1]), to_x), multiply(R, from_x[..., None])
            return (by_left[0].sum(1), by_left[1].sum(1)), (by_right[0].sum(0), by_right[1].sum(0))

        def add(place: Array, total: tuple[Complex, Complex]) -> tuple[Complex, Complex]:
            by_left = multiply((L[:, 0, place], L[:, 1, place]), to_x[:, place])
            by_right = multiply(R[:, place], from_x[:, place, :, None])
            return jax.tree.map(jnp.add, total, (by_left, by_right))

        zeros = jax.tree.map(jnp.zeros_like, ((left[0], left[1]), (right[0], right[1])))
        return lax.fori_loop(0, slots, add, zeros)

    from_left, from_right = _sum_over_pages(factors, slot, of_page)
    left = left[0] - from_left[0], left[1] - from_left[1]
    right = right[0] - from_right[0], right[1] - from_right[1]
    p = matmul(x, left[0]), matmul(x, left[1])
    squared = p[0] ** 2 + p[1] ** 2
    usable = squared > 0
    inverse = jnp.where(usable, 1 / jnp.where(usable, squared, 1.0), 0.0)
    left = multiply(left, (p[0] * inverse, -p[1] * inverse))
    page, place = slot // slots, slot % slots
    weights = jnp.stack(multiply(factors.weights, p))
    return Factors(
        left=factors.left.at[page, :, :, place].set(jnp.stack(left, axis=1)),
        right=factors.right.at[page, :, place].set(jnp.stack(right)),
        weights=_normalized(weights),
        basis=factors.basis.at[slot].set(x) if len(factors.basis) else factors.basis,
    )


def join(stage: Stage, factors: Factors, x: Array, slot: Array) -> Factors:
    """The factors given one more item, with features x (d,)."""
    x = _orthogonal_part(x * stage.units, factors.basis)
    return _condition(factors, matmul(stage.left, x), matmul(stage.right, x), x, slot)


def enter(tree: Tree, stage: Stage, size: int, items: Array, num_before: Array) -> Factors:
    """The factors of a stage given the first of the items (w,); there is room for all."""
    factors = _start(stage, size, len(items))
    d, num_upper = stage.right.shape[-1], stage.weights.shape[1]
    is_before = jnp.arange(len(items)) < num_before
    rows = jnp.where(is_before[:, None], tree.rows(items) * stage.units, 0.0)

    def orthogonalize(slot: Array, rows: Array) -> Array:
        before = jnp.where(jnp.arange(len(items))[:, None] < slot, rows, 0)
        return rows.at[slot].set(_orthogonal_part(rows[slot], before))

    def given_those_before() -> Factors:
        units = lax.fori_loop(0, num_before, orthogonalize, rows) if rows.dtype == jnp.float32 else rows
        lefts = matmul(units, stage.left.reshape(-1, d).T).reshape(-1, 2, d, num_upper)
        rights = matmul(units, stage.right.reshape(-1, d).T).reshape(-1, 2, num_upper, d)

        def again(slot: Array, factors: Factors) -> Factors:
            return _condition(factors, lefts[slot], rights[slot], units[slot], slot)

        return lax.fori_loop(0, num_before, again, factors)

    return lax.cond(num_before > 0, given_those_before, lambda: factors)
