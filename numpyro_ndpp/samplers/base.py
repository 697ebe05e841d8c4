"""What a distribution asks of a sampler."""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array

from numpyro_ndpp.samplers.batching import in_chunks, side_by_side
from numpyro_ndpp.target import Target

__all__ = ["HasTarget", "OneByOne", "Sampler", "check_sampler"]


class HasTarget(Protocol):
    """A distribution, as a sampler knows it."""

    @property
    def target(self) -> Target: ...


class Sampler(ABC):
    """Settings of a way to draw subsets, immutable and hashable: programs are compiled for each of them.

    A sampler of your own is a frozen dataclass with ``prepare``, ``sample`` and ``failure``. Everything but the
    settings goes through the state, a pytree: it may be batched by ``vmap`` and handed to a jitted function.
    """

    @abstractmethod
    def prepare(self, target: Target) -> Any:
        """What every draw from one target needs, as a pytree."""

    @abstractmethod
    def sample(self, state: Any, keys: Array, number: Array | int | None = None) -> Array:
        """Subsets (s, w) of other items than the pinned ones, one for each key; only the first ``number`` are made.

        Increasing, padded with n; -1 throughout where a draw could not be made.
        """

    @abstractmethod
    def failure(self, state: Any) -> str:
        """Why a draw was not made although subsets of an allowed size have a positive probability."""

    def may_share_cores(self, state: Any) -> bool:
        """Whether the cores of a CPU may make a share of the draws each, side by side.

        Not if a draw, or several beside each other, are factorised as a batch: cores may wait for each other's batches
        forever. A sampler that inherits its draws from another one inherits this too.
        """
        return False


class OneByOne(Sampler):
    """A sampler whose draws know nothing of each other: it says how one is made, and how many go side by side."""

    @abstractmethod
    def draw(self, state: Any, key: Array) -> Array:
        """One subset (w,), padded; -1 throughout if none could be drawn."""

    @abstractmethod
    def num_side_by_side(self, state: Any) -> int:
        """How many draws are made at a time."""

    def sample(self, state: Any, keys: Array, number: Array | int | None = None) -> Array:
        """Subsets (s, w), one for each key; only the first ``number`` are made."""
        if state.width == 0:
            return jnp.zeros((len(keys), 0), jnp.int32)
        draws, number = partial(side_by_side, partial(self.draw, state)), len(keys) if number is None else number
        return in_chunks(draws, self.num_side_by_side(state), number, keys)


def check_sampler(sampler: Any) -> Sampler:
    """The sampler; raises ValueError unless this is a sampler instance: ``UpDown()``, not ``UpDown``."""
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a sampler such as UpDown() or Exact(), got {sampler!r}")
    return sampler
