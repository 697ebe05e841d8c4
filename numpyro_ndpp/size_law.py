"""The law of the size: the weights e_0 .. e_d of all sizes at once, and the scale that gives a mean size.

Each size would want a radius of its own on the circle of :mod:`numpyro_ndpp.normalizer`. The eigenvalues of M = W C
have non-negative real part, so the polynomial det(I + t M) is a product of factors with non-negative coefficients, and
multiplying those out in log space never cancels. Eigenvalues are no road to derivatives (they fail where eigenvalues
repeat), so those come from a few circles (:mod:`numpyro_ndpp.circles`). So do the values where each size is to have all
its digits, however unlikely it is beside the others.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.branches import where_needed
from numpyro_ndpp.circles import log_coefficients
from numpyro_ndpp.kernel import marginal_matrix
from numpyro_ndpp.linalg import column_lengths, matmul, once_known, with_derivatives_of
from numpyro_ndpp.normalizer import (
    Pencil,
    balanced_product,
    log_sum_esp,
    pencil,
    solve_near_sizes,
    true_rank,
)
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.size_bounds import bound_sizes
from numpyro_ndpp.target import Pinned

# Beside pinned items coefficients are read off at a scale, each size at one of its own unless there would be more than
# so many scales.
_MOST_SCALES = 16
# On a circle that was placed by bounds every size has to be as likely as this: then its weight is accurate.
_LEAST_PROBABILITY = 1e-3


def _rounding(W: Array) -> float:
    """What rounding leaves of a probability that is zero, or of a relative singular value."""
    return 8 * len(W) * float(jnp.finfo(W.dtype).eps)


def _multiply_out(constant: Array, linear: Array, quadratic: Array) -> Array:
    """log of the coefficients (d+1,) of the product of d factors a + b t + c t², none of them negative."""
    d = len(constant)

    def multiply(log_poly: Array, log_factor: tuple[Array, Array, Array]) -> tuple[Array, None]:
        once = jnp.pad(log_poly[:-1], (1, 0), constant_values=-jnp.inf) + log_factor[1]
        twice = jnp.pad(log_poly[:-2], (2, 0), constant_values=-jnp.inf) + log_factor[2]
        return jnp.logaddexp(log_poly + log_factor[0], jnp.logaddexp(once, twice)), None

    # One coefficient more than the degree, so that a shift by two is always within the array.
    one = jnp.full(d + 2, -jnp.inf, linear.dtype).at[0].set(0.0)
    log_poly, _ = lax.scan(multiply, one, (jnp.log(constant), jnp.log(linear), jnp.log(quadratic)))
    return log_poly[: d + 1]


@partial(jax.jit, static_argnames="most")
def log_esps(W: Array, C: Array, most: int | None = None) -> Array:
    """log e_0 .. log e_d (d+1,): all coefficients, -inf where they are zero to rounding.

    :param most: no larger size is wanted: then there are most + 1, and each is accurate, however unlikely it is beside
        the others.

    Without ``most`` O(d³) for the value, O(J d³) for all derivatives, J ≤ d + 49 nodes on a few circles. The
    probabilities of all sizes are accurate to rounding; a coefficient that needs eigenvalues near eps times the largest
    is only as good as these. With ``most`` O(J d³) for both.
    """
    if most is None:
        return _log_esps(W, C)
    if not platform().slow_eigenvalues or most == len(W):  # no bound serves the largest sizes of all
        return _every_log_esp(most, W, C)[: most + 1]
    value, is_accurate = log_esps_by_bounds(W, C, most)
    return where_needed(~is_accurate, partial(_every_log_esp, most, W, C), value)[: most + 1]


def log_esps_by_bounds(W: Array, C: Array, most: int) -> tuple[Array, Array]:
    """log e_0 .. log e_d (d+1,), zero above ``most``, without eigenvalues, and whether they are accurate."""
    poly = pencil(W, C)
    bounds = bound_sizes(poly.linear, most)
    wanted = jnp.arange(len(bounds.log_e)) <= most
    value, probs = log_coefficients(poly, bounds.log_e, wanted, most + 1, log_radii=bounds.log_radii)
    # A size whose weight is zero has no more than what rounding gives it.
    is_accurate = bounds.is_usable & (jnp.min(probs) > jnp.maximum(_LEAST_PROBABILITY, bounds.rounding))
    return value.at[0].set(0.0), is_accurate  # e_0 is one


@jax.custom_jvp
def _log_esps(W: Array, C: Array) -> Array:
    return _of_eigenvalues(_eigenvalues(W, C))


def _every_log_esp(most: int, W: Array, C: Array) -> Array:
    """log e_0 .. log e_d (d+1,), by circles whose radii eigenvalues give; zero above ``most``."""
    # No derivative passes through eigenvalues.
    eigenvalues = _eigenvalues(*lax.stop_gradient((W, C)))
    about = _of_eigenvalues(eigenvalues)
    value, probs = _by_circles(pencil(W, C), about, most, eigenvalues)
    value = jnp.where(probs > _rounding(W), value, with_derivatives_of(about, value))
    return jnp.where(about == -jnp.inf, -jnp.inf, value.at[0].set(0.0))  # e_0 is one


def _eigenvalues(W: Array, C: Array) -> Array:
    """Those of W C (d,), zero beyond its rank; purely imaginary ones have no real part."""
    M = balanced_product(W, C)
    d, eps = len(M), jnp.finfo(M.dtype).eps
    eigenvalues = jnp.linalg.eigvals(M)
    order = jnp.argsort(-jnp.abs(eigenvalues))
    eigenvalues = _in_pairs(jnp.where(jnp.arange(d) < true_rank(W, C), eigenvalues[order], 0.0))
    real, imag = jnp.maximum(jnp.real(eigenvalues), 0.0), jnp.imag(eigenvalues)
    # A skew kernel's pairs are purely imaginary: their real part is rounding noise.
    real = jnp.where((imag != 0) & (real < 4 * eps * jnp.linalg.norm(M)), 0.0, real)
    return lax.complex(real, imag)


def _in_pairs(numbers: Array) -> Array:
    """The numbers (d,), but the real part of one whose conjugate was replaced: it was a pair by rounding only."""
    side, distance = jnp.sign(jnp.imag(numbers)), jnp.abs(numbers - jnp.conj(numbers)[:, None])
    # Not every library gives the two of a pair the same digits.
    is_conjugate = (side == -side[:, None]) & (distance <= jnp.sqrt(jnp.finfo(side.dtype).eps) * jnp.abs(numbers))
    return jnp.where(jnp.any(is_conjugate, axis=0), numbers, jnp.real(numbers))


def _of_eigenvalues(eigenvalues: Array) -> Array:
    """log of all coefficients (d+1,) of the polynomial Π (1 + λ t)."""
    real, imag = jnp.real(eigenvalues), jnp.imag(eigenvalues)
    # One factor for a real eigenvalue, one for a pair of conjugates (at its upper half), none at the lower half.
    linear = jnp.where(imag == 0, real, jnp.where(imag > 0, 2 * real, 0.0))
    quadratic = jnp.where(imag > 0, real**2 + imag**2, 0.0)
    return _multiply_out(jnp.ones_like(real), linear, quadratic)


@_log_esps.defjvp
def _log_esps_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    found, slopes = jax.jvp(partial(_every_log_esp, len(primals[0])), primals, tangents)
    return once_known(found, _log_esps(*primals)), slopes


def _by_circles(poly: Pencil, log_e: Array, most: int, eigenvalues: Array | None = None) -> tuple[Array, Array]:
    """The coefficients of sizes up to ``most``, whose logarithms are known about, in a way that has derivatives.

    And their probabilities on their circles.
    """
    factor, wanted = lax.stop_gradient(poly.log_factor), jnp.arange(len(log_e)) <= most
    value, probs = log_coefficients(poly, log_e - factor, wanted, most + 1, eigenvalues)
    return value + poly.log_factor, probs


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
        log_e = _log_esps_given(W, C, *pinned, jnp.asarray(low - number), jnp.asarray(high - number))
    return jnp.where((sizes >= low - number) & (sizes <= high - number), log_e, -jnp.inf)


def log_esps_near(W: Array, C: Array, pinned: Pinned, size: int) -> Array:
    """log Σ det L_{J∪T} over the T of s other items, s = 0 .. d (d+1,), accurate where s is about ``size``. O(d³)."""
    return _log_esps_given(W, C, *pinned, size, size)


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
    by_aim = lax.stop_gradient(lax.map(lambda aim: _log_esps_given(W, C, *pinned, aim, aim), aims))
    nearest = jnp.argmin(jnp.abs(jnp.arange(d + 1)[:, None] - aims), axis=1)
    about = by_aim[nearest, jnp.arange(d + 1)]
    about = jnp.where(about == -jnp.inf, jnp.max(by_aim, axis=0), about)  # zero at one scale may be rounding there
    value, probs = _by_circles(pencil(W, C, pinned), about, d)
    value = _with_minor(value, W, pinned)
    # A size that was aimed at is most accurate at that scale. At larger ones determinants beside pinned items may be
    # the difference of much larger ones.
    value = jnp.where(aims[nearest] == jnp.arange(d + 1), with_derivatives_of(about, value), value)
    # What is zero may be rounding in what was read off, and of any sign on its circle.
    is_zero = (about == -jnp.inf) | (probs <= _rounding(W))
    return jnp.where(is_zero, -jnp.inf, value)


def _with_minor(log_e: Array, W: Array, pinned: Pinned) -> Array:
    """log_e (d+1,), the first with the derivatives of log det L_J: by a circle they are what rounding leaves of C's."""
    # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
    minor = pinned.log_prob(once_known(jnp.sum(log_e), W))
    return log_e.at[0].set(with_derivatives_of(log_e[0], minor))


