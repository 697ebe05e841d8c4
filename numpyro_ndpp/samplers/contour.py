r"""The contour sampler: exact, independent draws of one size, one descent of the tree for each item, no rejection.

Scaled by t, the kernel L = X W Xᵀ has the marginal kernel X R_t Xᵀ with R_t = t W (I + t C W)⁻¹, and a subset's size is
the exponent of t. So the law of one size k is read off a circle, t_j = r exp(iθ_j):

.. math:: P(a \in S) = \frac{\sum_j w_j\, x_a^\top R_j x_a}{\sum_j w_j}, \qquad w_j = \det(I + t_j W C)\, t_j^{-k} ,

a quadratic form in the features, from which the tree draws the first item. Given that item a is in S,

.. math:: w_j \leftarrow w_j\, x_a^\top R_j x_a, \qquad
          R_j \leftarrow R_j - R_j x_a x_a^\top R_j / (x_a^\top R_j x_a) ,

and the next item follows: k descents give the subset. The query's mass is the number of items that are still missing.

*Re-tilting.* The radius r fits the law of the size at the start; given the items found so far the size that is wanted
would become ever rarer, and the sum over the circle all cancellation. So the draw is cut into stages by the number m of
items that are missing, low < m ≤ high, each with a smaller circle of its own. The radii come from one pilot draw in the
preprocessing: at the end of a stage the weights w_j give the law of the number of missing items, and with it the next
radius. A new stage conditions its R_j on the items so far, one after the other. All stages have as many nodes as the
first, which needs the most, so that one program serves them all.

*Thin factors.* The R_j of a stage are the same for all draws and never copied: what conditioning subtracts from them is
kept as two vectors for each item and node, and the query is a product of two matrices of those.

*Given items.* Items that are known to be in S are simply the first ones of every draw.

*Digits.* The items' features are brought to XᵀX = I first, and every stage then measures them in units in which its R_j
have a diagonal of about one. Of an item that joins only the part that is orthogonal to those before it counts: what R_j
becomes depends on what the items span, not on the items, and orthogonal ones leave little to cancel.

Reference: this project's documentation, "Theory".
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from numpyro_ndpp.kernel import Pinned, gram, whiten
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.normalizer import HALF_AN_ITEM, log_sum_esp, log_sum_esp_given, pencil, size_moments, solve_log_scale
from numpyro_ndpp.samplers.base import Sampler
from numpyro_ndpp.samplers.batching import chunk_size, in_chunks, pinned_items, side_by_side
from numpyro_ndpp.samplers.tree import Tree, build_tree, descend_symmetric, pack, symmetric_part, unpack
from numpyro_ndpp.size_law import log_scales_of_mean_size

# A stage lasts so many times √m items, where m are missing at its start. Over a stage the radius comes to be off by as
# many standard deviations of the size, which costs digits, and float32 has none to spare.
_STAGE_LENGTH = {"float32": 2.5, "float64": 5.0}
# What aliasing may add to a size's weight, relative to it.
_ACCURACY = {"float32": 1e-7, "float64": 1e-11}
# How much more than its aim the mean size of the first stage may be.
_NEAR = 0.1
# A pilot's radius may be off by this factor.
_MISFIT = 1.25
# So many items' factors, or fewer, make a page. On a CPU even a few items have two pages, of which the second is read
# only when it is needed; on an accelerator a loop over pages costs more than it saves.
_PAGE = 16
_FEW = 8
# Rounding may lead a descent to where there is no mass; then the draw is made again.
_MAX_ATTEMPTS = 20


# Real and imaginary part: a pair of arrays, or an array whose first axis has two entries.
Complex = Array | tuple[Array, Array]


class Factors(NamedTuple):
    """What conditioning on items has subtracted from R_j, Σ_m left_m right_mᵀ, and the weights w_j of the J nodes.

    Items are kept in pages of s slots, of which only those in use are read. Complex numbers are pairs of real ones,
    along an axis of two. What is known of an item is the part of its features, in the stage's units, that is orthogonal
    to those of the items before it.
    """

    left: Array  # (pages, d, 2, s, J)
    right: Array  # (pages, 2, s, J, d)
    weights: Array  # (2, J)
    basis: Array  # (pages · s, d) orthonormal rows; in float64 none


class Stage(NamedTuple):
    """The circle of a stage: R_j and det(I + t_j W C) at J nodes in the upper half. Stages are stacked."""

    log_radius: Array
    units: Array  # (d,) of the features, in which R_j has a diagonal of about one
    weights: Array  # (2, J) the determinants, divided by the largest
    symmetric: Array  # (2J, p) the packed symmetric parts of Re R_j and of Im R_j
    left: Array  # (2, d, J, d) R_j, so that left · x = R_j x
    right: Array  # (2, J, d, d) R_jᵀ, so that right · x = x R_j
    high: Array  # it serves while at most so many items are missing
    low: Array  # and more than so many

    @property
    def angles(self) -> Array:
        return _angles(self.weights.shape[1], self.weights.dtype)


class ContourInfo(NamedTuple):
    """How a draw went, for each of its items in order.

    ``rho`` (w,) is the sum of the weights w_j over that of their magnitudes, one where nothing cancels. ``mass_error``
    (w,) is what the query's mass is off from the number of missing items.
    """

    rho: Array
    mass_error: Array


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tree", "C", "pinned", "stages", "possible"],
    meta_fields=["width"],
)
@dataclass(frozen=True)
class ContourState:
    """A prepared kernel: the tree and the circle of every stage."""

    tree: Tree
    C: Array  # (d, d)
    pinned: Array  # (j,) items in every subset: a draw begins with them
    stages: Any  # a Stage, stacked; None where nothing is to be drawn
    possible: Array  # whether any subset of the size has a positive probability
    width: int = field(metadata={"static": True})

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """(high, low) of every stage: it serves while more than ``low`` and at most ``high`` items are missing."""
        return tuple(zip(self.stages.high.tolist(), self.stages.low.tolist(), strict=True))

    @property
    def radii(self) -> Array:
        """The radius of every stage's circle."""
        return jnp.exp(self.stages.log_radius)


