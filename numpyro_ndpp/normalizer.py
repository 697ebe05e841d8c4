r"""The normaliser: elementary symmetric polynomials of a low-rank kernel, by determinants on a circle.

With M = W C (d, d), C = XᵀX, the sum of all principal minors of size k of L = X W Xᵀ is the k-th elementary
symmetric polynomial of the eigenvalues of M, which is the k-th coefficient of a polynomial in t:

.. math:: \sum_{|S|=k} \det L_S = e_k, \qquad \det(I + t M) = \sum_{k=0}^{d} e_k t^k .

Sums over a range of sizes (one size included) are read off the polynomial's values on a circle,

.. math:: e_k = \frac1N \sum_j \det(I + t_j M)\, t_j^{-k}, \quad t_j = r e^{i\theta_j}, \quad \theta_j = 2\pi(j+½)/N,

which is nothing but ``slogdet``: differentiable to any order, whatever the eigenvalues do, on any device. With r
near the saddle point, where the mean size under the kernel r L is about k, the k-th term dominates and nothing cancels.
Where limits leave out no more than the empty subset and sizes that rounding hides, det(I + M) alone gives the sum.

Subsets that hold given items J have a polynomial of the same kind in the number of the others,

.. math:: \sum_T t^{|T|} \det L_{J∪T} = \det \begin{pmatrix} I + t C W & X_J^\top \\ -X_J W & 0 \end{pmatrix} ,

which exists where L_J is singular and no conditional kernel does. So all of the above is written for det(A + t B).

References: Kulesza and Taskar (2012), *Determinantal point processes for machine learning*, Proposition 5.1;
Trefethen and Weideman (2014), *The exponentially convergent trapezoidal rule*.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from numpyro_ndpp.branches import where_needed
from numpyro_ndpp.kernel import marginal_matrix
from numpyro_ndpp.linalg import column_lengths, has_nan, log_det_and_sign, matmul, once_known
from numpyro_ndpp.target import Pinned

# The radius only has to be near the saddle point: half an item of mean size off costs no digit.
HALF_AN_ITEM = 0.5
# A mean size that is smaller by this than what was aimed at is as good.
_BELOW = 0.1
_A_LITTLE = 0.02
# No smaller one is aimed at.
_SMALLEST_MEAN = 0.01
_MAX_ITERATIONS = 60
# The largest step of log r towards smaller means beside pinned items.
_STEP_DOWN = math.log(16.0)
# No radius beyond this over eps·norm: every eigenvalue above the rounding noise is saturated there.
_LARGEST_RADIUS = 256.0
# A determinant's error by its factors is believed up to so many units of rounding: at an extreme radius it is far less.
_MOST_ROUNDING_UNITS = 1024
# No radius below this times d·eps/norm beside pinned items: what they lack would be rounding noise.
_SMALLEST_RADIUS = 64.0
# Beside pinned items noise is larger: there is a doubt about the rank at smaller radii.
_CERTAIN_BESIDE_ITEMS = 1 / 16
# Radii that show how unlikely the sizes are that limits leave out.
_OUTER_RADII = 4.0, 16.0, 64.0


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
    scaled, is_whole = W * length[:, None] * length, jnp.all(in_range)
    projected = matmul(vectors.T, matmul(scaled, vectors)) * in_range[:, None] * in_range
    singular_values = jnp.linalg.svd(jnp.where(is_whole, W, projected), compute_uv=False)
    # What is left of W on the range may be nothing but the rounding of W.
    rounding = jnp.where(is_whole, 0.0, math.sqrt(d) * eps * jnp.linalg.norm(scaled))
    return jnp.sum(singular_values > jnp.maximum(d * eps * singular_values[0], rounding))


class Pencil(NamedTuple):
    """The polynomial exp(log_factor) · det(constant + t linear), whose coefficient of tˢ is the weight of size s.

    Matrices are (d, d), or (d+j, d+j) where j items are pinned.
    """

    constant: Array
    linear: Array
    log_factor: Array

    def at(self, t: Array) -> Array:
        return self.constant + t * self.linear


def pencil(W: Array, C: Array, pinned: Pinned | None = None) -> Pencil:
    """The polynomial of the sizes of a subset, or of the number of its other items where some are pinned."""
    d, dtype = len(W), W.dtype
    if pinned is None or len(pinned.rows) == 0:
        return Pencil(jnp.eye(d, dtype=dtype), balanced_product(W, C), jnp.zeros((), dtype))
    length = column_lengths(C)
    W, C, rows = W * length[:, None] * length, C / (length[:, None] * length), pinned.rows / length
    images = matmul(rows, W)
    # Rows and columns of length one; what they are divided by is the factor.
    scales = []
    for side in (rows, images):
        scale = lax.stop_gradient(jnp.linalg.norm(side, axis=1))
        scales.append(jnp.where(pinned.present & (scale > 0), scale, 1.0))
    absent = jnp.diag((~pinned.present).astype(dtype))
    border = (rows / scales[0][:, None]).T
    constant = jnp.block([[jnp.eye(d, dtype=dtype), border], [-images / scales[1][:, None], absent]])
    linear = jnp.pad(matmul(C, W), (0, len(rows)))
    return Pencil(constant, linear, jnp.sum(jnp.log(scales[0]) + jnp.log(scales[1])))


def size_moments(pencil: Pencil, log_scale: Array) -> tuple[Array, Array]:
    """Mean and variance of the size of a subset under the kernel scaled by exp(log_scale)."""
    scale = jnp.exp(log_scale)
    # The size is a sum of "coins", whose probabilities are the eigenvalues: rλ / (1 + rλ) without pinned items.
    A = scale * jnp.linalg.solve(pencil.at(scale), pencil.linear)
    mean = jnp.trace(A)
    return mean, mean - jnp.sum(A * A.T)


class _Bracket(NamedTuple):
    low: Array
    high: Array
    log_scale: Array
    mean: Array
    aim: Array
    iteration: Array


def solve_log_scale(
    pencil: Pencil, low: Array | float, high: Array | float, *, above: float = _BELOW, pinned: bool = False
) -> tuple[Array, Array]:
    """log r such that the kernel scaled by r has a mean size between two numbers, or as near to them as need be.

    :param low, high: at r = 1 a mean between them is fine; else the nearer of the two is aimed at.
    :param above: a mean that is larger by so much is as good.
    :return: log r and the mean size. If there is no such r, the smallest or largest sensible one.

    The mean size grows with r (its derivative in log r is the variance of the size): Newton's method, with
    bisection wherever that leaves the bracket. O(d³) an iteration, about ten of them. No gradient passes through.
    """
    pencil = lax.stop_gradient(pencil)
    M = pencil.linear
    d, eps = len(M), float(jnp.finfo(M.dtype).eps)
    low, high = (jnp.maximum(jnp.asarray(lax.stop_gradient(end), M.dtype), _SMALLEST_MEAN) for end in (low, high))
    norm = jnp.linalg.norm(M)
    log_norm = jnp.log(jnp.where(norm > 0, norm, 1.0))
    # The mean size is at most r·√d·norm.
    smallest = jnp.log(low) - math.log(2 * math.sqrt(d)) - log_norm
    if pinned:
        # Beside pinned items others may be almost certain. A smaller radius would see nothing but rounding.
        smallest = jnp.maximum(smallest + 0.5 * math.log(eps), math.log(_SMALLEST_RADIUS * d * eps) - log_norm)
    largest = math.log(_LARGEST_RADIUS / eps) - log_norm

    def is_solved(mean: Array, aim: Array) -> Array:
        return (mean >= aim - _BELOW) & (mean <= aim + above)

    def improve(state: _Bracket) -> _Bracket:
        mean, variance = size_moments(pencil, state.log_scale)
        aim = jnp.where(state.iteration == 0, jnp.clip(mean, low, high), state.aim)
        smaller = jnp.where(mean < aim, state.log_scale, state.low)
        larger = jnp.where(mean < aim, state.high, state.log_scale)
        # Newton on the logit of mean/d, which is nearly linear in log r.
        odds_slope = variance * d / (mean * (d - mean))
        logit_error = jnp.log(mean / aim) - jnp.log((d - mean) / (d - aim))
        newton = state.log_scale - logit_error / odds_slope
        inside = (newton > smaller) & (newton < larger)  # False for NaN too
        proposal = jnp.where(inside, newton, 0.5 * (smaller + larger))
        if pinned:
            # Where some others are always there, the mean is flat below: a long step down ends in rounding.
            proposal = jnp.maximum(proposal, jnp.where(mean > aim, state.log_scale - _STEP_DOWN, proposal))
        log_scale = jnp.where(is_solved(mean, aim), state.log_scale, proposal)
        return _Bracket(smaller, larger, log_scale, mean, aim, state.iteration + 1)

    def unsolved(state: _Bracket) -> Array:
        return ~is_solved(state.mean, state.aim) & (state.iteration < _MAX_ITERATIONS)

    start = jnp.clip(jnp.zeros((), M.dtype), smallest, largest)
    unknown = jnp.asarray(jnp.nan, M.dtype)
    state = lax.while_loop(unsolved, improve, _Bracket(smallest, largest, start, unknown, unknown, jnp.asarray(0)))
    return state.log_scale, state.mean


def solve_near_sizes(pencil: Pencil, low: Array | int, high: Array | int, is_pinned: bool) -> tuple[Array, Array]:
    """:func:`solve_log_scale` for the sizes low to high.

    A mean of k itself is out of reach when k is the true rank; k - 1/2 is as good. That is out of reach when there are
    never fewer than k items, as it may be beside pinned ones: then a little more than k is near enough.
    """
    low, high = jnp.maximum(low, 0) - HALF_AN_ITEM, jnp.maximum(high, 0) - HALF_AN_ITEM
    return solve_log_scale(pencil, low, high, above=HALF_AN_ITEM + _A_LITTLE, pinned=is_pinned)


def num_nodes(low: int, high: int, rank: int) -> int:
    """Nodes on the circle for the sum of e_low .. e_high: a multiple of four, so that none is purely imaginary.

    With more nodes than the degree, the sum is free of aliasing. For a single size k fewer do, because the variance
    of the size is at most 2 k (1 - k/d), and beyond nine standard deviations nothing is left to alias.
    """
    nodes = rank + 1.0
    if low == high:
        nodes = min(nodes, 9 * math.sqrt(2 * low * (1 - low / rank)) + 10)
    return 4 * math.ceil(nodes / 4)


def log_circle_sum(
    W: Array, C: Array, pinned: Pinned | None, low: Array | int, high: Array | int, sizes: Array, nodes: int
) -> Array:
    """log Σ e_k over those of ``sizes`` from low to high, by the circle; -inf where the sum is zero to rounding."""
    poly = pencil(W, C, pinned)
    M, dtype = poly.linear, W.dtype
    d, eps = len(M), jnp.finfo(dtype).eps
    log_radius, mean = solve_near_sizes(poly, low, high, pinned is not None)
    # Only a radius at which rounding noise weighs as much as an eigenvalue leaves a doubt about the rank. Noise is the
    # root of rounding where M is nilpotent in part, as it is where rows of B are parallel.
    norm = lax.stop_gradient(jnp.linalg.norm(M))
    certain = 1.0 if pinned is None else _CERTAIN_BESIDE_ITEMS
    doubtful = (jnp.exp(log_radius) * norm * math.sqrt(d * eps) > certain) | (norm == 0)
    least = low if pinned is None else low + pinned.number
    possible = where_needed(doubtful, lambda: true_rank(W, C) >= least, jnp.asarray(True)) & (high >= 0)
    wanted = (sizes >= low) & (sizes <= high)
    if pinned is None:
        # L + Lᵀ is positive semidefinite: where its trace vanishes, L is skew, and a skew matrix has no odd minors. The
        # symmetric part comes first: nothing cancels in the sum.
        is_skew = lax.stop_gradient(jnp.sum(0.5 * (W + W.T) * C)) <= 4 * eps * norm
        possible &= ~is_skew | jnp.any(wanted & (sizes % 2 == 0))
    else:
        possible &= lax.stop_gradient(pinned.log_prob(marginal_matrix(W, C), C)) > -jnp.inf
        # Where L_J is singular, some others are always there: no radius brings the mean of their number below that.
        possible &= mean < high + 0.75
    # The identity stands in where there is nothing to sum, so that no gradient is ever NaN.
    identity = jnp.eye(d, dtype=dtype)
    A, M = jnp.where(possible, poly.constant, identity), jnp.where(possible, M, identity)
    log_radius = jnp.where(possible, log_radius, 0.0)

    # Angles are whole multiples of π/N: their cosines and sines are constants, which XLA would otherwise compute again
    # for every entry of the matrices.
    unit = jnp.asarray(np.exp(1j * math.pi / nodes * np.arange(2 * nodes)), jnp.result_type(dtype, jnp.complex64))
    steps = 2 * np.arange(nodes // 2) + 1  # the others are conjugates
    t = jnp.exp(log_radius) * unit[steps]
    log_abs, sign, rounding = log_det_and_sign(A + t[:, None, None] * M)

    log_power = jnp.where(wanted, -sizes * log_radius, -jnp.inf)
    shift_power, shift_abs = jnp.max(log_power, initial=jnp.finfo(dtype).min), lax.stop_gradient(jnp.max(log_abs))
    power = jnp.sum(jnp.exp(log_power - shift_power) * unit[-steps[:, None] * sizes % (2 * nodes)], axis=1)
    magnitude = jnp.exp(log_abs - shift_abs)
    total = jnp.sum(magnitude * jnp.real(sign * power))
    allowed = nodes * d * eps + jnp.minimum(rounding, _MOST_ROUNDING_UNITS * eps)
    positive = total > jnp.sum(allowed * magnitude * jnp.abs(power))
    log_sum = shift_abs + shift_power + jnp.log(jnp.where(positive, total, 1.0)) - math.log(nodes / 2)
    log_sum = jnp.where(possible & positive, log_sum + poly.log_factor, -jnp.inf)
    return jnp.where(jnp.isnan(norm), jnp.nan, log_sum)  # of what is not a number, nothing is zero to rounding


def _log_sum_of_most(poly: Pencil, low: int, high: int, rank: int) -> tuple[Array, Array]:
    """log Σ e_k for k = low .. high by the sum over all k, and whether that can be: whether the others hardly count.

    The empty subset weighs one. No e_k is negative, so that others weigh f(r) r⁻ᵏ at most, k the nearest of them: those
    above ``high`` by any r > 1, those below ``low`` by any r < 1.
    """
    dtype = poly.linear.dtype
    log_outer = jnp.log(jnp.asarray(_OUTER_RADII, dtype))
    log_all, sign, _ = log_det_and_sign(poly.at(jnp.ones((), dtype)))
    is_most = (sign > 0) & (log_all > (math.log(2.0) if low == 1 else -jnp.inf))
    above = [(log_outer, high + 1)] if high < rank else []
    below = [(-log_outer, low - 1)] if low > 1 else []
    for log_radii, nearest in above + below:
        # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
        linear = once_known(log_all, poly.linear)
        matrices = poly.constant + jnp.exp(log_radii)[:, None, None] * linear
        log_f, signs, _ = log_det_and_sign(lax.stop_gradient(matrices))
        bound = jnp.min(log_f - nearest * log_radii)
        is_most &= jnp.all(signs > 0) & (bound < log_all + math.log(jnp.finfo(dtype).eps / 8))
        log_all = once_known(bound, log_all)
    log_all = jnp.where(is_most, log_all, 1.0)
    return (log_all + jnp.log1p(-jnp.exp(-log_all)) if low == 1 else log_all), is_most


@partial(jax.jit, static_argnames=("low", "high", "rank"))
def log_sum_esp(W: Array, C: Array, low: int, high: int, rank: int) -> Array:
    r"""log Σ e_k for k = low .. high: the log-normaliser of the distribution restricted to these sizes.

    :param W, C: the kernel's inner matrix and XᵀX, both (d, d).
    :param low, high: the smallest and the largest size, 0 ≤ low ≤ high ≤ rank.
    :param rank: no size above it has a positive minor (min(n, d)).
    :return: the logarithm, -inf where every minor of these sizes is zero to rounding (its gradient is then zero).

    Cost: O(d³) where the other sizes hardly count, else O(N d³), N ≤ d + 4, and N ~ 13 √(k (1 - k/d)) + 10 for a single
    size k.
    """
    if low == 0 and high == rank:
        return jnp.linalg.slogdet(pencil(W, C).at(jnp.ones((), W.dtype)))[1]
    if high == 0:
        return jnp.zeros((), W.dtype)

    def by_circle(W: Array, C: Array) -> Array:
        return log_circle_sum(W, C, None, low, high, jnp.arange(low, high + 1), num_nodes(low, high, rank))

    if low == high:
        return by_circle(W, C)
    value, is_most = _log_sum_of_most(pencil(W, C), low, high, rank)
    return where_needed(~is_most, lambda: by_circle(once_known(value, W), C), value)


@partial(jax.jit, static_argnames=("low", "high", "rank", "fixed"))
def log_sum_esp_given(W: Array, C: Array, pinned: Pinned, low: int, high: int, rank: int, fixed: bool) -> Array:
    r"""log Σ det L_{J∪T} over all T of other items than the pinned ones J, for \|J∪T\| from low to high.

    :param fixed: whether all j pinned items are there and low = high: then T has one size, and fewer nodes will do.

    O(N (d+j)³). -inf where all those minors are zero to rounding.
    """
    num_rows = len(pinned.rows)
    if fixed and high == num_rows:  # the pinned items themselves, whose minor is known to be zero where it is
        return jnp.where(has_nan(W, C), jnp.nan, pinned.log_minor(W))
    sizes = jnp.arange(high - num_rows if fixed else 0, high + 1 - (num_rows if fixed else 0))
    nodes = num_nodes(high - num_rows, high - num_rows, rank) if fixed else num_nodes(0, rank, rank)
    return log_circle_sum(W, C, pinned, low - pinned.number, high - pinned.number, sizes, nodes)
