r"""Leaping from item to item: exact, independent draws of varying size, without a chain and without a circle.

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

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.kernel import without
from numpyro_ndpp.linalg import matmul, right_divide
from numpyro_ndpp.normalizer import HALF_AN_ITEM, pencil, solve_log_scale
from numpyro_ndpp.probabilities import log_normalizer, log_weights_of_sizes
from numpyro_ndpp.samplers.batching import draw_sizes, until_accepted
from numpyro_ndpp.samplers.leaves import Leaves
from numpyro_ndpp.samplers.packing import pack, unpack
from numpyro_ndpp.samplers.search import ROUNDING_UNITS, Position, Sums, first_position, next_place, sums_of_nodes
from numpyro_ndpp.samplers.tree import pick
from numpyro_ndpp.size_scales import log_scale_of_each_size
from numpyro_ndpp.target import Pinned, Target

# Draws of a size that is not allowed, or led astray by rounding, before a draw is given up.
_MAX_ATTEMPTS = 10_000


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
    data_fields=["sums", "R", "log_scale", "limits", "possible", "sizes"],
    meta_fields=["leaves", "width", "shards"],
)
@dataclass(frozen=True)
class LeapState:
    """A prepared kernel: the sums of all nodes of a tree, and the marginal kernel of the law to draw from."""

    sums: Sums  # rows of zeros for pinned items
    R: Array  # (d, d)
    log_scale: Array  # of the kernel that is drawn from
    limits: Array | None  # (2,) the smallest and the largest number of items beside the pinned ones
    possible: Array  # whether any allowed subset has a positive probability
    sizes: _Sizes | None  # where sizes have weights of their own
    leaves: Leaves = field(metadata={"static": True})
    width: int = field(metadata={"static": True})
    shards: Shards | None = field(metadata={"static": True})


class _Draw(NamedTuple):
    """A draw on its way: what it has, and where it stands."""

    R: Array
    items: Array  # (w,)
    size: Array
    position: Position
    is_done: Array
    is_sound: Array  # no descent was led astray by rounding


def _first_of(K: Array, magnitudes: Array) -> Array:
    """The probability (b,) of every item of a block to be the first that is in, by the marginal kernel K (b, b).

    :param magnitudes: (b,) the sums of the magnitudes of the terms that the diagonal is the sum of.
    """
    eps = jnp.finfo(K.dtype).eps

    def decide(j: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        K, magnitudes, alive, masses = carry
        p = jnp.where(K[j, j] > ROUNDING_UNITS * eps * magnitudes[j], jnp.minimum(K[j, j], 1.0), 0.0)
        out = jnp.where(1 - p > ROUNDING_UNITS * eps, 1 - p, 0.0)
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
    d, dtype, position = len(draw.R), draw.R.dtype, draw.position
    place = next_place(state.sums, state.leaves, state.shards, draw.R, position, uniforms[0])
    R = right_divide(draw.R, jnp.eye(d, dtype=dtype) - matmul(unpack(place.passed, d), draw.R))
    slot = jnp.arange(state.leaves.size)
    items = state.leaves.limits(place.leaf)[0] + slot
    is_left = (place.leaf > position.leaf) | (slot >= position.low)
    rows = jnp.where(is_left[:, None], place.rows, 0.0)
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
    head = pack(matmul(rest.T, rest))
    goes_on = _Draw(
        R=R,
        items=draw.items.at[draw.size].set(items[j].astype(draw.items.dtype), mode="drop"),
        size=draw.size + 1,
        position=Position(place.leaf, j + 1, head, None if place.behind is None else head + place.behind),
        is_done=draw.size + 1 > (state.width if state.limits is None else jnp.minimum(state.limits[1], state.width)),
        is_sound=was_found,
    )
    ended = draw._replace(is_done=jnp.asarray(True))
    return jax.tree.map(lambda a, b: jnp.where(place.is_there, a, b), goes_on, ended)


def _attempt(state: LeapState, key: Array) -> tuple[Array, Array]:
    """A subset (w,) of the scaled law, and whether it is accepted."""
    n, width, dtype = state.leaves.num_items, state.width, state.R.dtype
    uniforms = random.uniform(key, (width + 2, 2), dtype)
    zero, false = jnp.asarray(0), jnp.asarray(False)
    start = _Draw(
        R=state.R,
        items=jnp.full(width, n, jnp.int32),
        size=zero,
        position=first_position(state.sums),
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
    leaves = Leaves.of(*X.shape)
    sums, shards = sums_of_nodes(without(X, items), leaves, target.shards)
    possible = (log_weight > -jnp.inf) & jnp.isfinite(R).all()
    return LeapState(sums, R, log_scale, limits, possible, sizes, leaves, target.width, shards)


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
