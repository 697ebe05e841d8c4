r"""Kernels from what one has: qualities and embeddings, points, a dense kernel, a dense marginal kernel.

A recipe gives the parameters of a distribution, in their order: ``KNDPP(*from_quality(q, embeddings), k=10)``, or
``NDPP.from_factors(*from_dense(L))``. So it serves every distribution, and can be looked at and changed before.

References: Kulesza and Taskar (2012), *Determinantal point processes for machine learning*, for quality and diversity,
and for marginal kernels; Rahimi and Recht (2007), *Random features for large-scale kernel machines*, NeurIPS.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.typing import ArrayLike
from numpyro.util import not_jax_tracer

from numpyro_ndpp.checks import check_is_small, finite_float, floating, static_int
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.parameters import matrix_shape, why_invalid

__all__ = ["Factors", "Parts", "fourier_features", "from_dense", "from_marginal", "from_quality"]


class Parts(NamedTuple):
    """The parameters of :class:`~numpyro_ndpp.NDPP` and :class:`~numpyro_ndpp.KNDPP`."""

    V: Array
    B: Array | None
    D: Array | None


class Factors(NamedTuple):
    """The parameters of ``from_factors``."""

    X: Array
    W: Array


def from_quality(
    quality: ArrayLike, embeddings: ArrayLike, B: ArrayLike | None = None, D: ArrayLike | None = None
) -> Parts:
    r"""The recipe of diverse recommendation: how good each item is, and which are alike.

    .. math:: L = \mathrm{Diag}(q)\,\bigl(Φ Φ^\top + B (D - D^\top) B^\top\bigr)\,\mathrm{Diag}(q),
        \qquad \det L_S = \prod_{a \in S} q_a^2 \,\det\bigl(Φ Φ^\top + B (D - D^\top) B^\top\bigr)_S

    :param quality: q (..., n), at least 0: the probability of a subset has the squares of its items' qualities.
    :param embeddings: Φ (..., n, d₁); the likeness of two items is the product of their rows. Rows of length one leave
        it to q alone how good an item is: ``embeddings / jnp.linalg.norm(embeddings, axis=-1, keepdims=True)``.
    :param B, D: features (..., n, d₂) and matrix (..., d₂, d₂) of what goes together. None: nothing attracts.
    :return: V = Diag(q) Φ, Diag(q) B, and D. O(n d), differentiable in all of them, to any order.
    :raises ValueError: for shapes that do not fit together, B without D, and, outside jit, for a negative quality.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from numpyro_ndpp import KNDPP
    >>> quality = jnp.array([1.0, 1.0, 0.5])
    >>> embeddings = jnp.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])  # items 0 and 1 are alike
    >>> ndpp = KNDPP(*from_quality(quality, embeddings), k=2)
    >>> print(np.exp(np.float64(ndpp.log_prob(jnp.array([[0, 1], [0, 2], [1, 2]])))).round(2))
    [0.47 0.32 0.21]
    """
    if (B is None) != (D is None):
        raise ValueError(f"{'D' if D is None else 'B'} is missing: B and D come together or not at all")
    features = (embeddings,) if B is None or D is None else (embeddings, B, D)
    q, *parts = floating(quality, *features)
    for name, part in zip(("embeddings", "B"), parts, strict=False):
        rows, _ = matrix_shape(name, part.shape)
        if q.shape[-1:] != (rows,):
            raise ValueError(
                f"quality must have a number for each row of {name}, got quality of shape {q.shape} and {name} of "
                f"shape {part.shape}"
            )
    if not_jax_tracer(q) and (bad := np.asarray(q) < 0).any():
        item = int(np.argmax(bad) % bad.shape[-1])
        raise ValueError(
            f"quality must be at least 0, got {np.asarray(q)[bad][0]:.3g} for item {item}; for scores of either sign "
            "take jnp.exp(scores)"
        )
    scaled = [q[..., None] * part for part in parts[:2]]
    return Parts(scaled[0], scaled[1], parts[2]) if len(parts) == 3 else Parts(scaled[0], None, None)


def fourier_features(key: Array, points: ArrayLike, num_features: int, length_scale: ArrayLike = 1.0) -> Array:
    r"""Embeddings whose products are about the Gaussian similarity of points, by random Fourier features,

    .. math:: φ(x)^\top φ(y) \approx e^{-\lVert x - y \rVert^2 / 2ℓ^2}, \qquad
        φ(x) = \sqrt{2/m}\,\bigl(\cos ω_i^\top x,\; \sin ω_i^\top x\bigr)_{i \le m/2},
        \quad ω_i \sim \mathcal N(0, ℓ^{-2} I) .

    :param points: (..., n, p), one row per item.
    :param num_features: m, an even number. A similarity is off by some :math:`\sqrt{1/m}`; a row's length is one.
    :param length_scale: ℓ, above 0, one number or one for each of the p coordinates.
    :return: embeddings (..., n, m), for ``NDPP(V)`` or :func:`from_quality`. O(n m p), differentiable in the points and
        in ℓ. The features of any other similarity go the same way.
    :raises ValueError: for an odd number of features, points that are no matrix, and, outside jit, for ℓ of 0 or less.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> points = jnp.array([[0.0, 0.0], [0.1, 0.0], [3.0, 0.0]])
    >>> ndpp = NDPP(fourier_features(jax.random.key(0), points, num_features=2_000))
    >>> print(abs(ndpp.dense_kernel()).round(1))
    [[1. 1. 0.]
     [1. 1. 0.]
     [0. 0. 1.]]
    """
    number = static_int("num_features", num_features, 2)
    if number % 2:
        raise ValueError(f"num_features must be even, for cosines and sines in pairs, got {number}")
    points, scale = floating(points, length_scale)
    _, num_coordinates = matrix_shape("points", points.shape)
    if not_jax_tracer(scale) and not (np.asarray(scale) > 0).all():
        raise ValueError(f"length_scale must be above 0, got {length_scale}")
    frequencies = random.normal(key, (num_coordinates, number // 2), points.dtype)
    angles = matmul(points / scale, frequencies)
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1) * np.sqrt(2 / number).astype(points.dtype)


def from_dense(L: ArrayLike, *, tolerance: float | None = None) -> Factors:
    r"""Factors of a dense kernel: :math:`L = X W X^\top` up to the tolerance, of as low a rank as that allows.

    :math:`X = Q` is an orthonormal basis of the columns and rows of L, and :math:`W = Q^\top L Q`. A skew part needs
    none of its own, so the rank is that of L.

    :param L: (..., n, n) with L + Lᵀ positive semidefinite.
    :param tolerance: how large L - X W Xᵀ may be, in the spectral norm and relative to L's. Default 1e-8 for arrays of
        64 bits, 1e-5 for others.
    :return: X (..., n, d) and W (..., d, d), for ``NDPP.from_factors``. O(n³). A traced L (in jit, or under a
        derivative) has no known rank: then X is the identity and W is L, which is exact and differentiable.
    :raises ValueError: for more than 4,096 items, what is not square or not finite, and an L whose symmetric part has
        negative eigenvalues below the tolerance: some of its subsets would have a negative probability.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> L = jnp.array([[1.0, 0.5, 0.0], [-0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    >>> ndpp = NDPP.from_factors(*from_dense(L))
    >>> ndpp.rank
    2
    >>> bool(jnp.allclose(ndpp.dense_kernel(), L, atol=1e-6))
    True
    """
    if not not_jax_tracer(L):
        return _whole(_square("L", L))
    known, limit, dtype = _known("L", L, tolerance)
    basis, cut = _basis(known, limit)
    symmetric = (known + np.swapaxes(known, -2, -1)) / 2
    values, vectors = np.linalg.eigh(symmetric)
    if (values[..., :1] < -cut).any():
        raise ValueError(
            f"L must have a positive semidefinite symmetric part, got one with the eigenvalue {values.min():.3g} "
            f"(tolerance={limit:g} of the norm {np.linalg.norm(known, 2, axis=(-2, -1)).max():.3g})"
        )
    # Eigenvalues that are negative by rounding would be refused later: they are none.
    positive = (vectors * np.maximum(values, 0.0)[..., None, :]) @ np.swapaxes(vectors, -2, -1)
    W = np.swapaxes(basis, -2, -1) @ (known - symmetric + positive) @ basis
    return Factors(jnp.asarray(basis.astype(dtype)), jnp.asarray(W.astype(dtype)))


def from_marginal(K: ArrayLike, *, tolerance: float | None = None) -> Factors:
    r"""Factors of the kernel that has the marginal kernel K: P(J ⊆ S) = det K_J for every set J of items.

    .. math:: L = K (I - K)^{-1} = Q\,W Q^\top, \qquad W = K_Q (I - K_Q)^{-1}, \quad K_Q = Q^\top K Q,

    with Q an orthonormal basis of the columns and rows of K.

    :param K: (..., n, n). Kernels L with a positive semidefinite symmetric part are those where that of
        :math:`K - K^\top K` is, and I - K has an inverse; a symmetric K has its eigenvalues in [0, 1).
    :param tolerance: how large an error of K may be, in the spectral norm. Default 1e-8 for arrays of 64 bits, 1e-5
        for others.
    :return: X (..., n, d) and W (..., d, d), for ``NDPP.from_factors``. O(n³). For a traced K, X is the identity.
    :raises ValueError: for more than 4,096 items, what is not square or not finite, for a K with the eigenvalue 1 to
        rounding (then some items are certain, and there is no L), and one that is no marginal kernel.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> ndpp = NDPP.from_factors(*from_marginal(jnp.array([[0.5, 0.2], [0.2, 0.4]])))
    >>> [f"{p:.2f}" for p in ndpp.inclusion_probs()]
    ['0.50', '0.40']
    >>> f"{jnp.exp(ndpp.marginal_log_prob(jnp.array([0, 1]))):.2f}"
    '0.16'
    """
    if not not_jax_tracer(K):
        K = _square("K", K)
        M = jnp.eye(K.shape[-1], dtype=K.dtype) - K
        return _whole(jnp.swapaxes(jnp.linalg.solve(jnp.swapaxes(M, -2, -1), jnp.swapaxes(K, -2, -1)), -2, -1))
    known, limit, dtype = _known("K", K, tolerance)
    n, transpose = known.shape[-1], (-2, -1)
    smallest = np.linalg.svd(np.eye(n) - known, compute_uv=False)[..., -1].min()
    if smallest <= 4 * np.sqrt(n) * np.finfo(dtype).eps:
        raise ValueError(
            f"K must have no eigenvalue 1: then some items are certain and there is no kernel L, got I - K with the "
            f"singular value {smallest:.3g}"
        )
    basis, cut = _basis(known, limit)
    inner = np.swapaxes(basis, *transpose) @ known @ basis
    excess = (inner + np.swapaxes(inner, *transpose)) / 2 - np.swapaxes(inner, *transpose) @ inner
    values, vectors = np.linalg.eigh(excess)
    if (values[..., :1] < -cut).any():
        raise ValueError(
            "K must be a marginal kernel: the symmetric part of K - KᵀK positive semidefinite, got one with the "
            f"eigenvalue {values.min():.3g} (tolerance={limit:g})"
        )
    # L + Lᵀ is the symmetric part of 2 (K - KᵀK) between two inverses: without its rounding it stays semidefinite.
    inverse = np.linalg.inv(np.eye(inner.shape[-1]) - inner)
    roots = np.sqrt(np.maximum(values, 0.0))[..., None, :] * (np.swapaxes(inverse, *transpose) @ vectors)
    W = inner @ inverse
    W = (W - np.swapaxes(W, *transpose)) / 2 + roots @ np.swapaxes(roots, *transpose)
    return Factors(jnp.asarray(basis.astype(dtype)), jnp.asarray(W.astype(dtype)))


def _square(name: str, matrix: ArrayLike) -> Array:
    (matrix,) = floating(matrix)
    rows, columns = matrix_shape(name, matrix.shape)
    if rows != columns or rows == 0:
        raise ValueError(f"{name} must be square, with a row for each item, got shape {matrix.shape}")
    check_is_small(name, rows)
    return matrix


def _whole(L: Array) -> Factors:
    """The factors I and L."""
    return Factors(jnp.eye(L.shape[-1], dtype=L.dtype), L)


def _known(name: str, matrix: ArrayLike, tolerance: float | None) -> tuple[np.ndarray, float, np.dtype]:
    """The matrix in double precision, its tolerance, and the type of what is made of it."""
    given = np.asarray(matrix)
    dtype = np.dtype(
        np.float32 if given.dtype.itemsize < 8 and jnp.issubdtype(given.dtype, jnp.floating) else np.float64
    )
    _square(name, matrix)
    if reason := why_invalid({name: given}):
        raise ValueError(reason)
    limit = (1e-8 if dtype == np.float64 else 1e-5) if tolerance is None else finite_float("tolerance", tolerance, 0, 1)
    return given.astype(np.float64), limit, dtype


def _basis(A: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis (..., n, d) of A's columns and rows, and what of their lengths counts as nothing (..., 1).

    With P the projection on it, A - P A P is at most twice that; so two errors and a third one are within the
    tolerance. Of a batch it has the largest rank.
    """
    vectors, values, _ = np.linalg.svd(np.concatenate([A, np.swapaxes(A, -2, -1)], axis=-1), full_matrices=False)
    cut = tolerance * values[..., :1] / 5  # the largest singular value here is at most √2 times that of A
    rank = max(1, int((values > cut).sum(axis=-1).max()))
    return vectors[..., :rank], cut
