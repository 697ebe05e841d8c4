"""The law of the size beside pinned items: the weights of the sets of s other items, for all s at once.

They are read off at a scale where the sizes that count are likely: there the polynomial is a product of factors
(1 - p) + p t / scale, p the eigenvalues of the marginal kernel given the pinned items. As in
:mod:`numpyro_ndpp.size_law`, derivatives come from a few circles, and so do the values of rare sizes.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.eigenvalue_products import in_pairs, multiply_out, rounding_of
from numpyro_ndpp.kernel import marginal_matrix
from numpyro_ndpp.linalg import column_lengths, eigenvalues, matmul, once_known, with_derivatives_of
from numpyro_ndpp.normalizer import pencil, solve_near_sizes, true_rank
from numpyro_ndpp.size_law import log_esps_by_circles
from numpyro_ndpp.target import Pinned

# Beside pinned items coefficients are read off at a scale, each size at one of its own unless there would be more than
# so many scales.
_MOST_SCALES = 16


@partial(jax.jit, static_argnames="every_size")
def log_esps_given(
    W: Array, C: Array, pinned: Pinned, low: Array | int, high: Array | int, every_size: bool = False
) -> Array:
    """log Σ det L_{J∪T} over the T of s other items, s = 0 .. d (d+1,); -inf where that is zero to rounding.

    :param low, high: limits on the size of J∪T; -inf beyond them. The probabilities of the sizes within are accurate.
    :param every_size: whether the coefficient of every size within is to be accurate, however unlikely it is beside
        the others: O(J d³).
    """
    sizes, number = jnp.arange(len(W) + 1), pinned.number
    if every_size:
        log_e = _every_log_esp_given(W, C, pinned, low - number, high - number)
    else:
        log_e = log_esps_near(W, C, *pinned, jnp.asarray(low - number), jnp.asarray(high - number))
    return jnp.where((sizes >= low - number) & (sizes <= high - number), log_e, -jnp.inf)


def _every_log_esp_given(W: Array, C: Array, pinned: Pinned, low: Array, high: Array) -> Array:
    """By circles, whose radii need no more than what is read off at a few scales: each size at the nearest one."""
    d = len(W)
    step = -(-d // _MOST_SCALES)
    # Above the rank there is no scale to aim with, and at the rank itself none that others could be read off at.
    # Nor is there one below what L_J lacks: so many others must be there.
    rank = true_rank(W, C)
    lacking = _missing_ranks(*lax.stop_gradient((once_known(rank.astype(W.dtype), W), pinned)))
    least = jnp.clip(lacking, low, high)
    most = jnp.clip(rank - 1 - pinned.number, least, high)
    aims = jnp.clip(jnp.append(0, jnp.arange(1, d + step, step)), least, most)
    by_aim = lax.stop_gradient(lax.map(lambda aim: log_esps_near(W, C, *pinned, aim, aim), aims))
    nearest = jnp.argmin(jnp.abs(jnp.arange(d + 1)[:, None] - aims), axis=1)
    about = by_aim[nearest, jnp.arange(d + 1)]
    about = jnp.where(about == -jnp.inf, jnp.max(by_aim, axis=0), about)  # zero at one scale may be rounding there
    value, probs = log_esps_by_circles(pencil(W, C, pinned), about, d)
    value = _with_minor(value, W, pinned)
    # A size that was aimed at is most accurate at that scale. At larger ones determinants beside pinned items may be
    # the difference of much larger ones.
    value = jnp.where(aims[nearest] == jnp.arange(d + 1), with_derivatives_of(about, value), value)
    # What is zero may be rounding in what was read off, and of any sign on its circle.
    is_zero = (about == -jnp.inf) | (probs <= rounding_of(W))
    return jnp.where(is_zero, -jnp.inf, value)


def _with_minor(log_e: Array, W: Array, pinned: Pinned) -> Array:
    """log_e (d+1,), the first with the derivatives of log det L_J: by a circle they are what rounding leaves of C's."""
    # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
    minor = pinned.log_minor(once_known(jnp.sum(log_e), W))
    return log_e.at[0].set(with_derivatives_of(log_e[0], minor))


