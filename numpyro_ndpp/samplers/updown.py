"""Draws of an NDPP by the two-item up-down walk (:mod:`.walk`): every draw is a chain of its own.

The size is drawn first, exactly, where it varies; then the walk takes k² steps, or as many as it is told, from a start
of positive probability.

Reference: Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for nonsymmetric determinantal point
processes*, ICML, Algorithms 1, 2 and 4.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.checks import static_int
from numpyro_ndpp.greedy import greedy_given, greedy_map, greedy_subsets
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.probabilities import log_weights_of_sizes
from numpyro_ndpp.samplers.base import Sampler
from numpyro_ndpp.samplers.batching import by_size, chunk_size, draw_sizes, in_chunks, side_by_side
from numpyro_ndpp.samplers.chain import ChainState, WalkKernel
from numpyro_ndpp.samplers.direct import WIDE
from numpyro_ndpp.samplers.tree import build_tree
from numpyro_ndpp.samplers.walk import Walk, WalkSettings
from numpyro_ndpp.target import Target

UPS = ("direct", "rejection")
INITS = ("greedy", "uniform")

# No step of a draw has this number: the key of its start.
_OF_THE_START = 2**32 - 2
# So many chains of a few items side by side, on a CPU, where their sizes vary.
_SMALL_CHAINS = 8


def _without_phantom_sizes(size_logits: Array, starts: Array, n: int) -> Array:
    """The law of the size (d+1,) without sizes that only rounding makes possible: unlikely, and no subset was found."""
    found = jnp.sum(starts < n, axis=1) == jnp.arange(len(starts))
    found = jnp.pad(found, (0, len(size_logits) - len(found)), constant_values=True)
    rounding = 0.5 * jnp.log(jnp.finfo(size_logits.dtype).eps)
    unlikely = size_logits - jax.nn.logsumexp(size_logits) < rounding
    return jnp.where(found | ~unlikely, size_logits, -jnp.inf)


def walk_chunk_size(walk: Walk, width: int) -> int:
    """How many chains run side by side, by what one of them takes in the middle of a step."""
    d = len(walk.kernel.W)
    return chunk_size(walk.dtype.itemsize * 8 * d * (width + d))


def _are_alone(walk: Walk) -> bool:
    """Whether chains go one after the other.

    Alone, a chain costs its own size at every step; beside others that of the largest, and as many steps.
    """
    return platform().draws_alone and walk.size_logits is not None and walk.width > WIDE


def _chains(walk: Walk, sizes: Array | None, keys: Array) -> Array:
    """Subsets (c, w) of the sizes (c,), or of the one size that there is; -1 where none has a positive probability.

    The chains go on together until the one with the most steps is done; the others stay where they are.
    """
    n, settings, width = walk.kernel.num_items, walk.settings, walk.width
    is_fixed = sizes is None
    sizes = jnp.full(len(keys), width) if sizes is None else sizes

    def start(size: Array, key: Array) -> tuple[ChainState, Array]:
        items = walk.starts if is_fixed else walk.starts[size]
        possible = jnp.sum(items < n) == size
        if walk.size_logits is not None:
            possible &= walk.size_logits[size] > -jnp.inf  # none of the allowed sizes may be possible
        if settings.init == "uniform":
            items = walk.uniform_start(random.fold_in(key, _OF_THE_START), size, items)
        return walk.init(items), possible

    states, possible = side_by_side(start, sizes, keys)
    num_steps = sizes**2 if settings.num_steps is None else jnp.full_like(sizes, settings.num_steps)
    num_steps = jnp.where(sizes == 1, jnp.minimum(num_steps, 1), num_steps)  # one draw of one item is exact
    num_steps = jnp.where(possible, num_steps, 0)

    def step(number: Array, states: ChainState) -> ChainState:
        def one(key: Array, state: ChainState, num_steps: Array) -> ChainState:
            # where the size is fixed, no chain has to be held while others go on
            active = True if is_fixed else number < num_steps
            return walk.step(random.fold_in(key, number), state, active)[0]

        return side_by_side(one, keys, states, num_steps)

    most = num_steps[0] if len(keys) == 1 else jnp.max(num_steps)
    subsets = lax.fori_loop(0, most, step, states).subset[:, len(walk.pinned) :]
    return jnp.where(possible[:, None], jnp.sort(subsets, axis=1), -1).astype(jnp.int32)


@dataclass(frozen=True)
class UpDown(Sampler):
    r"""The default sampler: the two-item up-down walk of Han et al. (2022) on the fat-leaf tree, for all distributions.

    Approximate, as MCMC is: every draw is a chain of its own, from a start of positive probability. After preprocessing
    of O(n d²) a step costs O(k d² + d² log n), and d³ more in float32. An :class:`~numpyro_ndpp.NDPP` draws its size
    first, exactly.

    :param num_steps: steps of a draw; None is k² for a subset of k items.
    :param up: how a step draws its pair. ``"direct"``: two descents of the tree, no rejection. ``"rejection"``: the
        published way, O(d³) a step and so many proposals as it takes.
    :param init: where a chain starts. ``"greedy"``: at the greedy MAP subset. ``"uniform"``: at a uniform subset, or
        the greedy one if that has probability zero.
    :raises ValueError: for settings that are not allowed.

    >>> from jax import random
    >>> from numpyro_ndpp import KNDPP, UpDown
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(100, 4), (100, 4), (4, 4)]))
    >>> KNDPP(V, B, D, k=3, sampler=UpDown(num_steps=20)).sample(random.key(3), (2,)).shape
    (2, 3)
    """

    num_steps: int | None = None
    up: str = "direct"
    init: str = "greedy"

    def __post_init__(self) -> None:
        if self.num_steps is not None:
            object.__setattr__(self, "num_steps", static_int("num_steps", self.num_steps, 0))
        for name, allowed in (("up", UPS), ("init", INITS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    def prepare(self, target: Target) -> Walk:
        """The walk of one kernel: the tree, C, a start for every size and the law of the size. O(n d²) once."""
        kernel, items, width = target.kernel, target.items, target.width
        tree = build_tree(kernel.X, shards=target.shards)
        C, size_logits = tree.gram, None
        if target.is_fixed:
            size = target.sizes[1]
            if len(items):
                starts = greedy_given(kernel, C, items, size, size, width)
            else:
                starts = greedy_map(kernel, C, width, width)
        else:
            size_logits = log_weights_of_sizes(target, C)
            starts = greedy_subsets(kernel, C, size_logits[: width + 1] > -jnp.inf, items)
            size_logits = _without_phantom_sizes(size_logits, starts, kernel.num_items)
        walk_kernel, weights = WalkKernel.of(tree, kernel.W, kernel.K), target.log_size_weights
        return Walk(walk_kernel, items, starts, size_logits, weights, self.walk_settings)

    def for_moves(self, target: Target) -> Walk:
        """The walk of one kernel for :meth:`Walk.move` alone: without starts and the law of the size. O(n d²) once."""
        kernel = target.kernel
        starts = jnp.full(target.width, kernel.num_items, jnp.int32)
        walk_kernel = WalkKernel.of(build_tree(kernel.X, shards=target.shards), kernel.W, kernel.K)
        return Walk(walk_kernel, target.items, starts, None, target.log_size_weights, self.walk_settings)

    @property
    def walk_settings(self) -> WalkSettings:
        return WalkSettings(self.num_steps, self.up, self.init)

    def may_share_cores(self, walk: Walk) -> bool:
        """Yes, on a CPU: a step factorises one matrix at a time.

        Not if uniform starts, or proposals of the published operator, of several chains are judged as a batch.
        """
        has_no_batch = self.init == "greedy" and self.up == "direct"
        return platform().is_cpu and (has_no_batch or _are_alone(walk))

    def failure(self, walk: Walk) -> str:
        """Why a draw was not made."""
        return "the greedy search found no subset of positive probability to start from"

    def sample(self, walk: Walk, keys: Array, number: Array | int | None = None) -> Array:
        """Subsets (s, w), one for each key; only the first ``number`` are made. A draw costs the size that it has."""
        number = len(keys) if number is None else number
        if walk.width == 0:
            return jnp.zeros((len(keys), 0), jnp.int32)
        chunk = walk_chunk_size(walk, walk.width)
        if walk.size_logits is None:
            return in_chunks(partial(_chains, walk, None), chunk, number, keys)
        if platform().draws_alone:
            chunk = 1 if _are_alone(walk) else min(chunk, _SMALL_CHAINS)
        return by_size(partial(_chains, walk), chunk, number, draw_sizes(walk.size_logits, keys), keys)
