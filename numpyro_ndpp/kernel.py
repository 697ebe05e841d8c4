r"""The low-rank kernel L = X W Xᵀ, formed only where a user asks for it.

X (n, d) holds one row of features per item, W (d, d) has a positive semidefinite symmetric part; so every principal
minor det L_S = det(X_S W X_Sᵀ) is non-negative. A user's V (n, d₁), B (n, d₂), D (d₂, d₂) are the special case
X = [V B], W = Diag(I, D - Dᵀ).

Reference: Gartrell, Han, Dohmatob, Gillenwater and Brunel (2021), *Scalable learning and MAP inference for
nonsymmetric determinantal point processes*, ICLR.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from numpyro_ndpp.linalg import column_lengths, matmul


def inner_matrix(num_symmetric: int, K: Array) -> Array:
    """W = Diag(I, K) (d, d), with an identity of size ``num_symmetric``."""
    d1, d2 = num_symmetric, len(K)
    W = jnp.zeros((d1 + d2, d1 + d2), K.dtype)
    return W.at[:d1, :d1].set(jnp.eye(d1, dtype=K.dtype)).at[d1:, d1:].set(K)


@jax.custom_jvp
def gram(X: Array) -> Array:
    """C = XᵀX (d, d), the only reduction over all items that the normaliser needs."""
    return matmul(X.T, X)


@gram.defjvp
def _gram_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # One product over all items instead of two, in the backward pass too.
    half = matmul(tangents[0].T, primals[0])
    return gram(primals[0]), half + half.T


def quadratic_forms(X: Array, Q: Array) -> Array:
    """x_aᵀ Q x_a for every item a (n,)."""
    return jnp.sum(matmul(X, Q) * X, axis=-1)


def marginal_matrix(W: Array, C: Array) -> Array:
    """Z = W (I + C W)⁻¹ (d, d), for which X Z Xᵀ is the marginal kernel: P(J ⊆ S) is its minor on J. O(d³)."""
    return jnp.linalg.solve((jnp.eye(len(W), dtype=W.dtype) + matmul(C, W)).T, W.T).T


def rows_of(X: Array, items: Array) -> Array:
    """The features (..., d) of items (...), zero where there is none: where the number is n."""
    return X.at[items].get(mode="fill", fill_value=0)


def row_of(X: Array, item: Array) -> Array:
    """X[item] for an item that there is. A slice in place of the gather would have all devices gather a sharded X."""
    return X.at[item[None]].get(mode="promise_in_bounds")[0]


def without(X: Array, items: Array) -> Array:
    """Features (n, d) with rows of zeros for the items (m,): no subset with a positive minor holds one of these."""
    return X.at[items].set(0.0, mode="drop")


class Kernel(NamedTuple):
    """L = X W Xᵀ. A batch of kernels has the batch's dimensions in front of each array."""

    X: Array
    """(n, d) the features, one row per item."""
    W: Array
    """(d, d) the inner matrix."""
    K: Array
    """(d₂, d₂) with W = Diag(I, K), at the most W itself: the smaller it is, the less work a minor is."""

    @classmethod
    def of(cls, X: Array, W: Array) -> "Kernel":
        """The kernel of X (n, d) and W (d, d)."""
        return cls(X, W, W)

    @property
    def C(self) -> Array:
        """The Gram matrix XᵀX (d, d). O(n d²)."""
        return gram(self.X)

    @property
    def num_items(self) -> int:
        return self.X.shape[-2]

    @property
    def num_symmetric(self) -> int:
        """The size of the identity in W."""
        return self.W.shape[-1] - self.K.shape[-1]

    @property
    def max_rank(self) -> int:
        """min(n, d): no larger subset has a positive minor."""
        return min(self.X.shape[-2:])

    def with_inner(self, W: Array) -> "Kernel":
        """The kernel X W Xᵀ of another W (d, d)."""
        return Kernel.of(self.X, W)

    def dense(self) -> Array:
        """L itself (n, n), for small n: everything else does without. O(n² d)."""
        return matmul(matmul(self.X, self.W), self.X.T)

    def whitened(self) -> "Kernel":
        """The same kernel in a basis where XᵀX is about the identity. O(n d²).

        Exact whatever the basis: only the rounding errors of what is computed in it depend on how near to one it comes.
        """
        C = self.C
        length = column_lengths(C)
        values, vectors = jnp.linalg.eigh(C / (length[:, None] * length))
        # The longest direction first: elimination is accurate where large numbers come before small ones.
        values, vectors = values[::-1], vectors[:, ::-1]
        scale = jnp.sqrt(jnp.maximum(values, jnp.finfo(values.dtype).eps * values[0]))
        scale = jnp.where(scale > 0, scale, 1.0)
        to_features = vectors * scale * length[:, None]
        X = matmul(self.X, vectors / scale / length[:, None])
        return Kernel.of(X, matmul(to_features.T, matmul(self.W, to_features)))
