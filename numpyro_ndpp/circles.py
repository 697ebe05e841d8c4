r"""All coefficients of det(A + t B) at once, with their derivatives, by a few circles.

The values f(t) = det(A + t B) on a circle of radius r give the coefficients

.. math:: e_k = \frac1N \sum_j f(t_j)\, t_j^{-k}, \qquad t_j = r e^{2\pi i (j+½)/N} ,

to rounding over P_r(k) = e_k rᵏ / f(r), the probability of size k under the kernel scaled by r. So one circle serves
all sizes that are not too unlikely at its radius, some three standard deviations to either side, and a few circles
serve all. On each of them f falls off as a Gaussian away from the real axis: nodes where nothing is left of it are not
computed.

The derivative of log e_k is a sum over the same nodes of tr((A + t B)⁻¹ d(A + t B)): J nodes are O(J d³), for all sizes
together.

*Wide circles* are those of whose nodes one real matrix serves many (:mod:`numpyro_ndpp.wide_circles`).

Reference: Trefethen and Weideman (2014), *The exponentially convergent trapezoidal rule*.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.branches import where_needed
from numpyro_ndpp.linalg import log_det_and_sign, once_known
from numpyro_ndpp.normalizer import Pencil
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.size_bounds import log_concave
from numpyro_ndpp.wide_circles import LARGEST_TANGENT, NUM_TRACES, on_wide_circle

# A circle serves the sizes whose log-probability is at least this: what rounding does to the likely sizes, whose
# derivatives may be much larger, is seen in the others divided by their probability.
_COVERED = -4.0
# It has so many nodes that what is folded onto them is less than rounding to this power beside them.
_FOLDED = 0.75
# A node counts if f, or its slope, is more than so many units of rounding.
_ROUNDING_UNITS = 8
_HALVINGS = 40
# The traces are enough for a node if what they leave out is less than rounding to that power beside the smallest
# probability that its circle serves. A circle is wide if they are for so many of its nodes. Small kernels do without.
_TOLERANCE = 0.6
_FEWEST_BY_TRACES = 4
_SMALLEST_RANK = 48
# There is room for so many nodes a size, and some more for small kernels, whose sizes want a circle each. Pairs of
# eigenvalues that are far from each other need most of them.
_NODES_PER_SIZE = {"float32": 1.25, "float64": 3.25}
MORE_NODES = 48
# Most kernels need no more than these one by one. For a derivative, room for the inverses at all nodes costs as much as
# the inverses at those that count: beyond the first ones there is room only if one of them is needed.
_FEW_NODES = 48


class Circles(NamedTuple):
    """A circle for every size that is the first one of a circle; at others the radius and the sum say nothing."""

    first: Array  # (s,) the first size of the circle that serves a size
    log_radius: Array  # (s,)
    num_upper: Array  # (s,) nodes in the upper half plane; zero where there is no circle
    log_sum: Array  # (s,) log f(r), about


def place_circles(
    log_e: Array, wanted: Array, log_radii: Array | None = None, log_whole: Array | None = None
) -> Circles:
    """Circles that serve all wanted sizes, one after the other, each with as large a radius as its first size allows.

    :param log_e: the logarithms of the coefficients (s,), about; -inf where they are zero.
    :param wanted: (s,) which are to be computed.
    :param log_radii: those to choose from (r,), ascending; any if None.
    :param log_whole: the sequence (s,) that says which sizes are likely, if it is not log_e itself.
    """
    num_sizes, dtype = len(log_e), log_e.dtype
    sizes, log_eps = jnp.arange(num_sizes), math.log(jnp.finfo(dtype).eps)
    log_whole = log_e if log_whole is None else log_whole
    possible = log_whole > -jnp.inf
    most, is_single = jnp.max(jnp.where(possible, sizes, 0)), jnp.sum(possible) <= 1
    finite = jnp.where(possible, log_whole, 0.0)
    bound = jnp.max(finite) - jnp.min(finite) - log_eps + math.log(num_sizes)

    def log_probs(log_radius: Array, log_weights: Array) -> tuple[Array, Array]:
        terms = log_weights + sizes * log_radius
        log_sum = jax.nn.logsumexp(terms)
        return terms - log_sum, log_sum

    def is_small(log_p: Array, first: Array) -> Array:
        mean = jnp.sum(jnp.exp(log_p) * sizes, axis=-1)
        return ((log_p[..., first] >= _COVERED) | (mean < first)) & (mean < most - 0.5)

    def by_halving(first: Array) -> Array:
        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = 0.5 * (low + high)
            larger = is_small(log_probs(middle, log_whole)[0], first)
            return jnp.where(larger, middle, low), jnp.where(larger, high, middle)

        log_radius = lax.fori_loop(0, _HALVINGS, halve, (-bound, bound))[0]
        return jnp.where(is_single, jnp.zeros((), dtype), log_radius)

    radius_for = by_halving
    if log_radii is not None:
        table, _ = jax.vmap(log_probs, (0, None))(log_radii, log_whole)  # once for all circles

        def radius_for(first: Array) -> Array:
            return log_radii[jnp.maximum(jnp.sum(is_small(table, first)) - 1, 0)]

    def circle_from(first: Array) -> tuple[Array, Circles]:
        """The first size of the next circle, and this one."""
        log_radius = radius_for(first)
        is_beyond = wanted & (sizes > first) & (log_probs(log_radius, log_whole)[0] < _COVERED)
        log_p, log_sum = log_probs(log_radius, log_e)
        end = jnp.min(jnp.where(is_beyond, sizes, num_sizes))  # not served any more
        there = log_p > _COVERED + _FOLDED * log_eps
        smallest, largest = jnp.min(jnp.where(there, sizes, first)), jnp.max(jnp.where(there, sizes, first))
        last = jnp.max(jnp.where(wanted & (sizes < end), sizes, first))
        # Sizes further apart than the number of nodes do not meet. A multiple of four: no node is purely imaginary.
        num_nodes = jnp.maximum(largest - first, last - smallest) + 1
        following = jnp.min(jnp.where(wanted & (sizes >= end), sizes, num_sizes))
        return following, Circles(first, log_radius, 2 * ((num_nodes + 3) // 4), log_sum)

    def add(carry: tuple[Array, Circles]) -> tuple[Array, Circles]:
        first, circles = carry
        following, circle = circle_from(first)
        return following, jax.tree.map(lambda of_all, of_one: of_all.at[first].set(of_one), circles, circle)

    start = jnp.min(jnp.where(wanted, sizes, num_sizes))
    if log_radii is None:
        circles = lax.while_loop(lambda carry: carry[0] < num_sizes, add, (start, _no_circles(log_e)))[1]
    else:
        # Circles from all sizes at once, and then which of them are reached: an accelerator waits for every round.
        following, circles = jax.vmap(circle_from)(sizes)
        is_first = sizes == start
        for _ in range(num_sizes.bit_length()):  # one step further, two, four, ...
            is_first |= jnp.any(is_first[:, None] & (following[:, None] == sizes), axis=0)
            following = following.at[following].get(mode="fill", fill_value=num_sizes)
        circles = circles._replace(num_upper=jnp.where(is_first, circles.num_upper, 0))
    is_before = (circles.num_upper > 0) & (sizes <= sizes[:, None])
    return circles._replace(first=jnp.max(jnp.where(is_before, sizes, 0), axis=1))


def _no_circles(log_e: Array) -> Circles:
    nothing, none = jnp.zeros_like(log_e), jnp.zeros(len(log_e), jnp.arange(0).dtype)
    return Circles(none, nothing, none, nothing)


def circles_with_room(log_e: Array, wanted: Array, number: int) -> Circles:
    """Circles with no more nodes than ``number``: sizes that are rare at any radius share them only if they have to."""
    log_smooth = log_concave(log_e)

    def place(carry: tuple[Array, Circles]) -> tuple[Array, Circles]:
        tries, _ = carry
        return tries + 1, place_circles(log_e, wanted, log_whole=jnp.where(tries == 0, log_e, log_smooth))

    def is_missing(carry: tuple[Array, Circles]) -> Array:
        tries, circles = carry
        return (tries == 0) | ((tries == 1) & (jnp.sum(circles.num_upper) > number))

    # A loop of one round or two: what places circles is compiled once.
    return lax.while_loop(is_missing, place, (jnp.asarray(0), _no_circles(log_e)))[1]


class Nodes(NamedTuple):
    """Those that are computed one by one come first."""

    first: Array  # (j,) the first size of the node's circle
    log_radius: Array  # (j,)
    angle: Array  # (j,)
    counts: Array  # (j,)
    is_single: Array  # (j,) computed one by one

    @property
    def t(self) -> Array:
        """r exp(iθ) (j,)."""
        return jnp.exp(self.log_radius) * lax.complex(jnp.cos(self.angle), jnp.sin(self.angle))


def all_nodes(circles: Circles, number: int) -> Nodes:
    """The nodes of all circles, one circle after the other."""
    ends, node, dtype = jnp.cumsum(circles.num_upper), jnp.arange(number), circles.log_radius.dtype
    first = jnp.minimum(jnp.sum(ends <= node[:, None], axis=1), len(ends) - 1)
    num_upper = jnp.maximum(circles.num_upper[first], 1)
    place = (node - (ends[first] - circles.num_upper[first])).astype(dtype)
    angle = math.pi * (place + 0.5) / num_upper.astype(dtype)
    return Nodes(first, circles.log_radius[first], angle, node < ends[-1], node < ends[-1])


def place_nodes(circles: Circles, log_e: Array, eigenvalues: Array | None, number: int) -> tuple[Nodes, Array]:
    """The nodes where f is not small, and which circles (s,) are wide."""
    num_sizes, eps = len(log_e), jnp.finfo(log_e.dtype).eps
    first, log_radius, angle, exists, _ = all_nodes(circles, number)
    is_wide, by_traces = jnp.zeros(num_sizes, bool), jnp.zeros(number, bool)
    if eigenvalues is None:
        weight, limit = _weights_by_sizes(log_e + jnp.arange(num_sizes) * log_radius[:, None], angle)
        counts = exists & (weight > limit)
    else:
        # log |1 + t λ| and log |1 + r λ| of every eigenvalue: d operations a node, not d³
        t = jnp.exp(log_radius) * lax.complex(jnp.cos(angle), jnp.sin(angle))
        factors = jnp.log(jnp.abs(1 + t[:, None] * eigenvalues) + jnp.finfo(log_e.dtype).tiny)
        falls = factors - jnp.log(jnp.abs(1 + jnp.exp(log_radius)[:, None] * eigenvalues))
        log_f = jnp.sum(falls, axis=1)
        # Where one eigenvalue alone makes f vanish, its derivatives do not vanish.
        counts = exists & (log_f - jnp.min(falls, axis=1) > math.log(_ROUNDING_UNITS * eps))
        tangent = jnp.tan(angle / 2)
        log_rest = NUM_TRACES * jnp.log(tangent) - jnp.log1p(-jnp.minimum(tangent, LARGEST_TANGENT))
        log_error = log_f + log_rest + math.log(len(eigenvalues))
        tolerance = _TOLERANCE * math.log(eps) + _COVERED
        by_traces = counts & (tangent <= LARGEST_TANGENT) & (log_error < tolerance)
        num_by_traces = jnp.zeros(num_sizes, int).at[first].add(by_traces)
        is_wide = (num_by_traces >= _FEWEST_BY_TRACES) & (len(eigenvalues) >= _SMALLEST_RANK)
        is_wide &= jnp.cumsum(is_wide) <= _num_wide(num_sizes)
    is_single = counts & ~(by_traces & is_wide[first])
    order = jnp.argsort(~is_single, stable=True)
    return Nodes(*(array[order] for array in (first, log_radius, angle, counts, is_single))), is_wide


def _num_wide(num_sizes: int) -> int:
    """How many wide circles there may be: each serves many sizes."""
    return num_sizes // 16 + 1


def _weights_by_sizes(terms: Array, angle: Array) -> tuple[Array, Array]:
    """|f| and its slope at nodes (j,), over f(r), and what rounding leaves of them, by the log-coefficients (j, s)."""
    sizes = jnp.arange(terms.shape[1])
    probs = jax.nn.softmax(terms, axis=1)
    turn = lax.complex(jnp.cos(angle[:, None] * sizes), jnp.sin(angle[:, None] * sizes))
    away = sizes - jnp.sum(probs * sizes, axis=1, keepdims=True)
    f, slope = (jnp.abs(jnp.sum(weights * turn, axis=1)) for weights in (probs, probs * away))
    spread = jnp.sqrt(jnp.sum(probs * away**2, axis=1))
    return f + slope, _ROUNDING_UNITS * jnp.finfo(terms.dtype).eps * (1 + spread)


def num_places(num_sizes: int, dtype: jnp.dtype) -> int:
    """How many nodes there is room for."""
    return math.ceil(_NODES_PER_SIZE[jnp.dtype(dtype).name] * num_sizes) + MORE_NODES


def _one_by_one(poly: Pencil, nodes: Nodes) -> tuple[Array, Array]:
    """Angle and log-modulus of f at the nodes (j,), zeros beyond those that are computed one by one."""
    size, number, dtype = len(poly.linear), len(nodes.angle), poly.linear.dtype
    chunk = min(number, max(1, platform().circle_chunk_bytes // (2 * dtype.itemsize * size**2)))
    # At a node that is not needed f may vanish, and its derivatives would be no numbers: the first one takes its place,
    # and the identity that of the pencil where there is none.
    is_any = nodes.is_single[0]
    constant = jnp.where(is_any, poly.constant, jnp.eye(size, dtype=dtype))
    poly = poly._replace(constant=constant, linear=jnp.where(is_any, poly.linear, 0.0))
    fill = 0, -number % chunk
    t = jnp.pad(jnp.where(nodes.is_single, nodes.t, nodes.t[0]), fill, "edge").reshape(-1, chunk)
    needed = jnp.pad(nodes.is_single, fill).reshape(-1, chunk)
    few = -(-_FEW_NODES // chunk)
    found = _in_chunks(poly, t[:few], needed[:few])
    if len(t) > few:
        # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
        later = poly._replace(linear=once_known(jnp.sum(found[1]), poly.linear))
        nothing = jnp.zeros(t[few:].shape, dtype)
        more = where_needed(jnp.any(needed[few:]), lambda: _in_chunks(later, t[few:], needed[few:]), (nothing, nothing))
        found = jax.tree.map(lambda *both: jnp.concatenate(both), found, more)
    return jax.tree.map(lambda array: array.reshape(-1)[:number], found)


def _in_chunks(poly: Pencil, t: Array, needed: Array) -> tuple[Array, Array]:
    """Angle and log-modulus of f at nodes t (c, j), one chunk after the other; zeros where it is not needed."""

    def compute(t: Array, needed: Array) -> tuple[Array, Array]:
        log_abs, sign, _ = log_det_and_sign(poly.at(t[:, None, None]))
        return jnp.where(needed, jnp.angle(sign), 0.0), jnp.where(needed, log_abs, 0.0)

    def nothing(t: Array, needed: Array) -> tuple[Array, Array]:
        return jnp.zeros(t.shape, poly.linear.dtype), jnp.zeros(t.shape, poly.linear.dtype)

    if len(t) == 1:
        return jax.tree.map(lambda array: array[None], compute(t[0], needed[0]))
    return lax.map(lambda chunk: lax.cond(jnp.any(chunk[1]), compute, nothing, *chunk), (t, needed))


def _by_traces(poly: Pencil, circles: Circles, nodes: Nodes, is_wide: Array) -> tuple[Array, Array]:
    """Angle and log-modulus of f at the nodes (j,) that are not computed one by one, zeros at others."""

    def compute(first: Array) -> tuple[Array, Array]:
        # Only pencils of eigenvalues that are known come here: their constant is the identity.
        angle, log_abs = on_wide_circle(poly.linear, circles.log_radius[first], nodes.angle)
        own = nodes.counts & ~nodes.is_single & (nodes.first == first)
        return jnp.where(own, angle, 0.0), jnp.where(own, log_abs, 0.0)

    def nothing(first: Array) -> tuple[Array, Array]:
        return jnp.zeros_like(nodes.angle), jnp.zeros_like(nodes.angle)

    firsts = jnp.flatnonzero(is_wide, size=_num_wide(len(is_wide)), fill_value=len(is_wide))
    angle, log_abs = lax.map(lambda first: lax.cond(first < len(is_wide), compute, nothing, first), firsts)
    return jnp.sum(angle, axis=0), jnp.sum(log_abs, axis=0)


def read_off(circles: Circles, nodes: Nodes, angle: Array, log_abs: Array, wanted: Array) -> tuple[Array, Array]:
    """log e_k (s,) of the wanted sizes, zero for others, by f at the nodes; and their probabilities on their circles.

    See :func:`log_coefficients`.
    """
    sizes, number = jnp.arange(len(wanted)), len(nodes.angle)
    relative = jnp.where(nodes.counts, jnp.exp(log_abs - circles.log_sum[nodes.first]), 0.0)
    terms = relative * jnp.cos(angle - sizes[:, None] * nodes.angle)
    own = nodes.first == circles.first[:, None]
    num_upper = jnp.maximum(circles.num_upper[circles.first], 1)
    probs = jnp.sum(jnp.where(own, terms, 0.0), axis=1) / num_upper
    usable = wanted & (probs > 0)
    log_probs = jnp.log(jnp.where(usable, probs, 1.0))
    value = log_probs + circles.log_sum[circles.first] - sizes * circles.log_radius[circles.first]
    has_room = jnp.cumsum(circles.num_upper)[circles.first] <= number
    value = jnp.where(usable, value * jnp.where(has_room, 1.0, jnp.nan), 0.0)  # NaN in derivatives too
    return value, lax.stop_gradient(jnp.where(wanted, jnp.where(has_room, probs, jnp.nan), 1.0))


def log_coefficients(
    poly: Pencil, log_e: Array, wanted: Array, num_wanted: int, eigenvalues: Array | None = None
) -> tuple[Array, Array]:
    """log e_k (s,) of the wanted sizes, by circles, without the pencil's factor; zero for the others.

    :param log_e: the same (s,), about, for the radii; -inf where a coefficient is zero. No gradient passes through it.
    :param wanted: (s,) which sizes are wanted.
    :param num_wanted: how many there are at the most.
    :param eigenvalues: λ (d,) with f(t) = Π (1 + λ t), if they are known: then fewer nodes are computed.
    :return: log e_k, and the probability P_r(k) (s,) of a wanted size on its circle, one for the others; both NaN where
        there is no room for the nodes. A probability that is no more than rounding says that e_k may be zero.

    Differentiable to any order.
    """
    log_e = lax.stop_gradient(log_e)
    wanted, number = wanted & (log_e > -jnp.inf), num_places(num_wanted, log_e.dtype)
    circles = circles_with_room(log_e, wanted, number)
    nodes, is_wide = place_nodes(circles, log_e, lax.stop_gradient(eigenvalues), number)
    angle, log_abs = _one_by_one(poly, nodes)
    if eigenvalues is not None and len(eigenvalues) >= _SMALLEST_RANK:
        # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
        poly = poly._replace(linear=once_known(jnp.sum(log_abs), poly.linear))
        more_angle, more_log_abs = _by_traces(poly, circles, nodes, is_wide)
        angle, log_abs = angle + more_angle, log_abs + more_log_abs
    return read_off(circles, nodes, angle, log_abs, wanted)
