"""Products at full precision, determinants that know when they are zero, and adjugates, which need no inverse."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

# On a GPU a float32 product is done in TF32 (ten bits of mantissa) unless told otherwise.
matmul = partial(jnp.matmul, precision="highest")
# Powers of two, so small that nothing multiplied by them is a pivot.
_TINY = {"float32": 2.0**-40, "float64": 2.0**-200}


@jax.custom_jvp
def with_derivatives_of(value: Array, other: Array) -> Array:
    """``value``, whose derivatives of every order are those of ``other``, an array of the same shape.

    For two formulas of one number, where the one with the better value has the worse derivative.
    """
    del other
    return value


@with_derivatives_of.defjvp
def _with_derivatives_of_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return with_derivatives_of(*primals), tangents[1]


def once_known(first: Array, value: Array) -> Array:
    """``value`` itself, to be had only once ``first``, which broadcasts with it, is known.

    On a CPU two batches of factorisations at once may wait for each other forever. XLA takes an optimization barrier
    out before it plans what runs side by side; it does not see through this.
    """
    other = jnp.where(jnp.isnan(lax.stop_gradient(first)), value, jnp.inf)
    return with_derivatives_of(jnp.minimum(value, other), value)


def column_lengths(C: Array) -> Array:
    """The lengths (d,) of the columns of X from C = XᵀX, one for a column of zeros. No gradient passes through."""
    length = lax.stop_gradient(jnp.sqrt(jnp.diagonal(C)))
    return jnp.where(length > 0, length, 1.0)


def has_nan(*arrays: Array) -> Array:
    """Whether there is NaN in one of the arrays. A GPU's library takes NaN for zero when it factorises a matrix."""
    return sum((jnp.isnan(array).any() for array in arrays), jnp.asarray(False))


def eigenvalues(A: Array) -> Array:
    """Those of a matrix (d, d); NaN where it is not finite, of which a GPU's library makes an error."""
    is_finite = jnp.all(jnp.isfinite(A))
    return jnp.where(is_finite, jnp.linalg.eigvals(jnp.where(is_finite, A, 0.0)), jnp.nan)


def log_det_of_factors(lu: Array, pivots: Array, row_scale: Array, column_scale: Array) -> Array:
    """log det A, which cannot be negative, from the LU factors of diag(r)⁻¹ A diag(c)⁻¹; -inf where it is zero.

    :param row_scale, column_scale: positive vectors (m,) such that A_ij is at most r_i c_j in magnitude, and so are the
        terms whose sum it is: its rounding error is then eps·r_i c_j.
    """
    m, eps = len(lu), jnp.finfo(lu.dtype).eps
    place = jnp.arange(m)
    magnitude = jnp.abs(lu)
    pivot = jnp.sum(jnp.where(place[:, None] == place, lu, 0.0), axis=1)
    # A pivot is what is left of an entry, at most one now, after |L||U| was subtracted from it: it is zero if it drowns
    # in the rounding of either. No threshold on the determinant would do: a minor of a hundred items is tiny by nature.
    subtracted = jnp.sum(jnp.where(place[:, None] > place, magnitude * magnitude.T, 0.0), axis=1)
    nonzero = jnp.all(jnp.abs(pivot) > (m + 8) * eps * (1 + subtracted))
    num_swaps = jnp.sum(pivots != place)
    positive = nonzero & ((jnp.sum(pivot < 0) + num_swaps) % 2 == 0)
    log_det = jnp.sum(jnp.log(jnp.where(positive, jnp.abs(pivot), 1.0)) + jnp.log(row_scale) + jnp.log(column_scale))
    return jnp.where(positive, log_det, -jnp.inf)


def log_det(A: Array, row_scale: Array, column_scale: Array) -> Array:
    """log det A of a matrix (m, m) whose determinant cannot be negative; -inf where it is zero to rounding."""
    lu, pivots, _ = lax.linalg.lu(A / (row_scale[:, None] * column_scale))
    return log_det_of_factors(lu, pivots, row_scale, column_scale)


