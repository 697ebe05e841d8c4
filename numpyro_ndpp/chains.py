"""Chains of subsets, side by side: where they start, and how they step.

If the size is fixed, a step is that of the up-down walk. If it varies, a step is a move of
:class:`~numpyro_ndpp.SubsetGibbs` without a likelihood, which may change the size. Starts are more spread out than
draws are, or are all at the greedy subset. :mod:`numpyro_ndpp.diagnostics` records and judges such chains.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.typing import ArrayLike

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.draw_shares import in_shares, mesh_of_draws
from numpyro_ndpp.latent import local_move
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers import UpDown
from numpyro_ndpp.samplers.batching import in_chunks, side_by_side
from numpyro_ndpp.samplers.chain import ChainState
from numpyro_ndpp.samplers.updown import walk_chunk_size
from numpyro_ndpp.samplers.walk import StepInfo, Walk

INITS = ("uniform", "greedy")

# The most draws that a call of run_block records.
BLOCK = 100
# Subsets whose determinants are computed at a time.
_ROWS = 512


def walk_of(dist: SubsetDistribution) -> Walk:
    """The walk of a distribution, prepared; by its own sampler if that is the walk."""
    by_walk = dist if isinstance(dist.sampler, UpDown) else dist.with_sampler(UpDown())
    return by_walk.prepared_state()


def _steps_of_the_walk(dist: SubsetDistribution) -> bool:
    """Whether a chain makes the steps of UpDown; if not, it makes moves, which may change the size."""
    return dist.min_size == dist.max_size != 1  # the walk exchanges two items; a move can exchange a single one


def chain_in_words(dist: SubsetDistribution) -> str:
    """Which chain is run for a distribution: if the size varies, not the one behind its draws."""
    if _steps_of_the_walk(dist):
        return "the up-down walk, as it is behind sample"
    return "moves of SubsetGibbs, which may change the size; sample draws the size first, exactly, then walks"


def _step(dist: SubsetDistribution, walk: Walk, key: Array, state: ChainState) -> tuple[ChainState, StepInfo]:
    """One step of a chain."""
    if _steps_of_the_walk(dist):
        return walk.step(key, state)
    move_key, accept_key = random.split(key)
    subset = state.subset[len(walk.pinned) :]
    proposed, log_ratio = local_move(dist, walk, move_key, subset)
    accepted = jnp.log(random.uniform(accept_key, (), walk.dtype)) < log_ratio
    state = walk.init(jnp.where(accepted, proposed, subset))
    return state, StepInfo((~accepted).astype(jnp.int32), accepted & jnp.any(proposed != subset))


def run_block(
    dist: SubsetDistribution, walk: Walk, keys: Array, states: ChainState, num_draws: int, thin: int
) -> tuple[Array, ChainState, Array, StepInfo]:
    """The next draws of chains (c,), ``thin`` steps apart: keys, states, subsets (c, BLOCK, w), and what happened.

    There may be up to BLOCK of them; the rest stays empty, so that nothing is compiled again for another number. Where
    there is a mesh with an axis "draws", each device along it has its share of the chains.
    """
    mesh = mesh_of_draws(dist.shards, dist.X, len(keys))
    return _run_block(dist, walk, keys, states, num_draws, thin, mesh)


@partial(jax.jit, static_argnums=6)
def _run_block(
    dist: SubsetDistribution, walk: Walk, keys: Array, states: ChainState, num_draws: int, thin: int, mesh: Any
) -> tuple[Array, ChainState, Array, StepInfo]:
    def draw(walk: Walk, i: Array, carry: tuple) -> tuple:
        key, start, subsets, infos = carry

        def body(_: int, carry: tuple[Array, ChainState, Array]) -> tuple[Array, ChainState, Array]:
            key, state, num_rejections = carry
            key, step_key = random.split(key)
            state, info = _step(dist, walk, step_key, state)
            return key, state, num_rejections + info.num_rejections.astype(jnp.int32)

        key, state, num_rejections = lax.fori_loop(0, thin, body, (key, start, jnp.zeros((), jnp.int32)))
        # The pinned items come first and stay; slots keep their items from step to step, in no order.
        items = jnp.sort(state.subset[len(walk.pinned) :])
        changed = jnp.any(items != jnp.sort(start.subset[len(walk.pinned) :]))
        info = jax.tree.map(lambda all_of, one: all_of.at[i].set(one), infos, StepInfo(num_rejections, changed))
        return key, state, subsets.at[i].set(items.astype(jnp.int32)), info

    def chain(walk: Walk, key: Array, start: ChainState) -> tuple[Array, ChainState, Array, StepInfo]:
        width = states.subset.shape[-1] - len(walk.pinned)
        infos = StepInfo(jnp.zeros(BLOCK, jnp.int32), jnp.zeros(BLOCK, bool))
        empty = key, start, jnp.zeros((BLOCK, width), jnp.int32), infos
        return lax.fori_loop(0, num_draws, partial(draw, walk), empty)

    def chains(walk: Walk, starts: tuple[Array, ChainState], number: Array | int) -> Any:
        chunk = min(walk_chunk_size(walk, walk.width), platform().chains_side_by_side)
        return in_chunks(partial(side_by_side, partial(chain, walk)), chunk, number, *starts)

    if mesh is not None:
        return in_shares(mesh, chains, walk, (keys, states), len(keys))
    return chains(walk, (keys, states), len(keys))


def log_dets(dist: SubsetDistribution, subsets: np.ndarray) -> np.ndarray:
    """The log-density of subsets (..., w) up to a constant: log det L_S but for weights of sizes; -inf outside.

    They are computed in blocks of one length, so that nothing is compiled again for another number.
    """
    rows = subsets.reshape(math.prod(subsets.shape[:-1]), subsets.shape[-1]).astype(np.int32)
    padded = np.pad(rows, [(0, -len(rows) % _ROWS), (0, 0)], constant_values=dist.num_items)
    blocks = [np.asarray(_log_dets(dist, padded[i : i + _ROWS])) for i in range(0, len(padded), _ROWS)]
    dtype = dist.X.dtype
    return np.concatenate([np.zeros(0, dtype), *blocks])[: len(rows)].reshape(subsets.shape[:-1])


@jax.jit
def _log_dets(dist: SubsetDistribution, rows: Array) -> Array:
    inside = dist.contains(rows)
    proper = jnp.where(inside[:, None], rows, dist.num_items)
    log_weights = dist.log_weights(proper)
    return jnp.where(inside, log_weights, -jnp.inf)


@jax.jit
def uniform_starts(dist: SubsetDistribution, walk: Walk, keys: Array) -> Array:
    """A start (c, w) for each key: a size, uniform among the possible ones, and that many items, uniformly."""

    def start(key: Array) -> Array:
        size_key, items_key = random.split(key)
        if walk.size_logits is None:
            return walk.uniform_start(items_key, walk.width, walk.starts)
        sizes = jnp.arange(len(walk.starts))
        found = jnp.sum(walk.starts < dist.num_items, axis=1)
        possible = (walk.size_logits[: len(sizes)] > -jnp.inf) & (found == sizes)
        size = random.categorical(size_key, jnp.where(possible, 0.0, -jnp.inf))
        return walk.uniform_start(items_key, size, walk.starts[size])

    return jax.vmap(start)(keys)


@jax.jit
def _states(walk: Walk, starts: Array) -> ChainState:
    return jax.vmap(walk.init)(starts)


def _starts(dist: SubsetDistribution, walk: Walk, key: Array, num_chains: int, init: str | ArrayLike) -> Array:
    """Subsets (c, w) of positive probability."""
    if isinstance(init, str) and init == "uniform":
        starts = uniform_starts(dist, walk, random.split(key, num_chains))
    else:
        starts = dist.greedy() if isinstance(init, str) else jnp.asarray(init, jnp.int32)
        if starts.shape not in ((dist.max_size,), (num_chains, dist.max_size)):
            raise ValueError(
                f"init must have shape ({dist.max_size},) or ({num_chains}, {dist.max_size}), one padded subset for "
                f"all chains or one for each, got {starts.shape}"
            )
        starts = jnp.broadcast_to(starts, (num_chains, dist.max_size))
    impossible = np.flatnonzero(~(log_dets(dist, np.asarray(starts)) > -np.inf))
    if len(impossible) and isinstance(init, str):
        raise ValueError(f"no subset of {dist.sizes_in_words()} items has a positive probability under dist")
    if len(impossible):
        subset = starts[impossible[0]].tolist()
        raise ValueError(f"init: chain {impossible[0]} cannot start at {subset}, which has probability zero")
    return starts


def begin_chains(
    dist: SubsetDistribution, key: Array, num_chains: int, init: str | ArrayLike
) -> tuple[Walk, Array, ChainState]:
    """The walk of a distribution, and the keys (c,) and states of chains at their starts."""
    if isinstance(init, str) and init not in INITS:
        raise ValueError(f"init must be one of {', '.join(map(repr, INITS))} or an array of subsets, got {init!r}")
    walk = walk_of(dist)
    start_key, chain_key = random.split(key)
    states = _states(walk, _starts(dist, walk, start_key, num_chains, init))
    return walk, random.split(chain_key, num_chains), states
