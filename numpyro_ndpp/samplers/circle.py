r"""The circles of the contour sampler: where a stage's nodes lie, how many there are, and the kernel at each.

At the node t_j = r exp(iθ_j) a stage has R_j = t_j W (I + t_j C W)⁻¹ and the weight det(I + t_j W C). The radius fits
the number of items that are missing at the stage; see :mod:`.contour`.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.packing import pack
from numpyro_ndpp.size_scales import log_scales_of_mean_size

# A stage lasts so many times √m items, where m are missing at its start. Over a stage the radius comes to be off by as
# many standard deviations of the size, which costs digits, and float32 has none to spare.
STAGE_LENGTH = {"float32": 2.5, "float64": 5.0}
# What aliasing may add to a size's weight, relative to it: in float32 as much as a few roundings.
_ACCURACY = {"float32": 5e-7, "float64": 1e-11}
# The radius that is best for the items at hand may be off by this factor.
_MISFIT = 1.25

# Real and imaginary part: a pair of arrays, or an array whose first axis has two entries.
Complex = Array | tuple[Array, Array]


class Stage(NamedTuple):
    """The circle of a stage: R_j and det(I + t_j W C) at J nodes in the upper half. Stages are stacked."""

    log_radius: Array
    units: Array  # (d,) of the features, in which R_j has a diagonal of about one
    weights: Array  # (2, J) the determinants, divided by the largest
    symmetric: Array  # (2J, p) the packed symmetric parts of Re R_j and of Im R_j
    sides: Array  # (d, 2, 2, J, d) real and imaginary part of R_jᵀ and of R_j: x · sides is R_j x and x R_j
    high: Array  # it serves while at most so many items are missing
    low: Array  # and more than so many

    @property
    def angles(self) -> Array:
        return angles_of(self.weights.shape[1], self.weights.dtype)


def angles_of(num_upper: int, dtype: jnp.dtype) -> Array:
    """The angles (J,) of the nodes in the upper half; the others are their conjugates."""
    return (math.pi / num_upper) * (jnp.arange(num_upper, dtype=dtype) + 0.5)


def schedule_of(size: int, length: float) -> list[tuple[int, int]]:
    """(high, low) of every stage of a draw of ``size`` items, of a length as in ``STAGE_LENGTH``."""
    stages, high = [], size
    while high > 0:
        low = max(0, high - math.ceil(length * math.sqrt(high)))
        stages.append((high, low))
        high = low
    return stages


def multiply(a: Complex, b: Complex) -> tuple[Array, Array]:
    """The product of complex numbers."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def turn(weights: Array, angles: Array) -> Array:
    """Complex weights (2, J) times exp(-i angles)."""
    return jnp.stack(multiply(weights, (jnp.cos(angles), -jnp.sin(angles))))


def _log_factorials(number: int) -> np.ndarray:
    """log q! for q = 0 .. number."""
    return np.cumsum(np.log(np.maximum(np.arange(number + 1), 1)))


def _log_binomial(number: int, p: float) -> np.ndarray:
    """log P(q) for q = 0 .. number of a binomial law."""
    q, log_factorials = np.arange(number + 1), _log_factorials(number)
    log_choose = log_factorials[-1] - log_factorials - log_factorials[::-1]
    return log_choose + q * math.log(p) + (number - q) * math.log1p(-p)


