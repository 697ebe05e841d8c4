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
items that are missing, low < m ≤ high, each with a smaller circle of its own, whose radius fits what is missing beside
a typical set of items (:func:`.circle.stage_log_radius`). A new stage conditions its R_j on the items so far, one after
the other. All stages have as many nodes as the first, which needs the most, so that one program serves them all.

*Thin factors.* The R_j of a stage are the same for all draws and never copied: what conditioning subtracts from them is
kept as two vectors for each item and node, and the query is a product of two matrices of those.

*Given items.* Items that are known to be in S are simply the first ones of every draw.

*Digits.* The items' features are brought to XᵀX = I first, and every stage then measures them in units in which its R_j
have a diagonal of about one. Of an item that joins only the part that is orthogonal to those before it counts: what R_j
becomes depends on what the items span, not on the items, and orthogonal ones leave little to cancel.

Reference: this project's documentation, "Theory".
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.probabilities import log_normalizer
from numpyro_ndpp.samplers.base import OneByOne
from numpyro_ndpp.samplers.batching import chunk_size, in_chunks, side_by_side
from numpyro_ndpp.samplers.circle import (
    STAGE_LENGTH,
    Stage,
    build_stage,
    num_upper_nodes,
    schedule_of,
    stage_log_radius,
)
from numpyro_ndpp.samplers.stages import (
    ContourInfo,
    Draw,
    Slots,
    lost_in_rounding,
    run_stage,
    uniforms_of,
    until_found,
)
from numpyro_ndpp.samplers.tree import Tree, build_tree
from numpyro_ndpp.size_law_given import log_esps_near
from numpyro_ndpp.target import Target


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
    def shards(self) -> Shards | None:
        """The devices over which the items are, if there are several."""
        return self.tree.shards

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """(high, low) of every stage: it serves while more than ``low`` and at most ``high`` items are missing."""
        return tuple(zip(self.stages.high.tolist(), self.stages.low.tolist(), strict=True))

    @property
    def radii(self) -> Array:
        """The radius of every stage's circle."""
        return jnp.exp(self.stages.log_radius)


@dataclass(frozen=True)
class Contour(OneByOne):
    """Exact sampler for a fixed size, at a cost that hardly depends on n: one descent of the tree for each item.

    After preprocessing of O(n d² + s J d³) a draw of k items costs O(J k² d² + k d³) in matrix products, plus k
    descents of O(d² log n), with s stages and J nodes on a circle, about 6√k. Draws are independent: no chain, no
    steps, no rejection. Rounding is the only error, and every draw can be asked how large it is
    (:meth:`sample_with_info`). Where the size varies, use :class:`Exact`.

    :raises ValueError: for a distribution whose size varies, and for a kernel in another type than float32 and float64.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, Contour
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(100, 4), (100, 4), (4, 4)]))
    >>> ndpp = KNDPP(V, B, D, k=3, sampler=Contour())
    >>> ndpp.sample(random.key(3), (2,)).shape
    (2, 3)

    How well it went:

    >>> state = Contour().prepare(ndpp.target)
    >>> subsets, info = Contour().sample_with_info(state, random.split(random.key(4), 5))
    >>> subsets.shape, bool(info.rho.min() > 0.01), bool(abs(info.mass_error).max() < 1e-3)
    ((5, 3), True, True)
    """

    def prepare(self, target: Target) -> ContourState:
        """The tree and the circles of all s stages. O(n d² + s J d³) once."""
        dtype, width = target.kernel.X.dtype, target.width
        if dtype.name not in STAGE_LENGTH:
            raise ValueError(f"Contour needs a kernel in {' or '.join(STAGE_LENGTH)}, got {dtype.name}")
        if not target.is_fixed:
            raise ValueError("Contour draws subsets of one size; for a distribution whose size varies use Exact()")
        # asked of the kernel as it is given: in the basis below, W has the small scales of X
        possible = log_normalizer(target) > -jnp.inf
        kernel = target.kernel.whitened()
        tree = build_tree(kernel.X, shards=target.shards)
        schedule = schedule_of(width, STAGE_LENGTH[dtype.name])
        num_upper = num_upper_nodes(target.sizes[1], schedule, kernel.max_rank, dtype)
        W, C, stages = kernel.W, tree.gram, None
        if schedule:
            highs, lows = jnp.asarray(schedule, jnp.int32).T
            log_e = log_esps_near(target.kernel.W, target.kernel.C, *target.pinned, width, width)

            def build(limits: tuple[Array, Array]) -> Stage:
                return build_stage(W, C, stage_log_radius(log_e, width, *limits), *limits, num_upper)

            stages = lax.map(build, (highs, lows))
        return ContourState(tree, C, target.items, stages, possible, width)

    def draw(self, state: ContourState, key: Array) -> Array:
        """One subset (w,)."""
        return _draw(state, key)[0]

    def num_side_by_side(self, state: ContourState) -> int:
        """How many draws are made at a time, by their factors."""
        d, num_upper = len(state.C), state.stages.weights.shape[-1]
        return chunk_size(8 * state.C.dtype.itemsize * d * (d + num_upper * (state.width + len(state.pinned))))

    def may_share_cores(self, state: ContourState) -> bool:
        """Yes, on a CPU: all matrices are factorised before the first draw."""
        return platform().is_cpu

    def sample_with_info(self, state: ContourState, keys: Array) -> tuple[Array, ContourInfo]:
        """Subsets (s, w) as from :meth:`sample`, and how each draw went; no numbers where none could be made."""
        return in_chunks(partial(side_by_side, partial(_draw, state)), self.num_side_by_side(state), len(keys), keys)

    def failure(self, state: ContourState) -> str:
        """Why a draw was not made."""
        return lost_in_rounding(state.C.dtype)


def _draw(state: ContourState, key: Array) -> tuple[Array, ContourInfo]:
    """A subset (width,), or -1 throughout where none could be drawn, and how it went."""
    num_rows, num_stages = len(state.pinned), len(state.stages.log_radius)
    empty = Draw.empty(state.tree.num_items, state.width, state.C.dtype, state.pinned)
    slots = Slots(room=len(empty.items), size=len(empty.items), first=0, begin=0)

    def attempt(key: Array) -> Draw:
        uniforms = uniforms_of(state.tree, len(empty.items), key)

        def run(number: Array, draw: Draw) -> Draw:
            stage = jax.tree.map(lambda table: table[number], state.stages)
            return run_stage(state.tree, state.C, stage, draw, uniforms, slots)

        return lax.fori_loop(0, num_stages, run, empty)

    draw = until_found(attempt, key, empty)
    done = state.possible & draw.found
    info = jax.tree.map(lambda array: jnp.where(done, array[num_rows:], jnp.nan), draw.info)
    return jnp.where(done, jnp.sort(draw.items[num_rows:]), -1), info
