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
from numpyro_ndpp.polynomials import log_weights_of_sizes
from numpyro_ndpp.samplers.batching import chunk_size, draws_of_varying_size, in_chunks, pinned_items
from numpyro_ndpp.samplers.tree import (
    Tree,
    build_tree,
    pack_query,
    symmetric_part,
)
from numpyro_ndpp.samplers.walk import ChainState, Forms, Walk, item_scale

UPS = ("direct", "rejection", "naive")
INITS = ("greedy", "uniform")

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


def _draw_of_size(walk: Walk, width: int, size: Array | int, key: Array) -> Array:
    """A subset (width,) of ``size`` items, or -1 throughout where none has a positive probability."""
    n, settings = len(walk.tree.X), walk.settings
    if width == 0:
        return jnp.zeros(0, jnp.int32)
    if walk.size_logits is None:
        size = width  # the same number of steps for every chain: no chain has to be held while others go on
    start_key, single_key, walk_key = random.split(key, 3)
    start = (walk.starts if walk.size_logits is None else walk.starts[size])[:width]
    possible = jnp.sum(start < n) == size
    if walk.size_logits is not None:
        possible &= walk.size_logits[size] > -jnp.inf  # none of the allowed sizes may be possible
    if settings.init == "uniform":
        start = walk.uniform_start(start_key, size, start)
    if width == 1 or walk.size_logits is not None:
        single, found = walk._single(single_key)
        start = jnp.where((size == 1) & found, single[:width], start)

    def body(number: Array, state: ChainState) -> ChainState:
        return walk.step(random.fold_in(walk_key, number), state)[0]

    num_steps = size**2 if settings.num_steps is None else settings.num_steps
    num_steps = jnp.where(possible & (size >= 2), num_steps, 0)
    subset = lax.fori_loop(0, num_steps, body, walk.init(start)).subset
    return jnp.where(possible, jnp.sort(subset[len(walk.pinned) :]), -1).astype(jnp.int32)


@partial(jax.jit, static_argnums=1)
def _draws(walk: Walk, width: int, sizes: Array, keys: Array) -> Array:
    """Subsets (s, width) of the sizes (s,), so many chains side by side as memory allows."""
    return in_chunks(partial(_draw_of_size, walk, width), walk_chunk_size(walk, width), sizes, keys)


@dataclass(frozen=True)
class UpDown:
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
        return Walk(tree, C, items, jnp.log(scale), lefts, rights, item_scales, queries, starts, size_logits, self)

    def draw(self, walk: Walk, key: Array) -> Array:
        """One subset, padded; -1 throughout if none of an allowed size has a positive probability."""
        return self.sample(walk, key[None])[0]

    def sample(self, walk: Walk, keys: Array) -> Array:
        """Subsets (s, w), one for each key.

        Where the size varies, a draw costs the width at which it is made. Outside jit draws of like sizes of one kernel
        are made together, at about their own width.
        """
        if walk.size_logits is None:
            return _draws(walk, walk.width, jnp.full(len(keys), walk.width), keys)
        return draws_of_varying_size(
            partial(_draws, walk), partial(walk_chunk_size, walk), walk.size_logits, len(walk.tree.X), walk.width, keys
        )
