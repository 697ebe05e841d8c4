"""Exact draws of varying size by circles, many at a time: for accelerators, on which the determinants of leaps wait.

The size is drawn first. Given it a draw is that of :mod:`.contour`: one descent of the tree for each item, in stages
whose circles fit the number of items that are missing.

*Bands.* Circles are shared by draws of like sizes, which are made side by side, the largest ones first. A radius that
fits draws of k items when m are missing makes the number of those that come to them off by m δ / (d - k + m) for draws
of k - δ items, which have δ items less: at most one standard deviation, √(m (d - k) / (d - k + m)), where
δ ≤ √(d (d - k) / k). So the sizes are cut into bands of so many, by the largest one of each, whose circles serve all of
it. Which band a size is in depends on the kernel's shape alone: a draw is a function of its key.

The radii of all bands are computed beforehand, the circles when a band's draws are made: a few dozen inverses for a
thousand draws.
"""

import functools
import math
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.probabilities import log_weights_of_sizes
from numpyro_ndpp.samplers.batching import chunk_size, draw_sizes
from numpyro_ndpp.samplers.circle import build_stage, num_upper_nodes, schedule_of, stage_log_radius
from numpyro_ndpp.samplers.stages import Draw, Slots, run_stage, uniforms_of, until_found
from numpyro_ndpp.samplers.tree import Tree, build_tree
from numpyro_ndpp.target import Target

# A band has no more sizes, since its smallest ones wait for its largest.
_MOST_SIZES = 16
# Stages are longer than those of one size, which saves entering them. In float32 that costs half a digit.
_STAGE_LENGTH = {"float32": 4.0, "float64": 5.0}
# Draws of no more items than these are made with room for no more, where there might be half as many more.
_ROOMS = (16, 32)


