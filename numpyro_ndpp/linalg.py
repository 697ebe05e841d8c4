"""Products at full precision, and the logarithm of a determinant that knows when it is zero."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import lu_solve

# On a GPU a float32 product is done in TF32 (ten bits of mantissa) unless told otherwise.
matmul = partial(jnp.matmul, precision="highest")


def _factorize(A: Array, scale: Array) -> tuple[Array, Array, Array, Array]:
    """LU factors of A (m, m), log|det A|, and whether det A is positive beyond rounding."""
    m, eps = len(A), jnp.finfo(A.dtype).eps
    lu, pivots, permutation = lax.linalg.lu(A)
    pivot = jnp.diagonal(lu)
    # A pivot is what is left of an entry of A after |L||U| was subtracted from it: it is zero if it drowns in
    # the rounding of either. No absolute threshold would do, a minor of a hundred items is tiny by nature.
    subtracted = jnp.sum(jnp.abs(jnp.tril(lu, -1)) * jnp.abs(jnp.triu(lu, 1)).T, axis=1)
    rounding = (m + 8) * eps * (scale[permutation, jnp.arange(m)] + subtracted)
    swaps = jnp.sum(pivots != jnp.arange(m))
    negative = (jnp.sum(pivot < 0) + swaps) % 2 == 1
    positive = jnp.all(jnp.abs(pivot) > rounding) & ~negative
    log_abs = jnp.sum(jnp.log(jnp.where(positive, jnp.abs(pivot), 1.0)))
    return lu, pivots, log_abs, positive


@jax.custom_jvp
def log_det(A: Array, scale: Array) -> Array:
    """log det A for a matrix (m, m) whose determinant cannot be negative; -inf where it is zero to rounding.

    :param scale: an upper bound (m, m), up to a small factor, of the terms whose sums the entries of A are; what they
        carry of rounding error is eps times that.

    The derivative is that of ``slogdet``, and zero where the value is -inf.
    """
    _, _, log_abs, positive = _factorize(A, scale)
    return jnp.where(positive, log_abs, -jnp.inf)


@log_det.defjvp
def _log_det_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    A, scale = primals
    lu, pivots, log_abs, positive = _factorize(A, scale)
    identity = jnp.eye(len(A), dtype=A.dtype)
    # d log det A = tr(A⁻¹ dA), from the factors that are there already.
    inverse_transposed = lu_solve((jnp.where(positive, lu, identity), pivots), identity, trans=1)
    slope = jnp.sum(inverse_transposed * tangents[0])
    return jnp.where(positive, log_abs, -jnp.inf), jnp.where(positive, slope, 0.0)
