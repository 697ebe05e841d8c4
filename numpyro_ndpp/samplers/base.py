"""What a distribution asks of a sampler."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

from jax import Array

__all__ = ["HasKernel", "Sampler"]


class HasKernel(Protocol):
    """What a sampler may be asked about: a distribution P(S) ∝ det (X W Xᵀ)_S over subsets that hold pinned items."""

    X: Any
    W: Any
    max_size: int

    @property
    def pinned(self) -> Array: ...

    @property
    def whole_sizes(self) -> tuple[int, int]: ...


class Sampler(ABC):
    """Settings of a way to draw subsets, immutable and hashable: programs are compiled for each of them.

    A sampler of your own is a frozen dataclass with these three methods. Everything but the settings goes through the
    state, a pytree: it may be batched by ``vmap`` and handed to a jitted function.
    """

    @abstractmethod
    def prepare(
        self,
        X: Array,
        W: Array,
        min_size: int,
        max_size: int,
        pinned: Array | None = None,
        width: int | None = None,
    ) -> Any:
        """What every draw of one kernel needs, as a pytree.

        :param X, W: the kernel L = X W Xᵀ, X (n, d) and W (d, d).
        :param min_size, max_size: the smallest and the largest size of a subset, pinned items included.
        :param pinned: items (j,) that are in every subset, padded with n; None is none.
        :param width: how many others there may be; None says that no pinned item is padding.
        """

    @abstractmethod
    def sample(self, state: Any, keys: Array, number: Array | int | None = None) -> Array:
        """Subsets (s, w) of other items than the pinned ones, one for each key; only the first ``number`` are made.

        Increasing, padded with n; -1 throughout where a draw could not be made.
        """

    @abstractmethod
    def failure(self, state: Any) -> str:
        """Why a draw was not made although subsets of an allowed size have a positive probability."""
