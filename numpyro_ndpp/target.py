r"""What is computed and drawn for one kernel: the subsets of an allowed size that hold the pinned items.

With J the pinned items, usually none, and T = S∖J the others,

.. math:: P(T) = w_{|J∪T|} \det L_{J∪T} \Big/ \sum_{T'} w_{|J∪T'|} \det L_{J∪T'}
          \qquad\text{over } low \le |J∪T| \le high .

The weights w of the sizes are all one, unless the law of the size is free.

The items stay a part of the target rather than of a conditional kernel, which need not exist.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.devices import Shards
from numpyro_ndpp.kernel import Kernel, marginal_matrix, rows_of
from numpyro_ndpp.linalg import column_lengths, log_det, matmul, once_known
from numpyro_ndpp.minors import log_minors

# The dimensions of X, W, K, the pinned items and the weights of the sizes, as jnp.vectorize has them.
_DIMS = "(n,d)", "(d,d)", "(e,e)", "(j)", "(w)"


class Pinned(NamedTuple):
    """Items that are in every subset: their features (j, d), zero where there is none, and which there are (j,)."""

    rows: Array
    present: Array

    @classmethod
    def of(cls, X: Array, items: Array) -> "Pinned":
        """The items (j,), padded with n."""
        return cls(rows_of(X, items), items < len(X))

    @property
    def number(self) -> Array:
        return jnp.sum(self.present)

    def log_minor(self, W: Array) -> Array:
        """log det (X W Xᵀ)_J; -inf where it is zero to rounding."""
        num_rows = len(self.rows)
        items = jnp.sort(jnp.where(self.present, jnp.arange(num_rows), num_rows))
        return log_minors(Kernel.of(self.rows, W), items[None])[0]

    def log_prob(self, Z: Array, C: Array) -> Array:
        r"""log P(J ⊆ S), the log-minor of the marginal kernel X Z Xᵀ; -inf where it is zero to rounding.

        Z itself is rounded, by what rounding does to C: the entry of items i and j is off by some
        :math:`ε \|x_i Z\| \|Z x_j\|`, with entries in units of the columns of X. Where columns are parallel that may be
        far more than :math:`ε \|x_i Z\| \|x_j\|`.
        """
        if len(self.rows) == 0:
            return jnp.zeros((), Z.dtype)
        value, length = self.log_minor(Z), column_lengths(C)
        # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
        Z, rows = lax.stop_gradient((once_known(value, Z) * length[:, None] * length, self.rows / length))
        left, right = matmul(rows, Z), matmul(rows, Z.T)
        row_scale = jnp.linalg.norm(left, axis=1)
        column_scale = jnp.sqrt(jnp.sum(rows**2, axis=1) + jnp.sum(right**2, axis=1))
        row_scale, column_scale = (jnp.where(scale > 0, scale, 1.0) for scale in (row_scale, column_scale))
        minor = matmul(left, rows.T) + jnp.diag((~self.present).astype(rows.dtype))
        return jnp.where(log_det(minor, row_scale, column_scale) > -jnp.inf, value, -jnp.inf)

    def marginal_matrix(self, W: Array, C: Array) -> Array:
        """Z of the marginal kernel given these items, Z - Z X_Jᵀ (X_J Z X_Jᵀ)⁻¹ X_J Z, which always exists. O(d³)."""
        Z = marginal_matrix(W, C)
        if len(self.rows) == 0:
            return Z
        left = matmul(self.rows, Z)
        minor = matmul(left, self.rows.T) + jnp.diag((~self.present).astype(Z.dtype))
        return Z - matmul(matmul(Z, self.rows.T), jnp.linalg.solve(minor, left))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel", "items", "log_size_weights"],
    meta_fields=["sizes", "num_certain", "shards"],
)
@dataclass(frozen=True)
class Target:
    """P(T) ∝ w det L_{J∪T} over the sets T of other items than J, with J∪T of an allowed size, whose weight is w."""

    kernel: Kernel
    items: Array  # (j,) the pinned items J, padded with n
    sizes: tuple[int, int] = field(metadata={"static": True})  # the smallest and the largest J∪T
    num_certain: int = field(metadata={"static": True})  # how many of the items are known to be no padding
    log_size_weights: Array | None = None  # (high+1,) the logarithms of w_0 .. w_high; None: all sizes weigh one
    shards: Shards | None = field(default=None, metadata={"static": True})  # the devices that have the rows of X

    @classmethod
    def of(cls, kernel: Kernel, low: int, high: int) -> "Target":
        """Subsets of low to high items, none of them pinned."""
        return cls(kernel, jnp.zeros(0, jnp.int32), (low, high), 0)

    @property
    def pinned(self) -> Pinned:
        return Pinned.of(self.kernel.X, self.items)

    @property
    def is_fixed(self) -> bool:
        """Whether there is one size. Then no pinned item is padding, and T has one size too."""
        return self.sizes[0] == self.sizes[1]

    @property
    def is_unlimited(self) -> bool:
        """Whether every subset that holds the pinned items has an allowed size, and all sizes weigh one."""
        has_all = self.num_certain >= self.sizes[0] and self.sizes[1] == self.kernel.max_rank
        return has_all and self.log_size_weights is None

    @property
    def width(self) -> int:
        """The room for T."""
        return self.sizes[1] - (self.items.shape[-1] if self.is_fixed else 0)

    @property
    def limits(self) -> tuple[Array, Array]:
        """The smallest and the largest number of items in T; the smallest may be negative."""
        number = jnp.sum(self.items < self.kernel.num_items)
        return self.sizes[0] - number, self.sizes[1] - number

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Target":
        """A batch of targets, with arrays that all have its dimensions."""

        def broadcast(array: Array, num_dims: int) -> Array:
            shape = (*batch_shape, *array.shape[array.ndim - num_dims :])
            return array if array.shape == shape else jnp.broadcast_to(array, shape)

        kernel = Kernel(*(broadcast(array, 2) for array in self.kernel))
        weights = None if self.log_size_weights is None else broadcast(self.log_size_weights, 1)
        return replace(self, kernel=kernel, items=broadcast(self.items, 1), log_size_weights=weights)

    def of_all_sizes(self) -> "Target":
        """The same kernel and items without limits on the size and weights of sizes."""
        return replace(self, sizes=(0, self.kernel.X.shape[-1]), log_size_weights=None)

    def with_items(self, items: Array, num_certain: int) -> "Target":
        """The items (j,) pinned in place of the others."""
        return replace(self, items=items, num_certain=num_certain)


def per_kernel(function: Callable[[Target], Array], target: Target, out: str) -> Array:
    """``function(target)`` for every kernel of a batch, whose arrays need not all have its dimensions.

    :param out: the dimensions of its result, as ``jnp.vectorize`` has them: ``"(n)"``.
    """
    leaves, structure = jax.tree.flatten(target)
    of_leaves = jnp.vectorize(
        lambda *leaves: function(jax.tree.unflatten(structure, leaves)),
        signature=f"{','.join(_DIMS[: len(leaves)])}->{out}",
    )
    return of_leaves(*leaves)


def per_subset(
    function: Callable[[Any, Array], Array], kernels: Any, num_batch_dims: int, subsets: Array, out: str
) -> Array:
    """``function(kernel, subsets (s, m)) -> (s, ...)`` of subsets (..., m), broadcast with a batch of kernels.

    :param kernels: a Kernel or a Target.
    """
    subsets = subsets.reshape((1,) * (num_batch_dims + 1 - subsets.ndim) + subsets.shape)
    sample_dims = subsets.shape[: subsets.ndim - 1 - num_batch_dims]
    # Kernels in front, then all the subsets of one kernel: a kernel sees its subsets together.
    flat = subsets.reshape((math.prod(sample_dims), *subsets.shape[len(sample_dims) :]))
    leaves, structure = jax.tree.flatten(kernels)
    of_leaves = jnp.vectorize(
        lambda *arrays: function(jax.tree.unflatten(structure, arrays[:-1]), arrays[-1]),
        signature=",".join([*_DIMS[: len(leaves)], f"(s,m)->{out}"]),
    )
    values = jnp.moveaxis(of_leaves(*leaves, jnp.moveaxis(flat, 0, num_batch_dims)), num_batch_dims, 0)
    return values.reshape(sample_dims + values.shape[1:])
