r"""Symmetric matrices as packed triangles, and the queries that are inner products with them: q · pack(Σ) = ⟨Q, Σ⟩."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import Array


def pack(S: Array) -> Array:
    """The upper triangle of a symmetric matrix (..., d, d) as a vector (..., p), p = d(d+1)/2 for even d.

    Of the four quarters of S one is kept as it is, and the triangles of the two on the diagonal share a rectangle that
    is one column wider: slices, where a gather of the triangle would be slow. For odd d the matrix is filled up with a
    row and a column of zeros.
    """
    d = S.shape[-1]
    half = -(-d // 2)
    batch = [(0, 0)] * (S.ndim - 2)
    S = jnp.pad(S, [*batch, (0, 2 * half - d), (0, 2 * half - d)])
    first = jnp.pad(S[..., :half, :half], [*batch, (0, 0), (1, 0)])
    second = jnp.pad(S[..., half:, half:], [*batch, (0, 0), (0, 1)])
    row, column = jnp.arange(half)[:, None], jnp.arange(half + 1)
    rectangle = jnp.concatenate([S[..., :half, half:], jnp.where(column > row, first, second)], axis=-1)
    return rectangle.reshape(*S.shape[:-2], half * (2 * half + 1))


@functools.cache
def _places(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of a packed triangle (p,) stand in the matrix, and those of the matrix (d, d) in it."""
    half = -(-d // 2)
    column = np.arange(half + 1)
    row = np.arange(half)[:, None]
    first = np.where(column > row, row, row + half)
    second = np.where(column > row, column - 1, column + half)
    rows = np.concatenate([np.broadcast_to(row, (half, half)), first], axis=1).reshape(-1)
    columns = np.concatenate([np.broadcast_to(np.arange(half) + half, (half, half)), second], axis=1).reshape(-1)
    inside = (rows < d) & (columns < d)
    from_triangle = np.zeros((d, d), np.int32)
    place = np.arange(len(rows))[inside]
    from_triangle[rows[inside], columns[inside]] = place
    from_triangle[columns[inside], rows[inside]] = place
    return np.where(inside, rows * d + columns, d * d).astype(np.int32), from_triangle


def unpack(packed: Array, d: int) -> Array:
    """The symmetric matrix (d, d) whose packed triangle is given."""
    return packed[_places(d)[1]]


def symmetric_part(Q: Array) -> Array:
    """½ (Q + Qᵀ), which is all that a query is about."""
    return 0.5 * (Q + Q.T)


def pack_query(S: Array) -> Array:
    """The vector q (p,) of a symmetric query S (d, d): q · pack(Σ) = ⟨S, Σ⟩ for every symmetric Σ."""
    d = len(S)
    place = _places(d)[0]
    weight = np.where(place % (d + 1) == 0, 1.0, 2.0)  # entries beside the diagonal count twice
    return S.reshape(-1).at[place].get(mode="fill", fill_value=0) * weight.astype(S.dtype)
