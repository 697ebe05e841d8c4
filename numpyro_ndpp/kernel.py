r"""The low-rank kernel L = X W Xᵀ, never formed: Gram matrix, principal minors, inclusion probabilities.

X (n, d) holds one row of features per item, W (d, d) has a positive semidefinite symmetric part; so every principal
minor det L_S = det(X_S W X_Sᵀ) is non-negative. A user's V (n, d₁), B (n, d₂), D (d₂, d₂) are the special case
X = [V B], W = Diag(I, D - Dᵀ).

Reference: Gartrell, Han, Dohmatob, Gillenwater and Brunel (2021), *Scalable learning and MAP inference for
nonsymmetric determinantal point processes*, ICLR.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.linalg import log_det, matmul

# Minors of one chunk are computed at once and again in the backward pass: this bounds the memory of both.
_CHUNK_BYTES = 64 * 2**20
_MOST_GROUPS = 16
_SMALLEST_GROUP = 16
_SMALLEST_WIDTH = 4


def inner_matrix(num_symmetric: int, D: Array) -> Array:
    """W = Diag(I, D - Dᵀ) (d, d), with an identity of size ``num_symmetric``."""
    d1, d2 = num_symmetric, len(D)
    W = jnp.zeros((d1 + d2, d1 + d2), D.dtype)
    return W.at[:d1, :d1].set(jnp.eye(d1, dtype=D.dtype)).at[d1:, d1:].set(D - D.T)


def gram(X: Array) -> Array:
    """C = XᵀX (d, d), the only reduction over all items that the normaliser needs."""
    return matmul(X.T, X)


def quadratic_forms(X: Array, Q: Array) -> Array:
    """x_aᵀ Q x_a for every item a (n,)."""
    return jnp.sum(matmul(X, Q) * X, axis=-1)


def log_minor(X: Array, W: Array, subset: Array) -> Array:
    """log det L_S of one subset (m,), padded with n; -inf where it is zero to rounding. O(m d² + m² d + m³)."""
    n = len(X)
    rows = X.at[subset].get(mode="fill", fill_value=0)
    left = matmul(rows, W)
    L = matmul(left, rows.T)
    padding = (subset >= n).astype(X.dtype)  # a one on the diagonal leaves the determinant as it is
    scale = jnp.linalg.norm(lax.stop_gradient(left), axis=1)[:, None] * jnp.linalg.norm(lax.stop_gradient(rows), axis=1)
    return log_det(L + jnp.diag(padding), scale)


def _widths(width: int) -> list[int]:
    """The widths at which subsets are grouped, increasing, each about half the next."""
    widths = [width]
    while widths[0] > _SMALLEST_WIDTH:
        widths.insert(0, (widths[0] + 1) // 2)
    return widths


def _group_size(num_subsets: int, width: int, rank: int, itemsize: int) -> int:
    bytes_each = itemsize * width * (3 * rank + 4 * width)
    most = max(1, _CHUNK_BYTES // bytes_each)
    wanted = max(_SMALLEST_GROUP, -(-num_subsets // _MOST_GROUPS))
    return min(num_subsets, most, wanted)


@jax.jit
def log_minors(X: Array, W: Array, subsets: Array) -> Array:
    """log det L_S of many subsets (s, m), each padded with n to the width m of the widest.

    Subsets of a like size are put together and computed at about their own width (a basket of 5 padded to 100 would
    cost 400 times its share), one group after the other, each again in the backward pass: memory is that of one group.
    """
    num_subsets, width = subsets.shape
    if num_subsets == 0 or width == 0:
        return jnp.zeros(num_subsets, X.dtype)
    n, d = X.shape
    group = _group_size(num_subsets, width, d, X.dtype.itemsize)
    num_groups = -(-num_subsets // group)
    widths = jnp.array(_widths(width))

    def of_width(w: int):
        return lambda rows: jax.vmap(log_minor, in_axes=(None, None, 0))(X, W, rows[:, :w])

    @jax.checkpoint
    def of_group(rows: Array) -> Array:
        largest = jnp.max(jnp.sum(rows < n, axis=1))
        return lax.switch(jnp.searchsorted(widths, largest), [of_width(w) for w in _widths(width)], rows)

    order = jnp.argsort(jnp.sum(subsets < n, axis=1))
    rows = jnp.pad(subsets[order], ((0, num_groups * group - num_subsets), (0, 0)), constant_values=n)
    if num_groups == 1:
        values = of_group(rows)
    else:
        values = lax.map(of_group, rows.reshape(num_groups, group, width)).reshape(-1)[:num_subsets]
    return jnp.zeros_like(values).at[order].set(values, unique_indices=True)
