r"""All coefficients of det(A + t B) at once, with their derivatives, by a few circles.

The values f(t) = det(A + t B) on a circle of radius r give the coefficients

.. math:: e_k = \frac1N \sum_j f(t_j)\, t_j^{-k}, \qquad t_j = r e^{2\pi i (j+½)/N} ,

to rounding over P_r(k) = e_k rᵏ / f(r), the probability of size k under the kernel scaled by r. So one circle serves
all sizes that are not too unlikely at its radius, some six standard deviations of them, and a few circles serve all. On
each of them f falls off as a Gaussian away from the real axis: nodes where nothing is left of it are not computed.

The derivative of log e_k is a sum over the same nodes of tr((A + t B)⁻¹ d(A + t B)): J nodes are O(J d³), for all sizes
together, and J is about a quarter of the largest size where sizes vary much, three quarters where they hardly do.

Reference: Trefethen and Weideman (2014), *The exponentially convergent trapezoidal rule*.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.normalizer import Pencil
from numpyro_ndpp.platforms import platform

# A circle serves the sizes whose probability is at least rounding to this power,
_COVERED = 0.27
# and has so many nodes that what is folded onto them is less than rounding to this power beside them.
_FOLDED = 0.75
# A node counts if f, or its slope, is more than so many units of rounding.
_ROUNDING_UNITS = 8
_HALVINGS = 40
# So many nodes more than sizes, for small kernels whose sizes want a circle each.
_MORE_NODES = 48


class _Circles(NamedTuple):
    """A circle for every size that is the first one of a circle; other entries of its arrays say nothing."""

    first: Array  # (s,) the first size of the circle that serves a size
    log_radius: Array  # (s,)
    num_upper: Array  # (s,) nodes in the upper half plane; zero where there is no circle
    log_sum: Array  # (s,) log f(r)


def _place(log_e: Array, wanted: Array) -> _Circles:
    """Circles that serve all wanted sizes, one after the other, each with as large a radius as its first size allows.

    :param log_e: the logarithms of the coefficients (s,), about; -inf where they are zero.
    :param wanted: (s,) which are to be computed.
    """
    num_sizes, dtype = len(log_e), log_e.dtype
    sizes, log_eps = jnp.arange(num_sizes), math.log(jnp.finfo(dtype).eps)
    possible = log_e > -jnp.inf
    most, is_single = jnp.max(jnp.where(possible, sizes, 0)), jnp.sum(possible) <= 1
    finite = jnp.where(possible, log_e, 0.0)
    bound = jnp.max(finite) - jnp.min(finite) - log_eps + math.log(num_sizes)

    def log_probs(log_radius: Array) -> tuple[Array, Array]:
        terms = log_e + sizes * log_radius
        log_sum = jax.nn.logsumexp(terms)
        return terms - log_sum, log_sum

    def radius_for(first: Array) -> Array:
        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = 0.5 * (low + high)
            log_p, _ = log_probs(middle)
            mean = jnp.sum(jnp.exp(log_p) * sizes)
            is_small = ((log_p[first] >= _COVERED * log_eps) | (mean < first)) & (mean < most - 0.5)
            return jnp.where(is_small, middle, low), jnp.where(is_small, high, middle)

        log_radius = lax.fori_loop(0, _HALVINGS, halve, (-bound, bound))[0]
        return jnp.where(is_single, jnp.zeros((), dtype), log_radius)

    def add(carry: tuple[Array, _Circles]) -> tuple[Array, _Circles]:
        first, circles = carry
        log_radius = radius_for(first)
        log_p, log_sum = log_probs(log_radius)
        is_beyond = wanted & (sizes > first) & (log_p < _COVERED * log_eps)
        end = jnp.min(jnp.where(is_beyond, sizes, num_sizes))  # not served any more
        there = log_p > (_COVERED + _FOLDED) * log_eps
        smallest, largest = jnp.min(jnp.where(there, sizes, first)), jnp.max(jnp.where(there, sizes, first))
        last = jnp.max(jnp.where(wanted & (sizes < end), sizes, first))
        # Sizes further apart than the number of nodes do not meet. A multiple of four: no node is purely imaginary.
        num_nodes = jnp.maximum(largest - first, last - smallest) + 1
        num_upper = 2 * ((num_nodes + 3) // 4)
        served = wanted & (sizes >= first) & (sizes < end)
        circles = _Circles(
            jnp.where(served, first, circles.first),
            circles.log_radius.at[first].set(log_radius),
            circles.num_upper.at[first].set(num_upper),
            circles.log_sum.at[first].set(log_sum),
        )
        return jnp.min(jnp.where(wanted & (sizes >= end), sizes, num_sizes)), circles

    nothing, none = jnp.zeros(num_sizes, dtype), jnp.zeros(num_sizes, sizes.dtype)
    start = jnp.min(jnp.where(wanted, sizes, num_sizes)), _Circles(none, nothing, none, nothing)
    return lax.while_loop(lambda carry: carry[0] < num_sizes, add, start)[1]


class _Nodes(NamedTuple):
    """Those that count come first."""

    first: Array  # (j,) the first size of the node's circle
    log_radius: Array  # (j,)
    angle: Array  # (j,)
    counts: Array  # (j,)


def _nodes(circles: _Circles, log_e: Array, number: int) -> _Nodes:
    sizes, eps = jnp.arange(len(log_e)), jnp.finfo(log_e.dtype).eps
    ends = jnp.cumsum(circles.num_upper)
    node = jnp.arange(number)
    first = jnp.minimum(jnp.searchsorted(ends, node, side="right"), len(sizes) - 1)
    num_upper = jnp.maximum(circles.num_upper[first], 1)
    angle = math.pi * (node - (ends[first] - circles.num_upper[first]) + 0.5) / num_upper
    log_radius = circles.log_radius[first]
    # What f is there, by the coefficients: a matter of d operations, not of d³.
    probs = jnp.exp(log_e + sizes * log_radius[:, None] - circles.log_sum[first][:, None])
    turn = lax.complex(jnp.cos(angle[:, None] * sizes), jnp.sin(angle[:, None] * sizes))
    away = sizes - jnp.sum(probs * sizes, axis=1, keepdims=True)
    f, slope = (jnp.abs(jnp.sum(weights * turn, axis=1)) for weights in (probs, probs * away))
    spread = jnp.sqrt(jnp.sum(probs * away**2, axis=1))
    # Where one eigenvalue alone makes f vanish, the slope does not, nor does what the node says about derivatives.
    counts = (node < ends[-1]) & (f + slope > _ROUNDING_UNITS * eps * (1 + spread))
    order = jnp.argsort(~counts, stable=True)
    return _Nodes(first[order], log_radius[order], angle[order], counts[order])


def _log_determinants(poly: Pencil, nodes: _Nodes) -> tuple[Array, Array]:
    """Sign and logarithm of f at the nodes (j,), which those that do not count are spared as far as they come last."""
    size = len(poly.linear)
    chunk = min(len(nodes.angle), max(1, platform().circle_chunk_bytes // (2 * poly.linear.dtype.itemsize * size**2)))
    extra = -len(nodes.angle) % chunk
    t = jnp.exp(nodes.log_radius) * lax.complex(jnp.cos(nodes.angle), jnp.sin(nodes.angle))
    t, counts = (jnp.pad(array, (0, extra)).reshape(-1, chunk) for array in (t, nodes.counts))

    def compute(t: Array) -> tuple[Array, Array]:
        sign, log_abs = jnp.linalg.slogdet(poly.constant + t[:, None, None] * poly.linear)
        return sign, log_abs

    def nothing(t: Array) -> tuple[Array, Array]:
        return jnp.ones_like(t), jnp.zeros(t.shape, poly.linear.dtype)

    def where_any_counts(chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        t, counts = chunk
        return lax.cond(jnp.any(counts), compute, nothing, jnp.where(counts, t, 0.0))

    if len(t) == 1:
        sign, log_abs = compute(jnp.where(counts[0], t[0], 0.0))
    else:
        sign, log_abs = (array.reshape(-1) for array in lax.map(where_any_counts, (t, counts)))
    number = len(nodes.angle)
    return sign[:number], log_abs[:number]


def log_coefficients(poly: Pencil, log_e: Array, wanted: Array, num_wanted: int) -> Array:
    """log e_k (s,) of the wanted sizes, by circles, without the pencil's factor; zero for the others.

    :param log_e: the same (s,), about, for the radii; -inf where a coefficient is zero. No gradient passes through it.
    :param wanted: (s,) which sizes are wanted, all of them possible.
    :param num_wanted: how many there are at the most.

    Differentiable to any order.
    """
    log_e, sizes = lax.stop_gradient(log_e), jnp.arange(len(log_e))
    wanted = wanted & (log_e > -jnp.inf)
    circles = _place(log_e, wanted)
    nodes = _nodes(circles, log_e, num_wanted + _MORE_NODES)
    sign, log_abs = _log_determinants(poly, nodes)
    relative = jnp.where(nodes.counts, jnp.exp(log_abs - circles.log_sum[nodes.first]), 0.0)
    turn = sizes[:, None] * nodes.angle
    terms = relative * (jnp.real(sign) * jnp.cos(turn) + jnp.imag(sign) * jnp.sin(turn))
    own = nodes.first == circles.first[:, None]
    num_upper = jnp.maximum(circles.num_upper[circles.first], 1)
    probs = jnp.sum(jnp.where(own, terms, 0.0), axis=1) / num_upper
    usable = wanted & (probs > 0)
    log_probs = jnp.log(jnp.where(usable, probs, 1.0))
    value = log_probs + circles.log_sum[circles.first] - sizes * circles.log_radius[circles.first]
    return jnp.where(usable, value, 0.0)
