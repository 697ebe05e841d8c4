"""Draws of an NDPP by the two-item up-down walk (:mod:`.walk`): every draw is a chain of its own.

The size is drawn first, exactly, where it varies; then the walk takes k² steps, or as many as it is told, from a start
of positive probability.

Reference: Han, Gartrell, Dohmatob and Karbasi (2022), *Scalable MCMC sampling for nonsymmetric determinantal point
processes*, ICML, Algorithm 2.
"""

import operator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ndpp.greedy import greedy_given, greedy_map, greedy_subsets
from numpyro_ndpp.kernel import Pinned
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.samplers.base import Sampler
from numpyro_ndpp.samplers.batching import by_size, chunk_size, draw_sizes, in_chunks, pinned_items, side_by_side
from numpyro_ndpp.samplers.tree import (
    Tree,
    build_tree,
    pack_query,
    symmetric_part,
)
from numpyro_ndpp.samplers.walk import WIDE, ChainState, Forms, Walk, WalkSettings, item_scale
from numpyro_ndpp.size_law import log_weights_of_sizes

UPS = ("direct", "rejection", "naive")
INITS = ("greedy", "uniform")

# No step of a draw has this number: the key of its start.
_OF_THE_START = 2**32 - 2
# So many chains of a few items side by side, on a CPU, where their sizes vary.
_SMALL_CHAINS = 8
# Items at a time in the preprocessing.
_ROWS = 4096


def _without_phantom_sizes(size_logits: Array, starts: Array, n: int) -> Array:
    """The law of the size (d+1,) without sizes that only rounding makes possible: unlikely, and no subset was found."""
    found = jnp.sum(starts < n, axis=1) == jnp.arange(len(starts))
    found = jnp.pad(found, (0, len(size_logits) - len(found)), constant_values=True)
    rounding = 0.5 * jnp.log(jnp.finfo(size_logits.dtype).eps)
    unlikely = size_logits - jax.nn.logsumexp(size_logits) < rounding
    return jnp.where(found | ~unlikely, size_logits, -jnp.inf)


def walk_chunk_size(walk: Walk, width: int) -> int:
    """How many chains run side by side, by what one of them takes in the middle of a step."""
    d = walk.W.shape[0]
    return chunk_size(walk.W.dtype.itemsize * 8 * d * (width + d))


def _chains(walk: Walk, sizes: Array | None, keys: Array) -> Array:
    """Subsets (c, w) of the sizes (c,), or of the one size that there is; -1 where none has a positive probability.

    The chains go on together until the one with the most steps is done; the others stay where they are.
    """
    n, settings, width = len(walk.tree.X), walk.settings, walk.width
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
    r"""The default sampler: the two-item up-down walk of Han et al. (2022) on the fat-leaf tree, for all laws.

    Approximate, as MCMC is: every draw is a chain of its own, from a start of positive probability. After preprocessing
    of O(n d²) a step costs O(k d² + d² log n), and d³ more in float32. An :class:`~numpyro_ndpp.NDPP` draws its size
    first, exactly.

    :param num_steps: steps of a draw; None is k² for a subset of k items.
    :param up: how a step draws its pair. ``"direct"``: two descents of the tree, no rejection. ``"rejection"``: the
        published way, O(d³) a step and so many proposals as it takes. ``"naive"``: all pairs, O(n²).
    :param init: where a chain starts. ``"greedy"``: at the greedy MAP subset. ``"uniform"``: at a uniform subset, or
        the greedy one if that has probability zero.
    :param leaf_size: the most items in a leaf of the tree, from eight on rounded up to a multiple of eight; None is
        about d/2, which gives a tree as large as X.
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
    leaf_size: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_steps", 0), ("leaf_size", 1)):
            value = getattr(self, name)
            if value is None:
                continue
            try:
                number = operator.index(value)
            except TypeError:
                number = -1
            if isinstance(value, bool) or number < least:
                raise ValueError(f"{name} must be None or an integer, at least {least}, got {value!r}")
            object.__setattr__(self, name, number)
        for name, allowed in (("up", UPS), ("init", INITS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    def prepare(
        self,
        X: Array,
        W: Array,
        min_size: int,
        max_size: int,
        pinned: Array | None = None,
        width: int | None = None,
    ) -> Walk:
        """The walk of one kernel: the tree, C, a start for every size and the law of the size. O(n d²) once."""
        n = len(X)
        items, width = pinned_items(max_size, pinned, width)
        tree = build_tree(X, self.leaf_size)
        C = tree.gram
        size_logits = None
        if min_size == max_size and width == max_size - len(items):
            if len(items):
                starts = greedy_given(X, W, C, items, max_size, max_size, width)
            else:
                starts = greedy_map(X, W, C, width, width)
        else:
            size_logits = log_weights_of_sizes(W, C, Pinned.of(X, items), min_size, max_size)
            starts = greedy_subsets(X, W, C, size_logits[: width + 1] > -jnp.inf, items)
            size_logits = _without_phantom_sizes(size_logits, starts, n)
        return self._walk(tree, W, items, starts, size_logits)

    def for_moves(self, X: Array, W: Array, pinned: Array, width: int) -> Walk:
        """The walk of one kernel for :meth:`Walk.move` alone: without starts and the law of the size. O(n d²) once."""
        starts = jnp.full(width, len(X), jnp.int32)
        return self._walk(build_tree(X, self.leaf_size), W, pinned, starts, None)

    def _walk(self, tree: Tree, W: Array, items: Array, starts: Array, size_logits: Array | None) -> Walk:
        X, C = tree.X, tree.gram
        n = len(X)
        # The law of a given size does not depend on the scale of the kernel; entries of about one overflow nowhere.
        scale = jnp.trace(C) / n * jnp.linalg.norm(W)
        scale = jnp.where(scale > 0, scale, 1.0)
        W = W / scale
        item_scales = lax.map(partial(item_scale, W), X, batch_size=min(n, _ROWS))
        CW = matmul(C, W)
        forms = jnp.stack([W, matmul(W, CW)])
        of_items = lax.map(lambda x: matmul(matmul(x, forms), x), X, batch_size=min(n, _ROWS))
        queries = Forms(jnp.stack([pack_query(symmetric_part(form)) for form in forms]), of_items)
        lefts, rights = (forms, forms) if X.dtype == jnp.float64 else (jnp.stack([W, CW]), W[None])
        settings = WalkSettings(self.num_steps, self.up, self.init)
        return Walk(tree, C, items, jnp.log(scale), lefts, rights, item_scales, queries, starts, size_logits, settings)

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
        if jax.default_backend() == "cpu":
            # Alone, a chain costs its own size at every step; beside others that of the largest, and as many steps.
            chunk = 1 if walk.width > WIDE else min(chunk, _SMALL_CHAINS)
        return by_size(partial(_chains, walk), chunk, number, draw_sizes(walk.size_logits, keys), keys)
