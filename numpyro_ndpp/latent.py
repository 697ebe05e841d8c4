"""A latent site with a subset, or a batch of them: its prior as the moves of MCMC need it.

A batch has one kernel for each of its subsets, or one for several: a plate expands what stands in it. The kernels are
prepared once. A proposal is made for one subset, or for all of them side by side.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.distributions import Distribution, ExpandedDistribution

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.branches import where_needed
from numpyro_ndpp.conditioning import are_distinct
from numpyro_ndpp.multihot import Multihot
from numpyro_ndpp.samplers import UpDown
from numpyro_ndpp.samplers.moves import move
from numpyro_ndpp.samplers.walk import Walk
from numpyro_ndpp.subsets import items_of_mask, to_multihot

__all__ = ["LatentSubsets", "Proposals", "local_move"]

Propose = Callable[[Array, Array], tuple[Array, Array]]
"""``propose(key, subset)``: another subset, and the log of the Hastings ratio under the prior."""

_walk_for_moves = jax.jit(UpDown().for_moves)
_walks_for_moves = jax.jit(jax.vmap(UpDown().for_moves))

# Items dropped and added: one more, one less, two more, two less, two exchanged, one exchanged.
_DROPPED, _ADDED = (0, 1, 0, 2, 2, 1), (1, 0, 2, 0, 2, 1)


def local_move(dist: SubsetDistribution, walk: Walk, key: Array, subset: Array) -> tuple[Array, Array]:
    """A subset (w,) near another one, and the log of the Hastings ratio; the same subset and -inf if there is none.

    :param dist: the distribution, or a batch of them; the walk is that of one.
    """
    kind_key, key = random.split(key)
    if dist.min_size == dist.max_size:
        dropped = added = jnp.asarray(min(2, dist.max_size))
    else:
        kind = random.randint(kind_key, (), 0, len(_DROPPED))
        dropped, added = jnp.array(_DROPPED)[kind], jnp.array(_ADDED)[kind]
    proposed, log_ratio = move(walk, key, subset, dropped, added)
    inside = dist.support(proposed) & _is_allowed(dist, jnp.sort(jnp.append(walk.pinned, proposed)))
    return jnp.where(inside, proposed, subset), jnp.where(inside, log_ratio, -jnp.inf)


def _is_allowed(dist: SubsetDistribution, together: Array) -> Array:
    """Whether a subset with its pinned items, increasing, has no item twice, and an allowed size."""
    (low, high), size = dist.whole_sizes, jnp.sum(together < dist.num_items)
    return (size >= low) & (size <= high) & are_distinct(together, dist.num_items)


class LatentSubsets(NamedTuple):
    """What stands at a latent site: ``base``, as it is or as 0/1 vectors, expanded to ``batch_shape``."""

    base: SubsetDistribution
    is_multihot: bool
    batch_shape: tuple[int, ...]

    @classmethod
    def of(cls, dist: Distribution) -> "LatentSubsets | None":
        """None if these are no subsets."""
        inner = dist.base_dist if isinstance(dist, ExpandedDistribution) else dist
        base = inner.base_dist if isinstance(inner, Multihot) else inner
        if not isinstance(base, SubsetDistribution):
            return None
        return cls(base, isinstance(inner, Multihot), dist.batch_shape)

    @property
    def number(self) -> int:
        """How many subsets there are."""
        return math.prod(self.batch_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the site's value."""
        return (*self.batch_shape, self.base.num_items if self.is_multihot else self.base.max_size)

    def items(self, value: Array) -> Array:
        """The site's value as padded subsets (..., w); -1 throughout for what is none."""
        return items_of_mask(value, self.base.max_size) if self.is_multihot else value

    def contain(self, value: Array) -> Array:
        """Whether this is a value of the site."""
        return jnp.all(self.base.contains(self.items(value)))

    def value(self, subsets: Array) -> Array:
        """Padded subsets, in the order of the batch, as a value of the site."""
        subsets = subsets.reshape(*self.batch_shape, self.base.max_size)
        return to_multihot(subsets, self.base.num_items) if self.is_multihot else subsets

    def proposals(self, fresh: float) -> "Proposals":
        """The kernels prepared for moves: once in an update, not in every move, for they may depend on other sites."""
        base, num_dims = self.base, len(self.base.batch_shape)
        number = math.prod(base.batch_shape)

        def prepare() -> Walk:
            target = lax.stop_gradient(base.target)
            if num_dims == 0:
                return _walk_for_moves(target)
            target = target.broadcast_to(base.batch_shape)
            return _walks_for_moves(jax.tree.map(lambda x: x.reshape(number, *x.shape[num_dims:]), target))

        walks, _ = base.once_where_known(prepare)
        states = base.prepared_state() if fresh else None
        if num_dims == 0:
            return Proposals(base, fresh, self.number, (walks, states), None)
        states = jax.tree.map(lambda x: x.reshape(number, *x.shape[num_dims:]), states)
        kernel_of = np.broadcast_to(np.arange(number).reshape(base.batch_shape), self.batch_shape).ravel()
        return Proposals(base, fresh, self.number, (walks, states), kernel_of)


class Proposals(NamedTuple):
    """How other subsets are proposed for a batch of subsets, by their number in it."""

    base: SubsetDistribution
    fresh: float  # the share of fresh draws
    number: int  # of subsets
    prepared: tuple[Walk, Any]  # the walk and what the sampler needs; if kernel_of is there, one for each kernel
    kernel_of: np.ndarray | None  # which kernel each subset has

    def for_one(self, subset_number: Array | int) -> Propose:
        """Proposals for one subset (w,)."""
        if self.kernel_of is None:
            return partial(self._propose, self.prepared)
        kernel = jnp.asarray(self.kernel_of)[subset_number]
        return partial(self._propose, jax.tree.map(lambda x: x[kernel], self.prepared))

    def for_all(self) -> Propose:
        """Proposals for all subsets (m, w), side by side."""
        kernel_of, prepared = self.kernel_of, self.prepared
        if kernel_of is not None and len(np.unique(kernel_of)) < self.number:
            prepared = jax.tree.map(lambda x: x[kernel_of], prepared)
        propose = jax.vmap(self._propose, in_axes=(None if kernel_of is None else 0, 0, 0))
        return lambda key, subsets: propose(prepared, random.split(key, self.number), subsets)

    def _propose(self, prepared: tuple[Walk, Any], key: Array, subset: Array) -> tuple[Array, Array]:
        base, (walk, state) = self.base, prepared
        if base.max_size == 0:
            return subset, jnp.zeros((), base.X.dtype)
        if self.fresh == 0:
            return local_move(base, walk, key, subset)
        choice_key, key = random.split(key)

        def fresh() -> tuple[Array, Array]:
            drawn = base.sampler.sample(state, key[None], 1)[0].astype(subset.dtype)
            made = jnp.all(drawn >= 0)
            return jnp.where(made, drawn, subset), jnp.where(made, 0.0, -jnp.inf).astype(base.X.dtype)

        # In many chains at once a local move costs little beside a fresh draw, which is made if one of them wants it.
        return where_needed(random.uniform(choice_key) < self.fresh, fresh, local_move(base, walk, key, subset))
