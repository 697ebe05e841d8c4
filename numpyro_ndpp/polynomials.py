r"""The normaliser: elementary symmetric polynomials of a low-rank kernel, and the law of the size.

With M = W C (d, d), C = XᵀX, the sum of all principal minors of size k of L = X W Xᵀ is the k-th elementary
symmetric polynomial of the eigenvalues of M, which is the k-th coefficient of a polynomial in t:

.. math:: \sum_{|S|=k} \det L_S = e_k, \qquad \det(I + t M) = \sum_{k=0}^{d} e_k t^k .

*Sums over a range of sizes* (one size included) are read off the polynomial's values on a circle,

.. math:: e_k = \frac1N \sum_j \det(I + t_j M)\, t_j^{-k}, \quad t_j = r e^{i\theta_j}, \quad \theta_j = 2\pi(j+½)/N,

which is nothing but ``slogdet``: differentiable to any order, whatever the eigenvalues do, on any device. With r
near the saddle point, where the mean size under the kernel r L is about k, the k-th term dominates and nothing cancels.

*The whole law of the size* would need a radius for every size. The eigenvalues of M have non-negative real part, so the
polynomial is a product of factors with non-negative coefficients, and multiplying those out in log space never cancels.
Eigenvalues are no road to derivatives (they fail where eigenvalues repeat), so those come from the circle again.

References: Kulesza and Taskar (2012), *Determinantal point processes for machine learning*, Proposition 5.1;
Trefethen and Weideman (2014), *The exponentially convergent trapezoidal rule*.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.linalg import column_lengths, matmul

# The radius only has to be near the saddle point: half an item of mean size off costs no digit.
_RADIUS_TOLERANCE = 0.1
_MAX_ITERATIONS = 60
# No radius beyond this over eps·norm: every eigenvalue above the rounding noise is saturated there.
_LARGEST_RADIUS = 256.0


def balanced_product(W: Array, C: Array) -> Array:
    """A matrix (d, d) similar to W C, its rows and columns scaled by the lengths of the columns of X.

    Similar matrices share their polynomial; this one is far closer to normal when the columns of X have
    different lengths, so that its norm says more about its eigenvalues.
    """
    length = column_lengths(C)
    return matmul(W * length[:, None] * length, C / (length[:, None] * length))


def true_rank(W: Array, C: Array) -> Array:
    """The rank of X W Xᵀ to rounding, an integer array: no subset larger than that has a positive minor.

    W C itself would be a poor witness, for in float32 cond(C) = 10⁶ already hides its smallest eigenvalues in rounding
    noise. Looked at one after the other the factors are far from it: first the range of C, its columns brought to one
    length, then W on that range. O(d³). No gradient passes through.
    """
    W, C = lax.stop_gradient(W), lax.stop_gradient(C)
    d, eps = len(W), jnp.finfo(W.dtype).eps
    length = column_lengths(C)
    values, vectors = jnp.linalg.eigh(C / (length[:, None] * length))
    in_range = values > 4 * eps * values[-1]
    projected = matmul(vectors.T, matmul(W * length[:, None] * length, vectors)) * in_range[:, None] * in_range
    singular_values = jnp.linalg.svd(jnp.where(jnp.all(in_range), W, projected), compute_uv=False)
    return jnp.sum(singular_values > d * eps * singular_values[0])


def log_det_one_plus(M: Array) -> Array:
    """log det(I + M) = log of the sum of all principal minors."""
    return jnp.linalg.slogdet(jnp.eye(len(M), dtype=M.dtype) + M)[1]


def size_moments(M: Array, log_scale: Array) -> tuple[Array, Array]:
    """Mean and variance of the size of a subset under the kernel scaled by exp(log_scale)."""
    d = len(M)
    # A has the eigenvalues 1 - p with p = rλ / (1 + rλ), and the size is a sum of "coins" of probability p.
    A = jnp.linalg.inv(jnp.eye(d, dtype=M.dtype) + jnp.exp(log_scale) * M)
    trace = jnp.trace(A)
    return d - trace, trace - jnp.sum(A * A.T)


class _Bracket(NamedTuple):
    low: Array
    high: Array
    log_scale: Array
    error: Array
    iteration: Array


def solve_log_scale(M: Array, mean_size: Array, tolerance: float = _RADIUS_TOLERANCE) -> Array:
    """log r such that the kernel scaled by r has the given mean size; the largest sensible one if none has.

    The mean size grows with r (its derivative in log r is the variance of the size): Newton's method, with
    bisection wherever that leaves the bracket. O(d³) an iteration, about ten of them. No gradient passes through.
    """
    M = lax.stop_gradient(M)
    mean_size = jnp.asarray(lax.stop_gradient(mean_size), M.dtype)
    d = len(M)
    norm = jnp.linalg.norm(M)
    log_norm = jnp.log(jnp.where(norm > 0, norm, 1.0))
    # The mean size is at most r·√d·norm.
    low = jnp.log(mean_size) - math.log(2 * math.sqrt(d)) - log_norm
    high = math.log(_LARGEST_RADIUS / float(jnp.finfo(M.dtype).eps)) - log_norm

    def improve(state: _Bracket) -> _Bracket:
        mean, variance = size_moments(M, state.log_scale)
        error = mean - mean_size
        low = jnp.where(error < 0, state.log_scale, state.low)
        high = jnp.where(error < 0, state.high, state.log_scale)
        # Newton on the logit of mean/d, which is nearly linear in log r.
        odds_slope = variance * d / (mean * (d - mean))
        logit_error = jnp.log(mean / mean_size) - jnp.log((d - mean) / (d - mean_size))
        newton = state.log_scale - logit_error / odds_slope
        inside = (newton > low) & (newton < high)  # False for NaN too
        proposal = jnp.where(inside, newton, 0.5 * (low + high))
        log_scale = jnp.where(jnp.abs(error) <= tolerance, state.log_scale, proposal)
        return _Bracket(low, high, log_scale, jnp.abs(error), state.iteration + 1)

    def unsolved(state: _Bracket) -> Array:
        return (state.error > tolerance) & (state.iteration < _MAX_ITERATIONS)

    start = jnp.clip(jnp.zeros((), M.dtype), low, high)
    state = _Bracket(low, high, start, jnp.asarray(jnp.inf, M.dtype), jnp.asarray(0))
    return lax.while_loop(unsolved, improve, state).log_scale


def num_nodes(low: int, high: int, rank: int) -> int:
    """Nodes on the circle for the sum of e_low .. e_high: a multiple of four, so that none is purely imaginary.

    With more nodes than the degree, the sum is free of aliasing. For a single size k fewer do, because the variance
    of the size is at most 2 k (1 - k/d), and beyond nine standard deviations nothing is left to alias.
    """
    nodes = rank + 1.0
    if low == high:
        nodes = min(nodes, 9 * math.sqrt(2 * low * (1 - low / rank)) + 10)
    return 4 * math.ceil(nodes / 4)


def _log_circle_sum(W: Array, C: Array, low: Array | int, high: Array | int, sizes: Array, nodes: int) -> Array:
    """log Σ e_k over ``sizes`` (low .. high) by the circle; -inf where the sum is zero to rounding."""
    M = balanced_product(W, C)
    d, eps = len(M), jnp.finfo(M.dtype).eps
    mean, _ = size_moments(lax.stop_gradient(M), jnp.zeros((), M.dtype))
    inside = (mean >= low - 0.5) & (mean <= high)
    # A mean of k itself is out of reach when k is the true rank; k - 1/2 is as good everywhere.
    boundary = jnp.where(mean > high, high - 0.5, low - 0.5)
    log_radius = jnp.where(inside, 0.0, solve_log_scale(M, boundary))
    # Only a radius at which rounding noise weighs as much as an eigenvalue leaves a doubt about the rank.
    norm = lax.stop_gradient(jnp.linalg.norm(M))
    doubtful = (jnp.exp(log_radius) * norm * d * eps > 1) | (norm == 0)
    possible = lax.cond(doubtful, lambda: true_rank(W, C) >= low, lambda: jnp.asarray(True))
    # The identity stands in where there is nothing to sum, so that no gradient is ever NaN.
    M = jnp.where(possible, M, jnp.eye(d, dtype=M.dtype))
    log_radius = jnp.where(possible, log_radius, 0.0)

    angle = (2 * math.pi / nodes) * (jnp.arange(nodes // 2, dtype=M.dtype) + 0.5)  # the others are conjugates
    t = jnp.exp(log_radius) * lax.complex(jnp.cos(angle), jnp.sin(angle))
    sign, log_abs = jnp.linalg.slogdet(jnp.eye(d, dtype=M.dtype) + t[:, None, None] * M)

    log_power = -sizes * log_radius
    shift_power, shift_abs = jnp.max(log_power), lax.stop_gradient(jnp.max(log_abs))
    turn = angle[:, None] * sizes
    power = jnp.sum(jnp.exp(log_power - shift_power) * lax.complex(jnp.cos(turn), -jnp.sin(turn)), axis=1)
    magnitude = jnp.exp(log_abs - shift_abs)
    total = jnp.sum(magnitude * jnp.real(sign * power))
    positive = total > nodes * d * eps * jnp.sum(magnitude * jnp.abs(power))
    log_sum = shift_abs + shift_power + jnp.log(jnp.where(positive, total, 1.0)) - math.log(nodes / 2)
    return jnp.where(possible & positive, log_sum, -jnp.inf)


@partial(jax.jit, static_argnames=("low", "high", "rank"))
def log_sum_esp(W: Array, C: Array, low: int, high: int, rank: int) -> Array:
    r"""log Σ e_k for k = low .. high: the log-normaliser of the law restricted to these sizes.

    :param W, C: the kernel's inner matrix and XᵀX, both (d, d).
    :param low, high: the smallest and the largest size, 0 ≤ low ≤ high ≤ rank.
    :param rank: no size above it has a positive minor (min(n, d)).
    :return: the logarithm, -inf where every minor of these sizes is zero to rounding (its gradient is then zero).

    Cost: O(d³) without a restriction, else O(N d³), N ≤ d + 4, and N ~ 13 √(min(k, d-k)) + 10 for a single size k.
    """
    if low == 0 and high == rank:
        return log_det_one_plus(balanced_product(W, C))
    if high == 0:
        return jnp.zeros((), W.dtype)
    return _log_circle_sum(W, C, low, high, jnp.arange(low, high + 1), num_nodes(low, high, rank))


@jax.jit
def log_esps(W: Array, C: Array) -> Array:
    """log e_0 .. log e_d (d+1,): all coefficients, -inf where they are zero to rounding.

    O(d³) for the value. Each derivative takes a circle of its own: O(d⁵) in all. The probabilities of all sizes are
    accurate to rounding; the logarithm of a coefficient that needs eigenvalues near eps times the largest is only as
    good as these (:func:`log_sum_esp` is better there).
    """
    return _log_esps(W, C)


@jax.custom_jvp
def _log_esps(W: Array, C: Array) -> Array:
    M = balanced_product(W, C)
    d, eps = len(M), jnp.finfo(M.dtype).eps
    eigenvalues = jnp.linalg.eigvals(M)
    order = jnp.argsort(-jnp.abs(eigenvalues))
    eigenvalues = jnp.where(jnp.arange(d) < true_rank(W, C), eigenvalues[order], 0.0)
    real, imag = jnp.maximum(jnp.real(eigenvalues), 0.0), jnp.imag(eigenvalues)
    # A skew kernel's pairs are purely imaginary: their real part is rounding noise.
    real = jnp.where((imag != 0) & (real < 4 * eps * jnp.linalg.norm(M)), 0.0, real)
    # One factor for a real eigenvalue, one for a pair of conjugates (at its upper half), none at the lower half.
    linear = jnp.where(imag == 0, real, jnp.where(imag > 0, 2 * real, 0.0))
    quadratic = jnp.where(imag > 0, real**2 + imag**2, 0.0)

    def multiply(log_poly: Array, log_factor: tuple[Array, Array]) -> tuple[Array, None]:
        once = jnp.pad(log_poly[:-1], (1, 0), constant_values=-jnp.inf) + log_factor[0]
        twice = jnp.pad(log_poly[:-2], (2, 0), constant_values=-jnp.inf) + log_factor[1]
        return jnp.logaddexp(log_poly, jnp.logaddexp(once, twice)), None

    # One coefficient more than the degree, so that a shift by two is always within the array.
    one = jnp.full(d + 2, -jnp.inf, M.dtype).at[0].set(0.0)
    log_poly, _ = lax.scan(multiply, one, (jnp.log(linear), jnp.log(quadratic)))
    return log_poly[: d + 1]


@_log_esps.defjvp
def _log_esps_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    d = len(primals[0])
    nodes = num_nodes(0, d, d)

    @jax.checkpoint
    def tangent(k: Array) -> Array:
        return jax.jvp(lambda W, C: _log_circle_sum(W, C, k, k, k[None], nodes), primals, tangents)[1]

    value = _log_esps(*primals)
    slope = jnp.pad(lax.map(tangent, jnp.arange(1, d + 1)), (1, 0))
    return value, jnp.where(jnp.isfinite(value), slope, 0.0)


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


def restrict_sizes(log_e: Array, low: int, high: int) -> Array:
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