def _angles(num_upper: int, dtype: jnp.dtype) -> Array:
    """The angles (J,) of the nodes in the upper half; the others are their conjugates."""
    return (math.pi / num_upper) * (jnp.arange(num_upper, dtype=dtype) + 0.5)


def _schedule(max_size: int, length: float) -> list[tuple[int, int]]:
    """(high, low) of every stage."""
    stages, high = [], max_size
    while high > 0:
        low = max(0, high - math.ceil(length * math.sqrt(high)))
        stages.append((high, low))
        high = low
    return stages


def _multiply(a: Complex, b: Complex) -> tuple[Array, Array]:
    """The product of complex numbers."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _turn(weights: Array, angles: Array) -> Array:
    """Complex weights (2, J) times exp(-i angles)."""
    return jnp.stack(_multiply(weights, (jnp.cos(angles), -jnp.sin(angles))))


def _normalized(weights: Array) -> Array:
    largest = jnp.sqrt(jnp.max(jnp.sum(weights**2, axis=0)))
    return weights / jnp.where(largest > 0, largest, 1.0)


def _log_binomial(number: int, p: float) -> np.ndarray:
    """log P(q) for q = 0 .. number of a binomial law."""
    log_choose = [math.lgamma(number + 1) - math.lgamma(q + 1) - math.lgamma(number - q + 1) for q in range(number + 1)]
    q = np.arange(number + 1)
    return np.array(log_choose) + q * math.log(p) + (number - q) * math.log1p(-p)


@functools.cache
def _num_upper(size: int, high: int, low: int, d: int, accuracy: float) -> int:
    """How many nodes in the upper half are enough for draws of ``size`` items in the stage low < m ≤ high.

    The sum over N nodes takes sizes m ± N, m ± 2N, ... for m. The laws of even sizes and of odd ones are each those of
    real-rooted polynomials, of which pairs that come all or nothing with one probability fall off most slowly: N is
    chosen for them, at the radius of the stage, off by as much as a pilot may be. N is a multiple of four, so that no
    node is purely imaginary and no even size is taken for an odd one.
    """
    directions = d - (size - high)
    mean = float(_mean_within_stage(high, low, high, 2 * high * (1 - high / max(directions, high + 1)), np))
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


def _build_stage(W: Array, C: Array, log_radius: Array, high: Array, low: Array, num_upper: int) -> Stage:
    """The circle of radius exp(log_radius). O(J d³)."""
    d = len(W)
    angles = _angles(num_upper, W.dtype)
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

    R, sign, log_abs = lax.map(node, angles)
    R = jnp.swapaxes(R, 0, 1)  # (2, J, d, d)
    return Stage(
        log_radius=log_radius,
        units=units,
        weights=sign.T * jnp.exp(log_abs - jnp.max(log_abs)),
        symmetric=pack(0.5 * (R + jnp.swapaxes(R, 2, 3))).reshape(2 * num_upper, -1),
        left=jnp.swapaxes(R, 1, 2),
        right=jnp.swapaxes(R, 2, 3),
        high=high,
        low=low,
    )


def _start(stage: Stage, size: Array | int, slots: int) -> Factors:
    """Nothing conditioned on yet, room for so many items."""
    _, num_upper, d, _ = stage.right.shape
    dtype = stage.right.dtype
    num_pages = -(-slots // _PAGE)
    if num_pages == 1 and slots >= _FEW and jax.default_backend() == "cpu":
        num_pages = 2
    slots = -(-slots // num_pages)
    return Factors(
        left=jnp.zeros((num_pages, d, 2, slots, num_upper), dtype),
        right=jnp.zeros((num_pages, 2, slots, num_upper, d), dtype),
        weights=_turn(stage.weights, size * stage.angles),
        basis=jnp.zeros((num_pages * slots if dtype == jnp.float32 else 0, d), dtype),
    )


def _orthogonal_part(x: Array, basis: Array) -> Array:
    """What of x (d,) is orthogonal to the rows of ``basis`` (m, d), of length one; nothing if x is zero.

    In float64, which has the digits, x itself.
    """
    if x.dtype == jnp.float64:
        return x
    for _ in range(2):  # once more for what rounding has left
        x = x - matmul(matmul(basis, x), basis)
        length = jnp.sqrt(jnp.sum(x**2))
        x = x / jnp.where(length > 0, length, 1.0)
    return x


def _sum_over_pages(factors: Factors, used: Array | int, of_page: Callable[[Array, Array], Any]) -> Any:
    """The sum of ``of_page(left, right)`` over the pages on which the first ``used`` slots lie."""
    num_pages, slots = factors.left.shape[0], factors.left.shape[3]
    if num_pages == 1:
        return of_page(factors.left[0], factors.right[0])

    def add(page: Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, of_page(factors.left[page], factors.right[page]))

    shapes = jax.eval_shape(of_page, factors.left[0], factors.right[0])
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return lax.fori_loop(0, (used + slots - 1) // slots, add, zeros)


def _query(stage: Stage, factors: Factors, used: Array | int) -> tuple[Array, Array]:
    """The query (d, d) for the next item, symmetric, where ``used`` slots are taken, and ρ."""
    d = stage.right.shape[-1]
    total = jnp.sum(factors.weights[0])
    magnitude = jnp.sum(jnp.sqrt(jnp.sum(factors.weights**2, axis=0)))
    weights = factors.weights / jnp.where(total > 0, total, 1.0)
    conjugate = weights * jnp.array([[1.0], [-1.0]], weights.dtype)
    base = unpack(matmul(conjugate.reshape(-1), stage.symmetric), d)

    def of_page(left: Array, right: Array) -> Array:
        # Re(w l rᵀ) is one product of real matrices
        real, imag = _multiply((left[:, 0], left[:, 1]), weights)
        return matmul(jnp.stack([real, -imag], axis=1).reshape(d, -1), right.reshape(-1, d))

    Q = base - symmetric_part(_sum_over_pages(factors, used, of_page))
    return Q * (stage.units[:, None] * stage.units), total / magnitude


def _condition(factors: Factors, left: Complex, right: Complex, x: Array, slot: Array) -> Factors:
    """The factors given one more item, with x (d,) its part of the basis, R_j x left (d, J) and x R_j right (J, d)."""
    slots = factors.left.shape[3]

    def of_page(L: Array, R: Array) -> tuple[Complex, Complex]:
        to_x = matmul(R, x)  # (2, s, J)
        from_x = jnp.einsum("dcsj,d->csj", L, x, precision="highest")
        if jax.default_backend() != "cpu":  # which sums while it reads
            by_left, by_right = _multiply((L[:, 0], L[:, 1]), to_x), _multiply(R, from_x[..., None])
            return (by_left[0].sum(1), by_left[1].sum(1)), (by_right[0].sum(0), by_right[1].sum(0))

        def add(place: Array, total: tuple[Complex, Complex]) -> tuple[Complex, Complex]:
            by_left = _multiply((L[:, 0, place], L[:, 1, place]), to_x[:, place])
            by_right = _multiply(R[:, place], from_x[:, place, :, None])
            return jax.tree.map(jnp.add, total, (by_left, by_right))

        zeros = jax.tree.map(jnp.zeros_like, ((left[0], left[1]), (right[0], right[1])))
        return lax.fori_loop(0, slots, add, zeros)

    from_left, from_right = _sum_over_pages(factors, slot, of_page)
    left = left[0] - from_left[0], left[1] - from_left[1]
    right = right[0] - from_right[0], right[1] - from_right[1]
    p = matmul(x, left[0]), matmul(x, left[1])
    squared = p[0] ** 2 + p[1] ** 2
    usable = squared > 0
    inverse = jnp.where(usable, 1 / jnp.where(usable, squared, 1.0), 0.0)
    left = _multiply(left, (p[0] * inverse, -p[1] * inverse))
    page, place = slot // slots, slot % slots
    weights = jnp.stack(_multiply(factors.weights, p))
    return Factors(
        left=factors.left.at[page, :, :, place].set(jnp.stack(left, axis=1)),
        right=factors.right.at[page, :, place].set(jnp.stack(right)),
        weights=_normalized(weights),
        basis=factors.basis.at[slot].set(x) if len(factors.basis) else factors.basis,
    )


def _join(stage: Stage, factors: Factors, x: Array, slot: Array) -> Factors:
    """The factors given one more item, with features x (d,)."""
    x = _orthogonal_part(x * stage.units, factors.basis)
    return _condition(factors, matmul(stage.left, x), matmul(stage.right, x), x, slot)


def _enter(tree: Tree, stage: Stage, size: int, items: Array, num_before: Array) -> Factors:
    """The factors of a stage given the first of the items (w,); there is room for all."""
    factors = _start(stage, size, len(items))
    d, num_upper = stage.right.shape[-1], stage.weights.shape[1]
    is_before = jnp.arange(len(items)) < num_before
    rows = jnp.where(is_before[:, None], tree.X.at[items].get(mode="fill", fill_value=0) * stage.units, 0.0)

    def orthogonalize(slot: Array, rows: Array) -> Array:
        before = jnp.where(jnp.arange(len(items))[:, None] < slot, rows, 0)
        return rows.at[slot].set(_orthogonal_part(rows[slot], before))

    def given_those_before() -> Factors:
        units = lax.fori_loop(0, num_before, orthogonalize, rows) if rows.dtype == jnp.float32 else rows
        lefts = matmul(units, stage.left.reshape(-1, d).T).reshape(-1, 2, d, num_upper)
        rights = matmul(units, stage.right.reshape(-1, d).T).reshape(-1, 2, num_upper, d)

        def again(slot: Array, factors: Factors) -> Factors:
            return _condition(factors, lefts[slot], rights[slot], units[slot], slot)

        return lax.fori_loop(0, num_before, again, factors)

    return lax.cond(num_before > 0, given_those_before, lambda: factors)


class _Draw(NamedTuple):
    """A draw on its way: its items (w,), the pinned ones first, and how it went."""

    items: Array
    found: Array
    info: ContourInfo
    weights: Array  # (2, J) of the last stage


def _run_stage(tree: Tree, C: Array, stage: Stage, draw: _Draw, uniforms: Array) -> _Draw:
    """The items of one stage, by numbers (w, decisions). The item drawn while m are missing has the slot w - m."""
    n, width = len(tree.X), len(draw.items)
    num_before = width - stage.high
    factors = _enter(tree, stage, width, draw.items, num_before)

    def take(slot: Array, carry: tuple[_Draw, Factors]) -> tuple[_Draw, Factors]:
        draw, factors = carry
        Q, rho = _query(stage, factors, slot)
        item, found = descend_symmetric(tree, Q, uniforms[slot], draw.items)
        item = jnp.where(found, item, n)
        factors = _join(stage, factors, tree.X.at[item].get(mode="fill", fill_value=0), slot)
        info = ContourInfo(
            rho=draw.info.rho.at[slot].set(rho),
            mass_error=draw.info.mass_error.at[slot].set(jnp.sum(Q * C) - (width - slot)),
        )
        items = draw.items.at[slot].set(item.astype(draw.items.dtype))
        # A sum that is nothing but rounding is no law to draw from.
        found &= rho > factors.weights.size * jnp.finfo(rho.dtype).eps
        return draw._replace(items=items, found=draw.found & found, info=info), factors

    start = draw._replace(weights=factors.weights)
    draw, factors = lax.fori_loop(num_before, width - stage.low, take, (start, factors))
    return draw._replace(weights=factors.weights)


def _until_found(attempt: Callable[[Array], _Draw], key: Array, start: _Draw) -> _Draw:
    """A draw that found all its items, made anew where rounding led a descent to a place without mass."""

    def failed(carry: tuple[Array, _Draw]) -> Array:
        number, draw = carry
        return ((number == 0) | ~draw.found) & (number < _MAX_ATTEMPTS)

    def once_more(carry: tuple[Array, _Draw]) -> tuple[Array, _Draw]:
        return carry[0] + 1, attempt(random.fold_in(key, carry[0]))

    return lax.while_loop(failed, once_more, (jnp.asarray(0), start))[1]


def _uniforms(tree: Tree, num_items: int, key: Array) -> Array:
    """All the random numbers (w, decisions) of a draw."""
    return random.uniform(key, (num_items, tree.num_decisions), tree.X.dtype)


def _empty_draw(n: int, width: int, num_upper: int, dtype: jnp.dtype, pinned: Array) -> _Draw:
    """A draw that has nothing but its pinned items (j,), and room for ``width`` others."""
    items = jnp.append(pinned.astype(jnp.int32), jnp.full(width, n, jnp.int32))
    info = ContourInfo(jnp.ones(len(items), dtype), jnp.zeros(len(items), dtype))
    return _Draw(items, jnp.asarray(True), info, jnp.zeros((2, num_upper), dtype))


def _mean_within_stage(high: Any, low: Any, mean: Any, variance: Any, numpy: Any = jnp) -> Any:
    """The mean number of missing items that the radius of a stage is to have at the stage's start.

    Each item lowers the mean by 1 - variance/mean, the number of missing items by one: at the start the mean is chosen
    half as much too low as it will be too high at the end.
    """
    drift = numpy.clip(variance / mean, 0.0, 1.0) * (high - low)
    return numpy.clip(high - 0.5 * drift, 0.5, high - 0.25)


def _next_log_radius(stage: Stage, pilot: _Draw, low: Array, d: int) -> Array:
    """The radius of the next stage, down to ``low`` missing items, where a pilot has just finished a stage."""
    missing, num_upper = stage.low, len(stage.angles)
    sizes = jnp.arange(d + 1)
    turned = _turn(pilot.weights[..., None], stage.angles[:, None] * (sizes - missing))
    coefficients = jnp.sum(turned[0], axis=0)
    noise = num_upper * jnp.finfo(coefficients.dtype).eps * jnp.sum(jnp.sqrt(jnp.sum(pilot.weights**2, axis=0)))
    known = (jnp.abs(sizes - missing) < num_upper) & ((coefficients > noise) | (sizes == missing))
    logits = jnp.where(known, jnp.log(jnp.maximum(coefficients, noise)), -jnp.inf)
    least, most = jnp.min(jnp.where(known, sizes, d)), jnp.max(jnp.where(known, sizes, 0))

    def log_scale(mean: Array) -> Array:
        # no scale makes the mean anything else than what is possible
        mean = jnp.clip(mean, least + 0.25, most - 0.25)
        return jnp.where(least == most, 0.0, log_scales_of_mean_size(logits, mean[None])[0])

    probs = jax.nn.softmax(logits + sizes * log_scale(jnp.asarray(missing - 0.5, logits.dtype)))
    mean = jnp.dot(probs, sizes)
    variance = jnp.dot(probs, (sizes - mean) ** 2)
    return stage.log_radius + log_scale(_mean_within_stage(missing, low, mean, variance))


@dataclass(frozen=True)
class Contour(Sampler):
    """Exact sampler for a fixed size, at a cost that hardly depends on n: one descent of the tree for each item.

    After preprocessing of O(n d² + J d³) a draw of k items costs O(J k² d²) in matrix products, plus k descents of O(d²
    log n), with J nodes on a circle, about 6√k. Draws are independent: no chain, no steps, no rejection. Rounding is
    the only error, and every draw can be asked how large it is (:meth:`sample_with_info`). Where the size varies, use
    :class:`Exact`.

    :raises ValueError: for a law whose size varies, and for a kernel in another type than float32 and float64.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, Contour
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(100, 4), (100, 4), (4, 4)]))
    >>> law = KNDPP(V, B, D, k=3, sampler=Contour())
    >>> law.sample(random.key(3), (2,)).shape
    (2, 3)

    How well it went:

    >>> state = Contour().prepare(law.X, law.W, 3, 3)
    >>> subsets, info = Contour().sample_with_info(state, random.split(random.key(4), 5))
    >>> subsets.shape, bool(info.rho.min() > 0.01), bool(abs(info.mass_error).max() < 1e-3)
    ((5, 3), True, True)
    """

    def prepare(
        self,
        X: Array,
        W: Array,
        min_size: int,
        max_size: int,
        pinned: Array | None = None,
        width: int | None = None,
    ) -> ContourState:
        """The tree and the circles of all stages. O(n d² + J d³) once."""
        if X.dtype.name not in _STAGE_LENGTH:
            raise ValueError(f"Contour needs a kernel in {' or '.join(_STAGE_LENGTH)}, got {X.dtype.name}")
        items, width = pinned_items(max_size, pinned, width)
        (n, d), num_rows = X.shape, len(items)
        if min_size != max_size or width != max_size - num_rows:
            raise ValueError("Contour draws subsets of one size; for a law whose size varies use Exact()")
        rank, dtype = min(n, d), X.dtype
        # asked of the kernel as it is given: in the basis below, W has the small scales of X
        given, C = Pinned.of(X, items), gram(X)
        if num_rows:
            log_weight = log_sum_esp_given(W, C, given, max_size, max_size, rank, fixed=True)
        else:
            log_weight = log_sum_esp(W, C, max_size, max_size, rank)
        X, W = whiten(X, W)
        tree = build_tree(X)
        C, schedule = tree.gram, np.array(_schedule(width, _STAGE_LENGTH[dtype.name]), np.int32).reshape(-1, 2)
        accuracy = _ACCURACY[dtype.name]
        num_upper = max((_num_upper(max_size, *stage, rank, accuracy) for stage in schedule.tolist()), default=2)
        possible = log_weight > -jnp.inf
        stages = self._stages(W, C, tree, items, schedule, num_upper, width) if len(schedule) else None
        return ContourState(tree, C, items, stages, possible, width)

    def _stages(
        self, W: Array, C: Array, tree: Tree, items: Array, schedule: np.ndarray, num_upper: int, width: int
    ) -> Stage:
        """The circles of all stages, their radii by a pilot draw that goes through them."""
        n, d = tree.X.shape
        dtype, highs, lows = W.dtype, jnp.asarray(schedule[:, 0]), jnp.asarray(schedule[:, 1])
        poly = pencil(W, C, Pinned.of(tree.X, items))

        def solve(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            # Beside given items some number of others may be certain, as a partner is for an item of a skew pair.
            more = 2 * HALF_AN_ITEM if len(items) else _NEAR
            log_radius, _ = solve_log_scale(poly, carry[0], carry[0], above=more, pinned=len(items) > 0)
            return _mean_within_stage(width, int(schedule[0, 1]), *size_moments(poly, log_radius)), log_radius

        start = jnp.asarray(max(width - 0.5, 0.5), dtype), jnp.zeros((), dtype)
        _, log_radius = lax.fori_loop(0, 2, solve, start)  # the mean to aim at depends on the variance
        pilot = _empty_draw(n, width, num_upper, dtype, items)
        key = random.key(0)

        def next_stage(carry: tuple[Array, _Draw], limits: tuple[Array, Array, Array]) -> tuple[Any, Stage]:
            (log_radius, pilot), (high, low, next_low) = carry, limits
            stage = _build_stage(W, C, log_radius, high, low, num_upper)

            def attempt(key: Array) -> _Draw:
                return _run_stage(tree, C, stage, pilot, _uniforms(tree, len(pilot.items), key))

            after = _until_found(attempt, key, pilot)
            return (_next_log_radius(stage, after, next_low, d), after), stage

        limits = highs, lows, jnp.append(lows[1:], 0)
        return lax.scan(next_stage, (log_radius, pilot), limits)[1]

    def sample(self, state: ContourState, keys: Array, number: Array | int | None = None) -> Array:
        """Subsets (s, w), one for each key; only the first ``number`` are made."""
        if state.width == 0:
            return jnp.zeros((len(keys), 0), jnp.int32)
        draws = partial(side_by_side, lambda key: _draw(state, key)[0])
        return in_chunks(draws, _chunk_size(state), len(keys) if number is None else number, keys)

    def sample_with_info(self, state: ContourState, keys: Array) -> tuple[Array, ContourInfo]:
        """Subsets (s, w) as from :meth:`sample`, and how each draw went; no numbers where none could be made."""
        return in_chunks(partial(side_by_side, partial(_draw, state)), _chunk_size(state), len(keys), keys)

    def failure(self, state: ContourState) -> str:
        """Why a draw was not made."""
        return (
            "their probability is so small beside those of other sizes that nothing but rounding is left of it in "
            f"{state.C.dtype}"
        )


def _chunk_size(state: ContourState) -> int:
    """How many draws are made side by side, by their factors."""
    d, num_upper = len(state.C), state.stages.weights.shape[-1]
    return chunk_size(8 * state.C.dtype.itemsize * d * (d + num_upper * (state.width + len(state.pinned))))


def _draw(state: ContourState, key: Array) -> tuple[Array, ContourInfo]:
    """A subset (width,), or -1 throughout where none could be drawn, and how it went."""
    n, num_rows, num_stages = len(state.tree.X), len(state.pinned), len(state.stages.log_radius)
    empty = _empty_draw(n, state.width, state.stages.weights.shape[-1], state.C.dtype, state.pinned)

    def attempt(key: Array) -> _Draw:
        uniforms = _uniforms(state.tree, len(empty.items), key)

        def run(number: Array, draw: _Draw) -> _Draw:
            stage = jax.tree.map(lambda table: table[number], state.stages)
            return _run_stage(state.tree, state.C, stage, draw, uniforms)

        return lax.fori_loop(0, num_stages, run, empty)

    draw = _until_found(attempt, key, empty)
    done = state.possible & draw.found
    info = jax.tree.map(lambda array: jnp.where(done, array[num_rows:], jnp.nan), draw.info)
    return jnp.where(done, jnp.sort(draw.items[num_rows:]), -1), info
