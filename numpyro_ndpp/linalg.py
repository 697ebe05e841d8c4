"""Products at full precision, determinants that know when they are zero, and adjugates, which need no inverse."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

# On a GPU a float32 product is done in TF32 (ten bits of mantissa) unless told otherwise.
matmul = partial(jnp.matmul, precision="highest")
# A power of two, so small that nothing multiplied by it is a pivot.
_TINY = 2.0**-40


def column_lengths(C: Array) -> Array:
    """The lengths (d,) of the columns of X from C = XᵀX, one for a column of zeros. No gradient passes through."""
    length = lax.stop_gradient(jnp.sqrt(jnp.diagonal(C)))
    return jnp.where(length > 0, length, 1.0)


class Factorized(NamedTuple):
    """LU factors of diag(r)⁻¹ A diag(c)⁻¹ and the logarithm of det A; -inf where that is zero to rounding."""

    lu: Array
    permutation: Array
    row_scale: Array
    column_scale: Array
    log_det: Array


def factorize(A: Array, row_scale: Array, column_scale: Array) -> Factorized:
    """Factors of a matrix (m, m) whose determinant cannot be negative.

    :param row_scale, column_scale: positive vectors (m,) such that A_ij is at most r_i c_j in magnitude, and so are the
        terms whose sum it is: its rounding error is then eps·r_i c_j.
    """
    m, eps = len(A), jnp.finfo(A.dtype).eps
    lu, pivots, permutation = lax.linalg.lu(A / (row_scale[:, None] * column_scale))
    pivot = jnp.diagonal(lu)
    # A pivot is what is left of an entry, at most one now, after |L||U| was subtracted from it: it is zero if it drowns
    # in the rounding of either. No threshold on the determinant would do: a minor of a hundred items is tiny by nature.
    subtracted = jnp.sum(jnp.abs(jnp.tril(lu, -1)) * jnp.abs(jnp.triu(lu, 1)).T, axis=1)
    nonzero = jnp.all(jnp.abs(pivot) > (m + 8) * eps * (1 + subtracted))
    num_swaps = jnp.sum(pivots != jnp.arange(m))
    positive = nonzero & ((jnp.sum(pivot < 0) + num_swaps) % 2 == 0)
    log_det = jnp.sum(jnp.log(jnp.where(positive, jnp.abs(pivot), 1.0)) + jnp.log(row_scale) + jnp.log(column_scale))
    return Factorized(lu, permutation, row_scale, column_scale, jnp.where(positive, log_det, -jnp.inf))


def inverse_transposed(factors: Factorized) -> Array:
    """A⁻ᵀ (m, m), the gradient of log det A; zero where the determinant is."""
    positive = factors.log_det > -jnp.inf
    identity = jnp.eye(len(factors.lu), dtype=factors.lu.dtype)
    lu = jnp.where(positive, factors.lu, identity)
    half = lax.linalg.triangular_solve(
        lu, identity[factors.permutation], left_side=True, lower=True, unit_diagonal=True
    )
    inverse = lax.linalg.triangular_solve(lu, half, left_side=True, lower=False)
    return jnp.where(positive, inverse.T / (factors.row_scale[:, None] * factors.column_scale), 0.0)


def right_divide(B: Array, A: Array) -> Array:
    """B A⁻¹ of a matrix A (m, m) and rows B (r, m)."""
    return lax.platform_dependent(B, A, cpu=_right_divide_by_factors, default=_right_divide_by_solving)


def _right_divide_by_solving(B: Array, A: Array) -> Array:
    return jnp.linalg.solve(A.T, B.T).T


def _right_divide_by_factors(B: Array, A: Array) -> Array:
    """The same by nothing but LU factors: those of A above a tiny multiple of B have L U = A and, below, B U⁻¹.

    On a CPU the library's solver of triangular systems hands even small ones to threads of its own, which then hold the
    cores that XLA's threads wait for: exact draws took four times as long.
    """
    m = len(A)

    def over_upper(B: Array, A: Array) -> tuple[Array, Array, Array]:
        lu, _, permutation = lax.linalg.lu(jnp.concatenate([A, _TINY * B]))  # no row of B is ever a pivot
        return lu[:m], permutation[:m], lu[m:] / _TINY

    lu, permutation, quotient = over_upper(B, A)
    lower = jnp.tril(lu, -1) + jnp.eye(m, dtype=A.dtype)
    _, _, quotient = over_upper(quotient[:, ::-1], lower[::-1, ::-1])  # a lower triangle read backwards is an upper one
    return jnp.zeros_like(quotient).at[:, permutation].set(quotient[:, ::-1], unique_indices=True)


def thin_product(A: Array, B: Array) -> Array:
    """A B for an A of a few columns, as a sum of outer products, which fuses with what is done to it."""
    return sum((A[:, i, None] * B[i] for i in range(1, A.shape[1])), A[:, 0, None] * B[0])


def determinant(A: Array) -> Array:
    """det A of a matrix (2, 2) or (3, 3), multiplied out."""
    return jnp.sum(A[0] * adjugate(A)[:, 0])


def adjugate(A: Array) -> Array:
    """adj A = det A · A⁻¹ of a matrix (2, 2) or (3, 3), which is there for singular matrices too."""
    if len(A) == 2:
        return jnp.stack([jnp.stack([A[1, 1], -A[0, 1]]), jnp.stack([-A[1, 0], A[0, 0]])])
    return jnp.stack([jnp.cross(A[1], A[2]), jnp.cross(A[2], A[0]), jnp.cross(A[0], A[1])], axis=1)


def log_determinant(A: Array) -> Array:
    """The logarithm of the magnitude of det A, A (m, m) small, by elimination; -inf where a pivot is exactly zero.

    In a loop of a batch this takes the place of ``slogdet``: a library's routine is called once for every matrix on a
    GPU, and on a CPU its calls from within parallel loops may wait for each other forever.
    """
    m = len(A)
    rows = jnp.arange(m)

    def eliminate(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        A, log_det = carry
        best = jnp.argmax(jnp.where(rows >= i, jnp.abs(A[:, i]), -1.0))
        upper, lower = A[best], A[i]
        A = A.at[best].set(lower).at[i].set(upper)
        pivot = upper[i]
        factor = jnp.where(rows > i, A[:, i] / jnp.where(pivot == 0, 1.0, pivot), 0.0)
        return A - factor[:, None] * upper, log_det + jnp.log(jnp.abs(pivot))

    return lax.fori_loop(0, m, eliminate, (A, jnp.zeros((), A.dtype)))[1]
