r"""Distributions by the parameters of their kernel: V, B and D, or X and W."""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro.distributions.batch_util import vmap_over
from numpyro.distributions.util import lazy_property

from numpyro_ndpp.base import SubsetDistribution, vmap_over_parameters
from numpyro_ndpp.constraints import finite_matrix, positive_semidefinite_part
from numpyro_ndpp.devices import Shards, shards_of
from numpyro_ndpp.kernel import inner_matrix

__all__ = ["OfFactors", "OfParts"]


@jax.jit
def _features(V: Array, B: Array) -> Array:
    """[V B], the batches broadcast."""
    batch_shape = lax.broadcast_shapes(V.shape[:-2], B.shape[:-2])
    return jnp.concatenate([jnp.broadcast_to(part, batch_shape + part.shape[-2:]) for part in (V, B)], axis=-1)


@jax.jit
def _skew_parts(D: Array) -> Array:
    return D - jnp.swapaxes(D, -2, -1)


@partial(jax.jit, static_argnums=0)
def _inner_matrices(num_symmetric: int, K: Array) -> Array:
    return jnp.vectorize(partial(inner_matrix, num_symmetric), signature="(d,d)->(e,e)")(K)


class OfParts(SubsetDistribution):
    """Kernels given by V, B and D."""

    arg_constraints: ClassVar[dict[str, Any]] = {
        "V": finite_matrix,
        "B": finite_matrix,
        "D": finite_matrix,
    }
    V: Any
    B: Any
    D: Any

    def _find_shards(self) -> Shards | None:
        return shards_of("V", self.V) or shards_of("B", self.B)

    @lazy_property
    def X(self) -> Array:
        """The features [V B] (..., n, d), one row per item."""
        return _features(self.V, self.B)

    @lazy_property
    def W(self) -> Array:
        """The inner matrix Diag(I, D - Dᵀ) (..., d, d)."""
        return _inner_matrices(self.V.shape[-1], self.inner_block)

    @property
    def inner_block(self) -> Array:
        return _skew_parts(self.D)

    @property
    def num_items(self) -> int:
        """The number n of items."""
        return self.V.shape[-2]

    @property
    def rank(self) -> int:
        """The number d of features, the largest rank that the kernel can have."""
        return self.V.shape[-1] + self.B.shape[-1]


class OfFactors(SubsetDistribution):
    """Kernels given by X and W."""

    arg_constraints: ClassVar[dict[str, Any]] = {"X": finite_matrix, "W": positive_semidefinite_part}


@vmap_over.register
def _vmap_over_parts(
    dist: OfParts,
    V: int | None = None,
    B: int | None = None,
    D: int | None = None,
    pinned: int | None = None,
    excluded: int | None = None,
) -> Any:
    return vmap_over_parameters(dist, pinned, excluded, V=V, B=B, D=D)


@vmap_over.register
def _vmap_over_factors(
    dist: OfFactors,
    X: int | None = None,
    W: int | None = None,
    pinned: int | None = None,
    excluded: int | None = None,
) -> Any:
    return vmap_over_parameters(dist, pinned, excluded, X=X, W=W)
