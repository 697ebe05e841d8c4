"""Exact draws of every distribution, by the engine that is best for it."""

from dataclasses import dataclass
from typing import Any

from jax import Array

from numpyro_ndpp.platforms import platform
from numpyro_ndpp.samplers.bands import BandState, draw_by_bands, prepare_bands
from numpyro_ndpp.samplers.base import OneByOne
from numpyro_ndpp.samplers.contour import Contour, ContourState
from numpyro_ndpp.samplers.leap import LeapState, draw_by_leaps, prepare_leap
from numpyro_ndpp.samplers.stages import lost_in_rounding
from numpyro_ndpp.target import Target


@dataclass(frozen=True)
class Exact(OneByOne):
    """Exact, independent draws of every distribution, at a cost that hardly depends on n: no chain, no rejection.

    A fixed size is drawn by :class:`Contour`. Sizes that vary are drawn by leaping from item to item (:mod:`.leap`),
    which takes O(d³) and a few inner products of O(d² log n) for each item after preprocessing of O(n d²); limits on
    the size are kept by drawing again. An accelerator draws the size first, and many subsets of like sizes together as
    :class:`Contour` does (:mod:`.bands`).

    >>> from jax import random
    >>> from numpyro_ndpp import NDPP, Exact
    >>> V, B, D = (random.normal(random.key(i), s) for i, s in enumerate([(100, 4), (100, 4), (4, 4)]))
    >>> NDPP(V, B, D, sampler=Exact()).sample(random.key(3), (2,)).shape
    (2, 8)
    """

    def prepare(self, target: Target) -> ContourState | LeapState | BandState:
        """What every draw needs: O(n d²) once."""
        if target.is_fixed:
            return Contour().prepare(target)
        return prepare_leap(target) if platform().is_cpu else prepare_bands(target)

    def sample(self, state: ContourState | LeapState | BandState, keys: Array, number: Any = None) -> Array:
        """Subsets (s, w), one for each key; only the first ``number`` are made."""
        if isinstance(state, BandState) and state.width > 0:
            return draw_by_bands(state, keys, len(keys) if number is None else number)
        return super().sample(state, keys, number)

    def draw(self, state: ContourState | LeapState, key: Array) -> Array:
        """One subset (w,)."""
        return Contour().draw(state, key) if isinstance(state, ContourState) else draw_by_leaps(state, key)

    def num_side_by_side(self, state: ContourState | LeapState) -> int:
        """How many draws are made at a time."""
        return Contour().num_side_by_side(state) if isinstance(state, ContourState) else 1

    def may_share_cores(self, state: ContourState | LeapState | BandState) -> bool:
        """Yes, on a CPU: leaps factorise one matrix at a time there, and draws by the contour none."""
        return platform().is_cpu

    def failure(self, state: ContourState | LeapState | BandState) -> str:
        """Why a draw was not made."""
        if isinstance(state, LeapState):
            return "they are so rare that none was met"
        return lost_in_rounding(state.C.dtype)