@functools.cache
def _num_upper(size: int, high: int, low: int, d: int, accuracy: float) -> int:
    """How many nodes in the upper half are enough for draws of ``size`` items in the stage low < m ≤ high.

    The sum over N nodes takes sizes m ± N, m ± 2N, ... for m. The laws of even sizes and of odd ones are each those of
    real-rooted polynomials, of which pairs that come all or nothing with one probability fall off most slowly: N is
    chosen for them, at the radius of the stage, off by as much as it may be. N is a multiple of four, so that no
    node is purely imaginary and no even size is taken for an odd one.
    """
    directions = d - (size - high)
    mean = float(mean_within_stage(high, low, high, 2 * high * (1 - high / max(directions, high + 1)), np))
    worst = 0
    for missing in range(high, low, -1):
        num_pairs = (d - (size - missing) - missing % 2) // 2
        count = missing // 2
        for odds in (_MISFIT, 1 / _MISFIT):
            p = odds * mean / (directions - mean + odds * mean)
            log_law = _log_binomial(num_pairs, p)
            excess = np.exp(np.minimum(log_law - log_law[count], 700))
            nodes = 4
            while True:
                aliases = [q for q in range(count % (nodes // 2), num_pairs + 1, nodes // 2) if q != count]
                if sum(excess[aliases]) < accuracy:
                    break
                nodes += 4
            worst = max(worst, nodes // 2)
    return worst


def num_upper_nodes(size: int, schedule: list[tuple[int, int]], rank: int, dtype: jnp.dtype) -> int:
    """How many nodes in the upper half are enough for all stages of draws of ``size`` items."""
    return max((_num_upper(size, *stage, rank, _ACCURACY[dtype.name]) for stage in schedule), default=2)


def build_stage(W: Array, C: Array, log_radius: Array, high: Array, low: Array, num_upper: int) -> Stage:
    """The circle of radius exp(log_radius). O(J d³)."""
    d = len(W)
    angles = angles_of(num_upper, W.dtype)
    CW, identity = matmul(C, W), jnp.eye(d, dtype=W.dtype)
    radius = jnp.exp(log_radius)
    inverse_at_radius = jnp.linalg.inv(identity + radius * CW)
    diagonal = radius * jnp.sum(W * inverse_at_radius.T, axis=1)
    # the rows of R = t W A⁻¹ that are sums of numbers larger than one
    large = jnp.max(radius * matmul(jnp.abs(W), jnp.abs(inverse_at_radius)), axis=1, keepdims=True) > 1
    largest = jnp.max(diagonal)
    units = jnp.sqrt(jnp.maximum(diagonal, jnp.finfo(W.dtype).eps * jnp.where(largest > 0, largest, 1.0)))

    def node(angle: Array) -> tuple[Array, Array, Array]:
        t = radius * lax.complex(jnp.cos(angle), jnp.sin(angle))
        A = identity + t * CW
        sign, log_abs = jnp.linalg.slogdet(A)
        inverse = jnp.linalg.inv(A)
        if W.dtype == jnp.float32:
            inverse = inverse + matmul(inverse, identity - matmul(A, inverse))
        # There I - A⁻¹ = C R says the same without them, C being nearly the identity.
        by_rest = (identity - inverse) + t * matmul(matmul(identity - C, W).astype(A.dtype), inverse)
        R = jnp.where(large, by_rest, t * matmul(W.astype(A.dtype), inverse))
        R = R / (units[:, None] * units)
        return jnp.stack([jnp.real(R), jnp.imag(R)]), jnp.stack([jnp.real(sign), jnp.imag(sign)]), log_abs

    R, sign, log_abs = lax.map(node, angles, batch_size=None if platform().is_cpu else num_upper)
    R = jnp.swapaxes(R, 0, 1)  # (2, J, d, d)
    return Stage(
        log_radius=log_radius,
        units=units,
        weights=sign.T * jnp.exp(log_abs - jnp.max(log_abs)),
        symmetric=pack(0.5 * (R + jnp.swapaxes(R, 2, 3))).reshape(2 * num_upper, -1),
        sides=jnp.stack([jnp.transpose(R, (3, 0, 1, 2)), jnp.transpose(R, (2, 0, 1, 3))], axis=2),
        high=high,
        low=low,
    )


def mean_within_stage(high: Any, low: Any, mean: Any, variance: Any, numpy: Any = jnp) -> Any:
    """The mean number of missing items that the radius of a stage is to have at the stage's start.

    Each item lowers the mean by 1 - variance/mean, the number of missing items by one: at the start the mean is chosen
    half as much too low as it will be too high at the end.
    """
    drift = numpy.clip(variance / mean, 0.0, 1.0) * (high - low)
    return numpy.clip(high - 0.5 * drift, 0.5, high - 0.25)


def stage_log_radius(log_e: Array, size: Array | int, high: Array, low: Array) -> Array:
    r"""The radius of the stage low < m ≤ high of draws of ``size`` items, which have i = size - high of them then.

    :param log_e: the logarithms of the coefficients e_0 .. e_d (d+1,), which are right about ``size``.

    Of the sets of i items together, det L_A weighs each, and so the number q of items beside them has the weights

    .. math:: \sum_{|A|=i} \sum_{|T|=q} \det L_{A∪T}\, r^q = \binom{i+q}{i}\, e_{i+q}\, r^q .
    """
    sizes, log_factorials = jnp.arange(len(log_e)), jnp.asarray(_log_factorials(len(log_e) - 1), log_e.dtype)
    whole = (log_e + log_factorials).at[size - high + sizes].get(mode="fill", fill_value=-jnp.inf)
    logits, known = whole - log_factorials, whole > -jnp.inf
    least, most = jnp.min(jnp.where(known, sizes, len(log_e))), jnp.max(jnp.where(known, sizes, 0))

    def log_scale(mean: Array) -> Array:
        # no scale makes the mean anything else than what is possible
        mean = jnp.clip(mean, least + 0.25, most - 0.25)
        return jnp.where(least == most, 0.0, log_scales_of_mean_size(logits, mean[None])[0])

    probs = jax.nn.softmax(logits + sizes * log_scale(high - 0.5))
    mean = jnp.dot(probs, sizes)
    variance = jnp.dot(probs, (sizes - mean) ** 2)
    return log_scale(mean_within_stage(high, low, mean, variance))
