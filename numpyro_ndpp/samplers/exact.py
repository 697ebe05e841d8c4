"""Exact draws of every distribution, by the engine that is best for it."""

from dataclasses import dataclass

from jax import Array

from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.base import OneByOne
from numpyro_ndpp.samplers.batching import chunk_size
from numpyro_ndpp.samplers.contour import Contour, ContourState
from numpyro_ndpp.samplers.leap import LeapState, draw_by_leaps, prepare_leap
from numpyro_ndpp.target import Target


@dataclass(frozen=True)
class Exact(OneByOne):
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

    def draw(self, state: ContourState | LeapState, key: Array) -> Array:
        """One subset (w,)."""
        return Contour().draw(state, key) if isinstance(state, ContourState) else draw_by_leaps(state, key)

    def num_side_by_side(self, state: ContourState | LeapState) -> int:
        """How many draws are made at a time."""
        if isinstance(state, ContourState):
            return Contour().num_side_by_side(state)
        return 1 if platform().draws_alone else chunk_size(state.R.dtype.itemsize * 16 * state.R.size)

    def may_share_cores(self, state: ContourState | LeapState) -> bool:
        """Yes, on a CPU: leaps factorise one matrix at a time there, and draws by the contour none."""
        return platform().is_cpu

    def failure(self, state: ContourState | LeapState) -> str:
        """Why a draw was not made."""
        if isinstance(state, ContourState):
            return Contour().failure(state)
        return "they are so rare that none was met"
