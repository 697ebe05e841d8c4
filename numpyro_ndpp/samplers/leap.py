r"""Leaping from item to item: exact, independent draws of laws whose size varies, without a chain and without a circle.

Go through the items in order. Given what was decided about the items so far, let R (d, d) be such that X R Xᵀ is the
marginal kernel of the items that follow; at the start R = W (I + C W)⁻¹. For any set U of items that follow, with
C_U = Σ x_a x_aᵀ,

.. math:: P(\text{no item of } U \text{ is in } S \mid \text{decided}) = \det(I - R\, C_U) .

So one uniform number u finds the block of the next item: the first one at whose end this probability falls below u,
which is a search over the sums that a tree has. Given that the items E that were passed over are out,

.. math:: R \leftarrow (I - R\, C_E)^{-1} R ,

and within the block, whose items B have the marginal kernel K = X_B R X_Bᵀ, elimination gives the probability that each
of them is the next: out of the law goes item after item, by K ← K + K_{·j} K_{j·} / (1 - K_jj). Those before the chosen
one are out and that one is in:

.. math:: R \leftarrow R - R X_B^\top (K - \operatorname{Diag}(1_{\text{out}}))^{-1} X_B R .

All of these are probabilities: real numbers between zero and one, nothing to cancel, whatever the kernel.

*Few determinants.* The probability that nothing is in U is nearly exponential in tr(R C_U), an inner product with a
packed sum: the search looks first where u should be by that, and corrects the rate by what it finds. About three
determinants lead to the leaf. A guess never decides anything: an item is in a leaf when the determinants before and
behind it say so.

*Limits on the size.* Draws of the kernel scaled by t have the weights t^{|S|} det L_S. They are made until one has an
allowed size, and accepted with probability t^{m - |S|}, m the limit that makes this one at the most. With t such that
the mean size is at that limit, acceptance is as likely as it can be.

Reference: this project's documentation, "Theory". To our knowledge the method is new.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.kernel import rows_of, without
from numpyro_ndpp.linalg import matmul, right_divide
from numpyro_ndpp.normalizer import HALF_AN_ITEM, pencil, solve_log_scale
from numpyro_ndpp.probabilities import log_normalizer, log_weights_of_sizes
from numpyro_ndpp.samplers.batching import draw_sizes, until_accepted
from numpyro_ndpp.samplers.tree import leaf_shape, pack, pack_query, pick, sums_of_leaves, symmetric_part, unpack
from numpyro_ndpp.size_law import log_scale_of_each_size
from numpyro_ndpp.target import Pinned, Target

# How far the fall of the logarithm may be from that of the trace, for the next guess.
_SLOPES = 0.05, 20.0
# Draws of a size that is not allowed, or led astray by rounding, before a draw is given up.
_MAX_ATTEMPTS = 10_000
# A probability is taken for zero within so many units of rounding.
_ROUNDING_UNITS = 4


class _Sizes(NamedTuple):
    """Where sizes have weights of their own: the size is drawn first, then subsets until one has it.

    Subsets are drawn from the kernel scaled for that size, of which one in 2.5 standard deviations has it.
    """

    logits: Array  # (d+1,)
    log_scales: Array  # (d+1,) of the kernel, for every size
    W: Array
    C: Array
    pinned: Pinned


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["X", "nodes", "R", "log_scale", "limits", "possible", "sizes"],
    meta_fields=["leaf_size", "width"],
)
@dataclass(frozen=True)
class LeapState:
    """A prepared kernel: the sums of all nodes of a tree, and the marginal kernel of the law to draw from."""

    X: Array  # (n, d) rows of zeros for pinned items
    nodes: Array  # (2 · leaves, p) packed sums of x_a x_aᵀ; the root is 1, the children of v are 2v and 2v + 1
    R: Array  # (d, d)
    log_scale: Array  # of the kernel that is drawn from
    limits: Array | None  # (2,) the smallest and the largest number of items beside the pinned ones
    possible: Array  # whether any allowed subset has a positive probability
    sizes: _Sizes | None  # where sizes have weights of their own
    leaf_size: int = field(metadata={"static": True})
    width: int = field(metadata={"static": True})


class _Search(NamedTuple):
    """The next item lies in the leaves from ``leaf`` up to ``end``, which is not one of them."""

    leaf: Array
    end: Array  # one past the number of leaves as long as there may be no further item
    passed: Array  # (p,) the sum over the items that are known to be out
    none: Array  # P(none of these is in)
    slope: Array  # how fast the logarithm of that falls with the trace, about one


class _Draw(NamedTuple):
    """A draw on its way: what it has, and the first item that is not decided, as a leaf and a place in it."""

    R: Array
    items: Array  # (w,)
    size: Array
    leaf: Array
    low: Array
    head: Array  # (p,) the sum over the items of the leaf that are not decided
    is_done: Array
    is_sound: Array  # no descent was led astray by rounding


def sums_of_nodes(X: Array, num_leaves: int, leaf_size: int) -> Array:
    """The packed sums (2 · leaves, p) of x_a x_aᵀ over the items of every node of a heap."""
    sums = sums_of_leaves(X, num_leaves, leaf_size)
    nodes = jnp.zeros((2 * num_leaves, sums.shape[1]), X.dtype).at[num_leaves:].set(sums)
    while len(sums) > 1:
        sums = sums[0::2] + sums[1::2]
        nodes = nodes.at[len(sums) : 2 * len(sums)].set(sums)
    return nodes


def _determinant(A: Array) -> Array:
    """det A (d, d), not negative; zero where it is so to rounding."""
    sign, log_abs = jnp.linalg.slogdet(A)
    value = jnp.where(sign > 0, jnp.exp(log_abs), 0.0)
    return jnp.where(value > _ROUNDING_UNITS * len(A) * jnp.finfo(A.dtype).eps, value, 0.0)


def _find_leaf(state: LeapState, draw: _Draw, u: Array) -> _Search:
    """The leaf of the next item, with what lies before it passed over; past the last leaf if there is none."""
    nodes, d = state.nodes, len(draw.R)
    num_leaves, identity = len(nodes) // 2, jnp.eye(d, dtype=nodes.dtype)
    query = pack_query(symmetric_part(draw.R))

    def largest_node(leaf: Array) -> Array:
        """The largest node that begins with a leaf; the leaf itself if a part of it is decided."""
        node = num_leaves + leaf
        return jnp.where((leaf == draw.leaf) & (draw.low > 0), node, node // (node & -node))

    def block(node: Array) -> Array:
        is_part = (node == num_leaves + draw.leaf) & (draw.low > 0)
        return jnp.where(is_part, draw.head, nodes[node])

    def stretch(search: _Search, trace: Array) -> tuple[Array, Array, Array]:
        """As many leaves as have the trace, but one at least: where they end, their sum, and their own trace."""

        def take(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
            leaf, node, total, left, _ = carry
            rows = block(node)
            mass = jnp.sum(query * rows)
            is_leaf = node >= num_leaves
            size = num_leaves >> (31 - lax.clz(node.astype(jnp.int32)))
            fits = (mass <= left) & (leaf + size < search.end)
            # the leaf in which the trace is used up is taken only if there is no other
            takes = fits | (is_leaf & (leaf == search.leaf))
            leaf = jnp.where(takes, leaf + size, leaf)
            return (
                leaf,
                jnp.where(takes, largest_node(leaf), jnp.where(is_leaf, node, 2 * node)),
                jnp.where(takes, total + rows, total),
                jnp.where(takes, left - mass, left),
                (is_leaf & ~fits) | (leaf >= jnp.minimum(num_leaves, search.end - 1)),
            )

        start = search.leaf, largest_node(search.leaf), search.passed, trace, jnp.asarray(False)
        leaf, _, total, left, _ = lax.while_loop(lambda carry: ~carry[-1], take, start)
        return leaf, total, trace - left

    def look(search: _Search) -> _Search:
        """The probability that nothing comes before a place: where it would be u, were it exponential in the trace."""
        wanted = jnp.log(search.none / u) / search.slope
        leaf, total, trace = stretch(search, wanted)
        none = _determinant(identity - matmul(draw.R, unpack(total, d)))
        passes = none >= u
        slope = jnp.log(search.none / jnp.where(none > 0, none, 1.0)) / jnp.where(trace > 0, trace, 1.0)
        slope = jnp.where((none > 0) & (trace > 0), jnp.clip(slope, *_SLOPES), 2 * search.slope)
        return _Search(
            leaf=jnp.where(passes, leaf, search.leaf),
            end=jnp.where(passes, search.end, leaf),
            passed=jnp.where(passes, total, search.passed),
            none=jnp.where(passes, none, search.none),
            slope=slope,
        )

    def unfinished(search: _Search) -> Array:
        return (search.leaf < num_leaves) & (search.leaf + 1 < search.end)

    one = jnp.ones((), nodes.dtype)
    start = _Search(draw.leaf, jnp.asarray(num_leaves + 1), jnp.zeros_like(draw.head), one, one)
    return lax.while_loop(unfinished, look, start)


def _first_of(K: Array, magnitudes: Array) -> Array:
    """The probability (b,) of every item of a block to be the first that is in, by the marginal kernel K (b, b).

    :param magnitudes: (b,) the sums of the magnitudes of the terms that the diagonal is the sum of.
    """
    eps = jnp.finfo(K.dtype).eps

    def decide(j: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        K, magnitudes, alive, masses = carry
        p = jnp.where(K[j, j] > _ROUNDING_UNITS * eps * magnitudes[j], jnp.minimum(K[j, j], 1.0), 0.0)
        out = jnp.where(1 - p > _ROUNDING_UNITS * eps, 1 - p, 0.0)
        column, row = K[:, j] / jnp.where(out > 0, out, 1.0), K[j]
        return (
            K + column[:, None] * row,
            magnitudes + jnp.abs(column * row),
            alive * out,
            masses.at[j].set(alive * p),
        )

    start = K, magnitudes, jnp.ones((), K.dtype), jnp.zeros(len(K), K.dtype)
    return lax.fori_loop(0, len(K), decide, start)[3]


def _leap(state: LeapState, draw: _Draw, uniforms: Array) -> _Draw:
    """The next item, by two uniform numbers."""
    d = state.X.shape[1]
    size, num_leaves, dtype = state.leaf_size, len(state.nodes) // 2, state.X.dtype
    search = _find_leaf(state, draw, uniforms[0])
    found = search.leaf < num_leaves
    leaf = jnp.where(found, search.leaf, 0)
    R = right_divide(draw.R, jnp.eye(d, dtype=dtype) - matmul(unpack(search.passed, d), draw.R))
    slot = jnp.arange(size)
    items = leaf * size + slot
    is_left = (leaf > draw.leaf) | (slot >= draw.low)
    rows = jnp.where(is_left[:, None], rows_of(state.X, items), 0.0)
    images = matmul(rows, R)
    K, magnitudes = matmul(images, rows.T), jnp.sum(jnp.abs(images * rows), axis=1)
    j, was_found = pick(_first_of(K, magnitudes), uniforms[1])
    before, after = slot < j, slot > j
    decided = jnp.where(after[:, None], 0.0, rows)
    both = ~after[:, None] & ~after
    middle = jnp.where(both, K, 0.0) + jnp.diag(jnp.where(after, 1.0, jnp.where(before & is_left, -1.0, 0.0)))
    middle = middle + jnp.diag((before & ~is_left).astype(dtype))
    R = R - matmul(right_divide(matmul(R, decided.T), middle), matmul(decided, R))
    rest = jnp.where(after[:, None], rows, 0.0)
    goes_on = _Draw(
        R=R,
        items=draw.items.at[draw.size].set(items[j].astype(draw.items.dtype), mode="drop"),
        size=draw.size + 1,
        leaf=leaf,
        low=j + 1,
        head=pack(matmul(rest.T, rest)),
        is_done=draw.size + 1 > (state.width if state.limits is None else jnp.minimum(state.limits[1], state.width)),
        is_sound=was_found,
    )
    ended = draw._replace(is_done=jnp.asarray(True))
    return jax.tree.map(lambda a, b: jnp.where(found, a, b), goes_on, ended)


def _attempt(state: LeapState, key: Array) -> tuple[Array, Array]:
    """A subset (w,) of the scaled law, and whether it is accepted."""
    n, width, dtype = len(state.X), state.width, state.X.dtype
    uniforms = random.uniform(key, (width + 2, 2), dtype)
    zero, false = jnp.asarray(0), jnp.asarray(False)
    start = _Draw(
        R=state.R,
        items=jnp.full(width, n, jnp.int32),
        size=zero,
        leaf=zero,
        low=zero,
        head=jnp.zeros_like(state.nodes[0]),
        is_done=false,
        is_sound=~false,
    )
    draw = lax.while_loop(
        lambda draw: ~draw.is_done & draw.is_sound, lambda draw: _leap(state, draw, uniforms[draw.size]), start
    )
    accepted = draw.is_sound & (draw.size <= width)
    if state.limits is not None:
        low, high = state.limits
        excess = jnp.where(state.log_scale < 0, high - draw.size, low - draw.size)
        accepted &= (draw.size >= low) & (draw.size <= high)
        accepted &= jnp.log(uniforms[width + 1, 0]) <= excess * state.log_scale
    return draw.items, accepted


def prepare_leap(target: Target) -> LeapState:
    """The tree's sums and the marginal kernel. O(n d² + d³), and O(J d³) with limits on the size."""
    log_weight = log_normalizer(target)  # of the kernel as it is given
    kernel, items = target.kernel.whitened(), target.items
    X, W, C = kernel.X, kernel.W, kernel.C
    given = Pinned.of(X, items)
    log_scale, limits, sizes = jnp.zeros((), X.dtype), None, None
    if target.log_size_weights is not None:
        scales = log_scale_of_each_size(log_weights_of_sizes(target.of_all_sizes(), target.kernel.C, every_size=True))
        sizes = _Sizes(log_weights_of_sizes(target, target.kernel.C), scales, W, C, given)
    elif not target.is_unlimited:
        low, high = target.limits
        log_scale, _ = solve_log_scale(pencil(W, C, given), low - HALF_AN_ITEM, high, pinned=len(items) > 0)
        limits = jnp.stack([low, high])
    R = given.marginal_matrix(jnp.exp(log_scale) * W, C)
    num_leaves, leaf_size = leaf_shape(*X.shape)
    X = without(X, items)
    nodes = sums_of_nodes(X, num_leaves, leaf_size)
    possible = (log_weight > -jnp.inf) & jnp.isfinite(R).all()
    return LeapState(X, nodes, R, log_scale, limits, possible, sizes, leaf_size, target.width)


def draw_by_leaps(state: LeapState, key: Array) -> Array:
    """One subset (w,), padded; -1 throughout if none could be drawn."""
    if (sizes := state.sizes) is not None:
        size = draw_sizes(sizes.logits, key[None])[0]
        log_scale = sizes.log_scales[size]
        R = sizes.pinned.marginal_matrix(jnp.exp(log_scale) * sizes.W, sizes.C)
        state = replace(state, R=R, log_scale=log_scale, limits=jnp.stack([size, size]))

    def attempt(number: Array) -> tuple[Array, Array]:
        return _attempt(state, random.fold_in(key, number))

    return until_accepted(attempt, state.possible, _MAX_ATTEMPTS, state.width)
