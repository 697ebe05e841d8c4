"""Exact draws of every distribution, by the engine that is best for it."""

from dataclasses import dataclass
from functools import partial

from jax import Array

from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.base import Sampler
from numpyro_ndpp.samplers.batching import chunk_size, in_chunks, side_by_side
from numpyro_ndpp.samplers.contour import Contour, ContourState
from numpyro_ndpp.samplers.leap import LeapState, draw_by_leaps, prepare_leap
from numpyro_ndpp.target import Target


@dataclass(frozen=True)
class Exact(Sampler):
    """Exact, independent draws of every distribution, at a cost that hardly depends on n: no chain, no rejection.

    A fixed size is drawn by :class:`Contour`, sizes that vary by leaping from item to item (:mod:`.leap`), which takes
    O(d³) and a few inner products of O(d² log n) for each item after preprocessing of O(n d²). Limits on the size are
    kept by drawing again.

    >>> from jax import random
    >>> from numpyro_ndpp import NDPP, Exact
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(100, 4), (100, 4), (4, 4)]))
    >>> NDPP(V, B, D, sampler=Exact()).sample(random.key(3), (2,)).shape
    (2, 8)
    """

    def prepare(self, target: Target) -> ContourState | LeapState:
        """What every draw needs: O(n d²) once."""
        return Contour().prepare(target) if target.is_fixed else prepare_leap(target)

    def sample(self, state: ContourState | LeapState, keys: Array, number: Array | int | None = None) -> Array:
        """Subsets (s, w), one for each key; only the first ``number`` are made."""
        if isinstance(state, ContourState):
            return Contour().sample(state, keys, number)
        chunk = 1 if platform().draws_alone else chunk_size(state.R.dtype.itemsize * 16 * state.R.size)
        draws = partial(side_by_side, partial(draw_by_leaps, state))
        return in_chunks(draws, chunk, len(keys) if number is None else number, keys)

    def failure(self, state: ContourState | LeapState) -> str:
        """Why a draw was not made."""
        if isinstance(state, ContourState):
            return Contour().failure(state)
        return "they are so rare that none was met"