@jax.custom_jvp
def log_esps_near(W: Array, C: Array, rows: Array, present: Array, low: Array | int, high: Array | int) -> Array:
    """log Σ det L_{J∪T} over the T of s other items, s = 0 .. d (d+1,), accurate about s = low .. high. O(d³)."""
    poly = pencil(W, C, Pinned(rows, present))
    d, eps, rounding = len(W), jnp.finfo(W.dtype).eps, rounding_of(W)
    # Read off at a scale where the sizes that count are likely: the polynomial is a product of (1 - p) + p t / scale.
    log_scale, _ = solve_near_sizes(poly, low, high, is_pinned=True)
    sign, log_det = jnp.linalg.slogdet(poly.at(jnp.exp(log_scale)))
    length = column_lengths(C)
    K = Pinned(rows, present).marginal_matrix(jnp.exp(log_scale) * W, C)
    p = eigenvalues(matmul(K * length[:, None] * length, C / (length[:, None] * length)))
    # Nothing can be made of items that are not there together at all.
    possible = (sign > 0) & jnp.all(jnp.isfinite(p)) & jnp.all(jnp.abs(p) < 1 / jnp.sqrt(eps))
    possible &= Pinned(rows, present).log_prob(marginal_matrix(W, C), C) > -jnp.inf
    # Eigenvalues that are zero or one come out with the root of rounding where they are defective. The ranks say how
    # many there are: J∪T has no more items than L has ranks, and T makes up for those that L_J lacks.
    most = true_rank(W, C) - jnp.sum(present)
    p = jnp.where(jnp.argsort(jnp.argsort(-jnp.abs(p))) < most, p, 0.0)
    p = jnp.where(jnp.argsort(jnp.argsort(jnp.abs(1 - p))) < _missing_ranks(W, Pinned(rows, present)), 1.0, p)
    p = in_pairs(p)
    real, imag = jnp.real(p), jnp.imag(p)
    squared, squared_other = real**2 + imag**2, (1 - real) ** 2 + imag**2

    def clean(number: Array) -> Array:
        return jnp.where(number > rounding, number, 0.0)

    is_real, is_upper = imag == 0, imag > 0
    constant = jnp.where(is_real, clean(1 - real), jnp.where(is_upper, clean(squared_other), 1.0))
    linear = jnp.where(is_real, clean(real), jnp.where(is_upper, clean(2 * (real - squared)), 0.0))
    quadratic = jnp.where(is_upper, clean(squared), 0.0)
    constant, linear, quadratic = (jnp.where(possible, factor, 1.0) for factor in (constant, linear, quadratic))
    log_poly = multiply_out(constant, linear, quadratic)
    log_poly = log_poly + log_det + poly.log_factor - jnp.arange(d + 1) * log_scale
    return jnp.where(possible, log_poly, -jnp.inf)


def _missing_ranks(W: Array, pinned: Pinned) -> Array:
    """How many ranks the minor L_J of the pinned items lacks, to rounding."""
    images = matmul(pinned.rows, W)
    lengths = [jnp.linalg.norm(side, axis=1) for side in (images, pinned.rows)]
    left, right = (jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0) for length in lengths)
    minor = matmul(images, pinned.rows.T) * left[:, None] * right + jnp.diag((~pinned.present).astype(W.dtype))
    singular_values = jnp.linalg.svd(minor, compute_uv=False)
    return jnp.sum(singular_values <= rounding_of(W))


@log_esps_near.defjvp
def _log_esps_near_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    W, C, rows, present, _, _ = primals
    value = log_esps_near(*primals)

    def by_circles(W: Array, C: Array, rows: Array) -> Array:
        pinned = Pinned(rows, present)
        return _with_minor(log_esps_by_circles(pencil(W, C, pinned), value, len(W))[0], W, pinned)

    found, slopes = jax.jvp(by_circles, (W, C, rows), tangents[:3])
    return once_known(found, value), jnp.where(jnp.isfinite(value), slopes, 0.0)