@jax.custom_jvp
def log_det_and_slope(A: Array, row_scale: Array, column_scale: Array) -> tuple[Array, Array]:
    """:func:`log_det` and its slope A⁻ᵀ (m, m); zero where the determinant is. The scales have no derivative."""
    scaled = A / (row_scale[:, None] * column_scale)
    by_platform = {"cpu": _inverse_transposed_by_factors, "default": _inverse_transposed_by_solving}
    inverse, lu, pivots = lax.platform_dependent(scaled, **by_platform)
    value = log_det_of_factors(lu, pivots, row_scale, column_scale)
    return value, jnp.where(value > -jnp.inf, inverse / (row_scale[:, None] * column_scale), 0.0)


@log_det_and_slope.defjvp
def _log_det_and_slope_jvp(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    value, slope = log_det_and_slope(*primals)
    of_slope = -matmul(matmul(slope, tangents[0].T), slope)
    return (value, slope), (jnp.sum(slope * tangents[0]), of_slope)


@jax.custom_jvp
def log_det_and_sign(A: Array) -> tuple[Array, Array, Array]:
    """log |det A| and det A / |det A| of matrices (..., m, m) that are regular, and the relative rounding error.

    All factorisations are done where the value is computed, and none where a derivative is carried back. What comes
    later in the program can be made to wait for the value; what carries derivatives back would meet the
    factorisations of others, and on a CPU two batches of them at once may wait for each other forever.
    """
    lu, pivots, _ = lax.linalg.lu(A)
    return log_abs_sign_and_rounding(lu, pivots)


@log_det_and_sign.defjvp
def _log_det_and_sign_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    (log_abs, sign, rounding), inverse = log_det_sign_and_inverse(primals[0])
    log_abs = once_known(jnp.sum(jnp.real(inverse), axis=(-2, -1)), log_abs)
    return (log_abs, sign, rounding), _slopes_of_det(sign, inverse, tangents[0])


@jax.custom_jvp
def log_det_sign_and_inverse(A: Array) -> tuple[tuple[Array, Array, Array], Array]:
    """:func:`log_det_and_sign` and A⁻¹, by one factorisation."""
    lu, pivots, _ = lax.linalg.lu(A)
    return log_abs_sign_and_rounding(lu, pivots), inverse_by_factors(lu, pivots)


def inverse_by_factors(lu: Array, pivots: Array) -> Array:
    """A⁻¹ (..., m, m) by the LU factors of A."""
    permutation = lax.linalg.lu_pivots_to_permutation(pivots, lu.shape[-1])
    identity = jnp.broadcast_to(jnp.eye(lu.shape[-1], dtype=lu.dtype), lu.shape)
    permuted = jnp.take_along_axis(identity, permutation[..., None], axis=-2)
    half = lax.linalg.triangular_solve(lu, permuted, left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(lu, half, left_side=True, lower=False)


@log_det_sign_and_inverse.defjvp
def _log_det_sign_and_inverse_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[tuple[Array, Array, Array], Array], tuple[tuple[Array, Array, Array], Array]]:
    det, inverse = log_det_sign_and_inverse(primals[0])
    of_inverse = -matmul(matmul(inverse, tangents[0]), inverse)
    return (det, inverse), (_slopes_of_det(det[1], inverse, tangents[0]), of_inverse)


def _slopes_of_det(sign: Array, inverse: Array, tangent: Array) -> tuple[Array, Array, Array]:
    """The tangents of log |det A|, of its sign, which turns, and of the rounding error, which has none."""
    slope = jnp.sum(jnp.swapaxes(inverse, -1, -2) * tangent, axis=(-2, -1))
    turn = 1j * jnp.imag(slope) if jnp.iscomplexobj(sign) else 0.0
    return jnp.real(slope), turn * sign, jnp.zeros_like(jnp.real(sign))


def log_abs_sign_and_rounding(lu: Array, pivots: Array) -> tuple[Array, Array, Array]:
    """The logarithm of the magnitude of a determinant, its sign and its relative rounding error, by LU factors."""
    m = lu.shape[-1]
    place = jnp.arange(m)
    pivot = jnp.diagonal(lu, axis1=-2, axis2=-1)
    size = jnp.abs(pivot)
    safe = jnp.where(size > 0, size, 1.0)
    swaps = jnp.sum(pivots != place, axis=-1)
    # The signs are multiplied up: a sum of a hundred angles would lose digits.
    sign = jnp.prod(pivot / safe, axis=-1) * jnp.where(swaps % 2 == 0, 1, -1)
    # A pivot is what is left of an entry after |L||U| was subtracted from it, with |L| at most one. Both were rounded,
    # each pivot on its own.
    magnitude = jnp.abs(jnp.real(lu)) + jnp.abs(jnp.imag(lu))  # no root for each entry
    subtracted = jnp.sum(jnp.triu(magnitude, 1), axis=-2)
    rounding = jnp.finfo(magnitude.dtype).eps * jnp.linalg.norm(1 + 2 * subtracted / safe, axis=-1)
    length = jnp.abs(sign)
    return jnp.sum(jnp.log(size), axis=-1), sign / jnp.where(length > 0, length, 1.0), rounding


def _inverse_transposed_by_solving(A: Array) -> tuple[Array, Array, Array]:
    """A⁻ᵀ and the LU factors."""
    lu, pivots, permutation = lax.linalg.lu(A)
    identity = jnp.eye(len(A), dtype=A.dtype)
    half = lax.linalg.triangular_solve(lu, identity[permutation], left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(lu, half, left_side=True, lower=False).T, lu, pivots


def _inverse_transposed_by_factors(A: Array) -> tuple[Array, Array, Array]:
    """The same by nothing but LU factors (see :func:`_right_divide_by_factors`).

    Those of [A I] = Pᵀ L [U L⁻¹P] have half of the inverse to the right of U, and no permutation is asked for.
    """
    m = len(A)
    lu, pivots, _ = lax.linalg.lu(jnp.concatenate([A, jnp.eye(m, dtype=A.dtype)], axis=1))
    place = jnp.arange(m)
    lower = jnp.where(place[:, None] >= place, lu[:, :m].T, 0.0)  # Uᵀ
    return _over_lower(lu[:, m:].T, lower), lu[:, :m], pivots


def right_divide(B: Array, A: Array) -> Array:
    """B A⁻¹ of a matrix A (m, m) and rows B (r, m)."""
    return lax.platform_dependent(B, A, cpu=_right_divide_by_factors, default=_right_divide_by_solving)


def _right_divide_by_solving(B: Array, A: Array) -> Array:
    return jnp.linalg.solve(A.T, B.T).T


@jax.custom_batching.sequential_vmap
def _right_divide_by_factors(B: Array, A: Array) -> Array:
    """The same by nothing but LU factors: those of A above a tiny multiple of B have L U = A and, below, B U⁻¹.

    On a CPU the library's solver of triangular systems hands even small ones to threads of its own, which then hold the
    cores that XLA's threads wait for: exact draws took four times as long.

    Within vmap one after the other: from 20 rows on that takes no longer than a batch, and no thread waits for another.
    """
    m = len(A)
    lu, permutation, quotient = _over_upper(B, A)
    quotient = _over_lower(quotient, jnp.tril(lu, -1) + jnp.eye(m, dtype=A.dtype))
    return jnp.zeros_like(quotient).at[:, permutation].set(quotient, unique_indices=True)


def _over_upper(B: Array, A: Array) -> tuple[Array, Array, Array]:
    """The LU factors of A, its permutation, and B U⁻¹."""
    m, tiny = len(A), _TINY[A.dtype.name]
    lu, _, permutation = lax.linalg.lu(jnp.concatenate([A, tiny * B]))  # no row of B is ever a pivot
    return lu[:m], permutation[:m], lu[m:] / tiny


def _over_lower(B: Array, L: Array) -> Array:
    """B L⁻¹ of a lower triangle L, which read backwards is an upper one."""
    return _over_upper(B[:, ::-1], L[::-1, ::-1])[2][:, ::-1]


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
