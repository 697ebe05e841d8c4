r"""The two-item up-down walk on subsets of k items: a state and a step.

From S drop two items uniformly, which leaves A; then add {a, b} with probability proportional to det L_{A∪{a,b}} (the
"up operator"). The walk's law tends to that of the k-NDPP; k² steps are the published rule of thumb.

The up operator is :mod:`.direct`, our own, or :mod:`.published`, that of the paper.

References: Alimohammadi, Anari, Shiragur and Vuong (2021), *Fractionally log-concave and sector-stable polynomials*,
STOC; Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for nonsymmetric determinantal point
processes*, ICML, Algorithms 1, 2 and 4.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.samplers.chain import ChainState, WalkKernel, exchanged
from numpyro_ndpp.samplers.direct import border, draw_pair
from numpyro_ndpp.samplers.published import propose_until_accepted


class WalkSettings(NamedTuple):
    """How long a walk is, how its pairs are drawn and where it starts: see :class:`~numpyro_ndpp.UpDown`."""

    num_steps: int | None
    up: str
    init: str


class StepInfo(NamedTuple):
    """The number of rejected proposals in a step, and whether the subset changed."""

    num_rejections: Array
    changed: Array


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel", "pinned", "starts", "size_logits", "log_size_weights"],
    meta_fields=["settings"],
)
@dataclass(frozen=True)
class Walk:
    """The up-down walk of one kernel, prepared: ``init`` and ``step`` of a chain.

    The tree and the features are arguments of what is compiled, never constants in it: pass a walk through jit.

    >>> import jax
    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, UpDown
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(50, 2), (50, 2), (2, 2)]))
    >>> dist = KNDPP(V, B, D, k=3)
    >>> walk = UpDown().prepare(dist.target)
    >>> state = walk.init(dist.greedy())
    >>> state, info = jax.jit(lambda walk, key, state: walk.step(key, state))(walk, random.key(0), state)
    >>> state.subset.shape, int(info.num_rejections)
    ((3,), 0)
    """

    kernel: WalkKernel
    pinned: Array  # (j,) items in every subset, padded with n; no step drops them
    starts: Array  # (w,) or, where the size varies, (w+1, w): a subset of positive probability of each size
    size_logits: Array | None  # (d+1,) where the size varies
    log_size_weights: Array | None  # log of what every size weighs beside its determinants; None: one
    settings: WalkSettings = field(metadata={"static": True})

    @property
    def shards(self) -> Shards | None:
        """The devices over which the items are, if there are several."""
        return self.kernel.tree.shards

    @property
    def width(self) -> int:
        """The largest number of items beside the pinned ones."""
        return self.starts.shape[-1]

    @property
    def dtype(self) -> jnp.dtype:
        return self.kernel.W.dtype

    def init(self, subset: Array) -> ChainState:
        """A chain at a subset (w,) of positive probability beside the pinned items, padded with n."""
        return self.kernel.chain_at(jnp.append(self.pinned, jnp.sort(jnp.asarray(subset, jnp.int32))))

    def step(self, key: Array, state: ChainState, active: Array | bool = True) -> tuple[ChainState, StepInfo]:
        """One step: two items dropped, two added. A single item is drawn anew, an empty subset stays as it is.

        :param active: whether to move at all; a chain that is done waits so for others beside it.

        O(k d² + d² log n) for the direct operator, and d³ in float32. Each step leaves the law of the walk as it is.
        """
        n, width, first = self.kernel.num_items, len(state.subset), len(self.pinned)
        if width == first:
            return state, StepInfo(jnp.asarray(0), jnp.asarray(False))
        up_key = None
        if self.settings.up != "direct":
            key, up_key = random.split(key)
        decisions = self.kernel.tree.num_decisions
        # All the random numbers of a step at once: each call of the generator is a program to compile.
        uniforms = random.uniform(key, (2 + width + 2 * decisions,), self.dtype)
        two, spread, down = uniforms[:2], uniforms[2 : 2 + width], uniforms[2 + width :].reshape(2, decisions)
        size = jnp.sum(state.subset[first:] < n)
        i, j = two_slots(two, first, size)
        slot = jnp.arange(width)
        kept = (state.subset < n) & (slot != i) & (slot != j)

        bordered = border(self.kernel, state, kept, spread, None if self.size_logits is None else first + size)
        items, found = draw_pair(self.kernel, down, state, bordered, size >= 2)
        num_rejections = jnp.asarray(0)
        if up_key is not None:
            pair = propose_until_accepted(self.kernel, up_key, state, bordered)
            is_other = (size >= 2) & pair.accepted
            items = jnp.where(is_other, pair.items.astype(items.dtype), items)
            found, num_rejections = found | is_other, jnp.where(size >= 2, pair.num_rejections, 0)

        # Rounding may have led the draw astray, to where there is no mass: then the chain stays.
        moves = found & (size >= 1) & active
        items = jnp.where(size >= 2, items, items[::-1]).astype(state.subset.dtype)
        is_new = jnp.stack([moves & (slot == i), moves & (slot == j) & (size >= 2)])
        moved = exchanged(state, is_new, self.kernel.chain_at(items))
        same = jnp.all(jnp.any(moved.subset[:, None] == state.subset, axis=1))
        return moved, StepInfo(jnp.where(moves, num_rejections, 0), moves & ~same)

    def uniform_start(self, key: Array, size: Array | int, otherwise: Array) -> Array:
        """``size`` items (w,) beside the pinned ones, uniformly; ``otherwise`` (w,) if they have probability zero.

        Items without features, as conditioning leaves those that are out, are not among them. O(n).
        """
        if len(otherwise) == 0:
            return otherwise
        uniform = self._free_items(key, size, len(otherwise)).astype(otherwise.dtype)
        together = jnp.sort(jnp.append(self.pinned, uniform))
        return jnp.where(self.kernel.is_possible(together), uniform, otherwise)

    def _free_items(self, key: Array, size: Array | int, width: int) -> Array:
        """``size`` items (width,) with features beside the pinned ones, uniformly, increasing and padded with n."""
        n, shards = self.kernel.num_items, self.kernel.tree.shards

        def free_of(X: Array, pinned: Array) -> tuple[Array, Array]:
            free = jnp.any(X != 0, axis=1).at[pinned].set(False, mode="drop")
            return jnp.flatnonzero(free, size=len(X), fill_value=n), jnp.sum(free)

        if shards is None:
            items, number = free_of(self.kernel.tree.X, self.pinned)
            places = distinct_items(number, size, width, key)
            return jnp.sort(items.at[places].get(mode="fill", fill_value=n))

        def of_device(X: Array, pinned: Array, key: Array, size: Array) -> Array:
            here, first = shards.index, shards.index * len(X)
            own = pinned - first
            items, number = free_of(X, jnp.where(own < 0, len(X), own))
            numbers = lax.all_gather(number, shards.axis)
            places = distinct_items(jnp.sum(numbers), size, width, key)
            place = places - jnp.sum(jnp.where(jnp.arange(shards.number) < here, numbers, 0))
            is_mine = (place >= 0) & (place < number)
            chosen = shards.sum_of_one(is_mine, items.at[jnp.where(is_mine, place, 0)].get() + first - n)
            return jnp.sort(n + chosen)

        return shards.run(of_device, (self.kernel.tree.X,), (self.pinned, key, jnp.asarray(size)))


def two_slots(uniforms: Array, first: int, size: Array) -> tuple[Array, Array]:
    """Two different slots out of the ``size`` from the first one on, by two uniform numbers."""
    i = jnp.floor(uniforms[0] * size).astype(jnp.int32)
    j = jnp.floor(uniforms[1] * (size - 1)).astype(jnp.int32)
    return first + i, first + j + (j >= i)


def distinct_items(n: Array | int, size: Array | int, width: int, key: Array) -> Array:
    """``size`` of n items (width,), uniformly without repetition and padded with n (Floyd's algorithm)."""

    def add(subset: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        number, key = step
        last = n - size + number
        item = random.randint(key, (), 0, jnp.maximum(last, 0) + 1)
        item = jnp.where(jnp.isin(item, subset), last, item)
        return subset.at[number].set(jnp.where(number < size, item, n)), None

    return lax.scan(add, jnp.full(width, n), (jnp.arange(width), random.split(key, width)))[0]