class Bands(NamedTuple):
    """The stages of all bands, one band after the other, the largest sizes first."""

    top: np.ndarray  # (s,) the largest size of the band
    high: np.ndarray  # (s,) it serves while at most so many items are missing
    low: np.ndarray  # (s,) and more than so many
    of_sizes: np.ndarray  # (w+1,) the largest size of the band that each size is in; the empty subset is in none


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tree", "W", "C", "pinned", "log_radii", "size_logits"],
    meta_fields=["width", "rank"],
)
@dataclass(frozen=True)
class BandState:
    """A prepared kernel: the tree, and the radii of the circles of all bands."""

    tree: Tree
    W: Array  # (d, d)
    C: Array  # (d, d)
    pinned: Array  # (j,) items in every subset, padded with n
    log_radii: Array  # (s,) of all stages
    size_logits: Array  # (d+1,) of the number of other items
    width: int = field(metadata={"static": True})
    rank: int = field(metadata={"static": True})

    @property
    def shards(self) -> Shards | None:
        """The devices over which the items are, if there are several."""
        return self.tree.shards

    def num_upper(self, room: int) -> int:
        """How many nodes in the upper half are enough for draws of up to ``room`` items."""
        # The sizes in the middle vary most.
        sizes, dtype = {min(room, self.rank * share // 12) for share in (4, 5, 6)} | {room}, self.C.dtype
        schedules = {size: schedule_of(size, _STAGE_LENGTH[dtype.name]) for size in sizes}
        return max(num_upper_nodes(size, schedule, self.rank, dtype) for size, schedule in schedules.items())


@functools.cache
def bands_of(width: int, rank: int, dtype: np.dtype) -> Bands:
    """The bands of the sizes up to ``width``."""
    of_sizes, stages, top = np.zeros(width + 1, np.int32), [], width
    while top > 0:
        num_sizes = 1 + min(_MOST_SIZES - 1, math.isqrt(rank * max(rank - top, 0) // top))
        of_sizes[max(1, top + 1 - num_sizes) : top + 1] = top
        stages += [(top, *limits) for limits in schedule_of(top, _STAGE_LENGTH[dtype.name])]
        top -= num_sizes
    top_of_stage, high, low = np.asarray(stages, np.int32).reshape(-1, 3).T
    return Bands(top_of_stage, high, low, of_sizes)


def prepare_bands(target: Target) -> BandState:
    """The tree, and the weights of all sizes. O(n d² + d³), and O(J d³) with limits on the size or weights of sizes."""
    # asked of the kernel as it is given: in the basis below, W has the small scales of X
    size_logits = log_weights_of_sizes(target, target.kernel.C)
    log_e = log_weights_of_sizes(target.of_all_sizes(), target.kernel.C, every_size=not target.is_unlimited)
    kernel, width, rank = target.kernel.whitened(), target.width, target.kernel.max_rank
    dtype = kernel.X.dtype
    bands = bands_of(width, rank, dtype)
    log_radii = jax.vmap(partial(stage_log_radius, log_e))(*map(jnp.asarray, bands[:3]))
    tree = build_tree(kernel.X, shards=target.shards)
    return BandState(tree, kernel.W, tree.gram, target.items, log_radii, size_logits, width, rank)


def draw_by_bands(state: BandState, keys: Array, number: Array | int) -> Array:
    """Subsets (s, w), one for each key, of which the first ``number`` are made; -1 where none could be drawn."""
    n, length, width = state.tree.num_items, len(keys), state.width
    sizes = jnp.where(jnp.arange(length) < number, draw_sizes(state.size_logits, keys), 0).astype(jnp.int32)
    order = jnp.argsort(-sizes)
    tops = jnp.asarray(bands_of(width, state.rank, state.C.dtype).of_sizes)
    rooms = [room for room in _ROOMS if 2 * width > 3 * room] + [width]
    chunks = [min(length, _num_together(state, room)) for room in rooms]
    # A chunk may begin at the last draw.
    places = jnp.append(order, jnp.zeros(max(chunks), order.dtype))
    sizes = jnp.append(sizes[order], jnp.zeros(max(chunks), sizes.dtype))

    def draw_chunk(room: int, chunk: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        """The next draws of one band, the largest of those that are left."""
        first, drawn = carry
        of_chunk = lax.dynamic_slice_in_dim(sizes, first, chunk)
        largest, top = of_chunk[0], tops[of_chunk[0]]
        belongs = tops[of_chunk] == top
        own_keys = keys[lax.dynamic_slice_in_dim(places, first, chunk)]
        new = jax.vmap(partial(_draw, state, room, top, largest))(jnp.where(belongs, of_chunk, 0), own_keys)
        new = jnp.pad(new, ((0, 0), (0, width - room)), constant_values=n)
        new = jnp.where(belongs[:, None], new, lax.dynamic_slice_in_dim(drawn, first, chunk))
        return first + jnp.sum(belongs), lax.dynamic_update_slice_in_dim(drawn, new, first, 0)

    def draw_some(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ways = [partial(draw_chunk, room, chunk) for room, chunk in zip(rooms, chunks, strict=True)]
        return lax.switch(jnp.sum(tops[sizes[carry[0]]] > jnp.array(rooms[:-1], jnp.int32)), ways, carry)

    start = jnp.asarray(0), jnp.full((len(sizes), width), n, jnp.int32)
    drawn = lax.while_loop(lambda carry: sizes[carry[0]] > 0, draw_some, start)[1][:length]
    drawn = jnp.zeros_like(drawn).at[order].set(drawn, unique_indices=True)
    return jnp.where(jnp.any(state.size_logits > -jnp.inf), drawn, -1)


def _num_together(state: BandState, room: int) -> int:
    """How many draws are made at a time: by their factors, and a few matrices."""
    d, num_slots = len(state.C), room + len(state.pinned)
    most = chunk_size(4 * state.C.dtype.itemsize * d * (2 * d + state.num_upper(room) * num_slots))
    return 2 ** int(math.log2(most))


def _draw(state: BandState, room: int, top: Array, largest: Array, size: Array, key: Array) -> Array:
    """A subset (room,) of a size up to ``largest``, in the band up to ``top``."""
    tops, highs, lows = map(jnp.asarray, bands_of(state.width, state.rank, state.C.dtype)[:3])
    num_rows, num_upper = len(state.pinned), state.num_upper(room)
    empty = Draw.empty(state.tree.num_items, room, state.C.dtype, state.pinned)
    slots = Slots(
        room=num_rows + top,
        size=jnp.sum(state.pinned < state.tree.num_items) + size,
        first=num_rows + top - size,
        begin=0 if num_rows else top - largest,
    )
    # what is missing before the largest of the draws begins is in no one's way
    first, end = jnp.sum((tops > top) | ((tops == top) & (lows >= largest))), jnp.sum(tops >= top)

    def attempt(key: Array) -> Draw:
        uniforms = uniforms_of(state.tree, len(empty.items), key)

        def run(number: Array, draw: Draw) -> Draw:
            high = jnp.minimum(highs[number], largest)
            stage = build_stage(state.W, state.C, state.log_radii[number], high, lows[number], num_upper)
            return run_stage(state.tree, state.C, stage, draw, uniforms, slots)

        return lax.fori_loop(first, end, run, empty)

    draw = until_found(attempt, key, empty)
    return jnp.where(draw.found, jnp.sort(draw.items[num_rows:]), -1)