@jax.custom_jvp
def _log_esps_given(W: Array, C: Array, rows: Array, present: Array, low: Array, high: Array) -> Array:
    poly = pencil(W, C, Pinned(rows, present))
    d, eps, rounding = len(W), jnp.finfo(W.dtype).eps, _rounding(W)
    # Read off at a scale where the sizes that count are likely: the polynomial is a product of (1 - p) + p t / scale.
    log_scale, _ = solve_near_sizes(poly, low, high, is_pinned=True)
    sign, log_det = jnp.linalg.slogdet(poly.at(jnp.exp(log_scale)))
    length = column_lengths(C)
    K = Pinned(rows, present).marginal_matrix(jnp.exp(log_scale) * W, C)
    p = jnp.linalg.eigvals(matmul(K * length[:, None] * length, C / (length[:, None] * length)))
    # Nothing can be made of items that are not there together at all.
    possible = (sign > 0) & jnp.all(jnp.isfinite(p)) & jnp.all(jnp.abs(p) < 1 / jnp.sqrt(eps))
    possible &= Pinned(rows, present).log_prob(marginal_matrix(W, C)) > -jnp.inf
    # Eigenvalues that are zero or one come out with the root of rounding where they are defective. The ranks say how
    # many there are: J∪T has no more items than L has ranks, and T makes up for those that L_J lacks.
    most = true_rank(W, C) - jnp.sum(present)
    p = jnp.where(jnp.argsort(jnp.argsort(-jnp.abs(p))) < most, p, 0.0)
    p = jnp.where(jnp.argsort(jnp.argsort(jnp.abs(1 - p))) < _missing_ranks(W, Pinned(rows, present)), 1.0, p)
    p = _in_pairs(p)
    real, imag = jnp.real(p), jnp.imag(p)
    squared, squared_other = real**2 + imag**2, (1 - real) ** 2 + imag**2

    def clean(number: Array) -> Array:
        return jnp.where(number > rounding, number, 0.0)

    is_real, is_upper = imag == 0, imag > 0
    constant = jnp.where(is_real, clean(1 - real), jnp.where(is_upper, clean(squared_other), 1.0))
    linear = jnp.where(is_real, clean(real), jnp.where(is_upper, clean(2 * (real - squared)), 0.0))
    quadratic = jnp.where(is_upper, clean(squared), 0.0)
    constant, linear, quadratic = (jnp.where(possible, factor, 1.0) for factor in (constant, linear, quadratic))
    log_poly = _multiply_out(constant, linear, quadratic)
    log_poly = log_poly + log_det + poly.log_factor - jnp.arange(d + 1) * log_scale
    return jnp.where(possible, log_poly, -jnp.inf)


def _missing_ranks(W: Array, pinned: Pinned) -> Array:
    """How many ranks the minor L_J of the pinned items lacks, to rounding."""
    images = matmul(pinned.rows, W)
    lengths = [jnp.linalg.norm(side, axis=1) for side in (images, pinned.rows)]
    left, right = (jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0) for length in lengths)
    minor = matmul(images, pinned.rows.T) * left[:, None] * right + jnp.diag((~pinned.present).astype(W.dtype))
    singular_values = jnp.linalg.svd(minor, compute_uv=False)
    return jnp.sum(singular_values <= _rounding(W))


@_log_esps_given.defjvp
def _log_esps_given_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    W, C, rows, present, _, _ = primals
    value = _log_esps_given(*primals)

    def by_circles(W: Array, C: Array, rows: Array) -> Array:
        pinned = Pinned(rows, present)
        return _with_minor(_by_circles(pencil(W, C, pinned), value, len(W))[0], W, pinned)

    found, slopes = jax.jvp(by_circles, (W, C, rows), tangents[:3])
    return once_known(found, value), jnp.where(jnp.isfinite(value), slopes, 0.0)


def log_scales_of_mean_size(log_e: Array, mean_sizes: Array) -> Array:
    """log r for each of the mean sizes (t,), such that sizes of weight e_k rᵏ have it. No gradient passes through.

    :param log_e: log e_0 .. log e_d (d+1,); -inf for the sizes to leave out. A mean size outside the range of the
        others gives a scale at which the law sits at the end of that range.
    """
    log_e, mean_sizes = lax.stop_gradient(log_e), lax.stop_gradient(mean_sizes)
    sizes = jnp.arange(len(log_e), dtype=log_e.dtype)
    finite = jnp.where(jnp.isfinite(log_e), log_e, 0.0)
    # Beyond this, neighbouring weights differ by more than any two coefficients do, and by 1/eps on top.
    bound = jnp.max(finite) - jnp.min(finite) - jnp.log(jnp.finfo(log_e.dtype).eps) + math.log(len(log_e))

    def mean_size(log_scale: Array) -> Array:
        return jnp.dot(jax.nn.softmax(log_e + sizes * log_scale), sizes)

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        below = jax.vmap(mean_size)(middle) < mean_sizes
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    steps = jnp.finfo(log_e.dtype).nmant + 12
    low, high = lax.fori_loop(0, steps, halve, (jnp.full_like(mean_sizes, -bound), jnp.full_like(mean_sizes, bound)))
    return 0.5 * (low + high)


def log_scale_of_each_size(log_e: Array) -> Array:
    """log r (d+1,) for every size k such that the sizes of weight e_k rᵏ have a mean of about k - 1/2, where one can.

    :param log_e: log e_0 .. log e_d (d+1,), of all sizes: a law restricted to one size has that mean at every scale.
    """
    sizes, known = jnp.arange(len(log_e)), log_e > -jnp.inf
    least, most = jnp.min(jnp.where(known, sizes, len(sizes))), jnp.max(jnp.where(known, sizes, 0))
    half_less = jnp.clip(sizes.astype(log_e.dtype) - 0.5, least + 0.1, jnp.maximum(most - 0.1, least + 0.1))
    return jnp.where(least < most, log_scales_of_mean_size(log_e, half_less), 0.0)


def restrict_sizes(log_e: Array, low: Array | int, high: Array | int) -> Array:
    """The coefficients (d+1,) with -inf for the sizes outside low .. high."""
    sizes = jnp.arange(len(log_e))
    return jnp.where((sizes >= low) & (sizes <= high), log_e, -jnp.inf)


@partial(jax.jit, static_argnames=("low", "high", "rank"))
def log_scale_of_mean_size(W: Array, C: Array, mean_size: Array, low: int, high: int, rank: int) -> Array:
    """log r such that the kernel scaled by r, restricted to the sizes low .. high, has the given mean size.

    Differentiable to any order in W, C and ``mean_size``, as the root of an equation.
    """

    def excess(log_scale: Array) -> Array:
        # The mean size is the derivative of the log-normaliser in log r.
        return jax.grad(lambda u: log_sum_esp(W, jnp.exp(u) * C, low, high, rank))(log_scale) - mean_size

    def solve(_: Any, start: Array) -> Array:
        log_e = restrict_sizes(log_esps(lax.stop_gradient(W), lax.stop_gradient(C)), low, high)
        return start + log_scales_of_mean_size(log_e, jnp.asarray(mean_size, log_e.dtype)[None])[0]

    return lax.custom_root(excess, jnp.zeros((), W.dtype), solve, lambda slope, y: y / slope(jnp.ones_like(y)))
