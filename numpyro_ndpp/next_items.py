r"""The item that joins a subset next: det L_{S∪a} of every item a at once.

.. math:: P(a \mid S) = \det L_{S∪a} \Big/ \sum_b \det L_{S∪b}

Values come from singular values, which know when a minor is zero; derivatives from S bordered with phantom items, for
singular values have none where they meet.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.kernel import Kernel, rows_of
from numpyro_ndpp.linalg import adjugate, determinant, matmul, once_known

# So many numbers at a time where something is computed for every item beside every one of many subsets.
_ITEM_CHUNK = 2**22
# Features of the phantom items. Large ones keep a singular L_A farthest from trouble, small ones disturb a regular one
# least; a tenth of the items' own is the best of both in float32, and in float64 it hardly matters.
BORDER = 0.1
_GOLDEN_SECTION = 0.6180339887498949
# A determinant is taken for zero within so many units of rounding of the terms that were subtracted to give it.
_ROUNDING_UNITS = 32


class _OwnForms(NamedTuple):
    """x_aᵀ W x_a of every item (n,), the size of the terms that it is the sum of (n,), and the length of x_a (n,)."""

    values: Array
    magnitudes: Array
    lengths: Array

    @classmethod
    def of(cls, X: Array, W: Array) -> "_OwnForms":
        left = matmul(X, W)
        of_images, lengths = (jnp.linalg.norm(lax.stop_gradient(side), axis=1) for side in (left, X))
        return cls(jnp.sum(left * X, axis=1), of_images * lengths, lengths)


class _Minor(NamedTuple):
    """L_S of one subset with its rows and columns scaled, and what leads from every item to it."""

    scaled: Array
    """(m, m), ones on the diagonal where there is no item."""
    from_items: Array
    """(d, m): x_aᵀ times it are the entries of L_{aS}, scaled."""
    to_items: Array
    """(d, m), likewise L_{Sa}."""
    present: Array

    @classmethod
    def of(cls, X: Array, W: Array, subset: Array) -> "_Minor":
        present = subset < len(X)
        rows = rows_of(X, subset)
        images = matmul(rows, W)
        lengths = lax.stop_gradient(jnp.sqrt(jnp.linalg.norm(rows, axis=1) * jnp.linalg.norm(images, axis=1)))
        scale = jnp.where(present & (lengths > 0), 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
        scaled = matmul(images, rows.T) * scale[:, None] * scale + jnp.diag((~present).astype(X.dtype))
        return cls(scaled, matmul(W, rows.T) * scale, images.T * scale, present)


@jax.jit
def log_next_probs(kernel: Kernel, subsets: Array) -> Array:
    """log (det L_{S∪a} / Σ_b det L_{S∪b}) for each of the subsets S (s, m) and every item a, (s, n); -inf if zero."""
    X, W, _ = kernel
    own = _OwnForms.of(X, W)
    chunk = max(1, _ITEM_CHUNK // (len(X) * max(subsets.shape[1], 1)))
    return lax.map(partial(_log_next_probs, X, W, own), subsets, batch_size=min(chunk, len(subsets)))


@jax.custom_jvp
def _log_next_probs(X: Array, W: Array, own: _OwnForms, subset: Array) -> Array:
    log_minors = _log_next_minors(X, W, own, subset)
    is_none = jnp.all(log_minors == -jnp.inf)
    log_probs = log_minors - jnp.where(is_none, 0.0, jax.nn.logsumexp(log_minors))
    return jnp.where(jnp.isnan(jnp.sum(own.values)), jnp.nan, log_probs)  # a kernel with NaN gives NaN


@_log_next_probs.defjvp
def _log_next_probs_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    # Singular values have no derivative where they meet, so that comes from another formula for the same.
    log_probs = _log_next_probs(*primals)
    X, W, own, subset = primals
    # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
    primals = (X, once_known(jnp.sum(jnp.where(log_probs > -jnp.inf, log_probs, 0.0)), W), own)

    def slope(X: Array, W: Array, own: Array) -> Array:
        if len(subset) == 0:
            bordered = own
        else:
            minor = _Minor.of(X, W, subset)
            sides = matmul(X, minor.from_items), matmul(X, minor.to_items)
            bordered = _bordered_next_minors(own, minor.scaled, minor.present, *sides)
        usable = (log_probs > -jnp.inf) & (bordered > 0)
        # An item that cannot join has a weight of zero, which is its smallest: that has a second derivative.
        total = jnp.sum(jnp.where(_are_members(subset, len(X)), 0.0, bordered))
        total = jnp.where(jnp.any(usable), total, 1.0)
        return jnp.where(usable, jnp.log(jnp.where(usable, bordered, 1.0)) - jnp.log(total), 0.0)

    return log_probs, jax.jvp(slope, (*primals[:2], own.values), (*tangents[:2], tangents[2].values))[1]


def _are_members(subset: Array, n: int) -> Array:
    """Which of the n items (n,) are in the subset (m,)."""
    return jnp.zeros(n, bool).at[subset].set(True, mode="drop")


def _log_next_minors(X: Array, W: Array, own: _OwnForms, subset: Array) -> Array:
    r"""log det L_{S∪a} for every item a (n,), up to a constant; -inf for members and where it is zero to rounding.

    :param subset: items (m,), padded with n.

    .. math:: \det L_{S∪a} = \det L_S \, L_{aa} - L_{aS} \operatorname{adj}(L_S) L_{Sa}

    L_S may be singular although L_{S∪a} is not: its adjugate comes from the singular values, which are divided by all
    but the smallest. O(n m d + m³).
    """
    m, eps = len(subset), jnp.finfo(X.dtype).eps
    if m == 0:
        positive = own.values > _ROUNDING_UNITS * eps * own.magnitudes
        return jnp.where(positive, jnp.log(jnp.where(positive, own.values, 1.0)), -jnp.inf)
    minor = _Minor.of(X, W, subset)
    U, sigma, Vt = jnp.linalg.svd(minor.scaled)
    largest = jnp.maximum(sigma[0], 1.0)  # entries are sums of terms up to one, and may be nothing but their rounding
    smallest = jnp.where(sigma[-1] > m * eps * largest, sigma[-1], 0.0)
    ratios = jnp.where(jnp.arange(m) < m - 1, smallest / jnp.where(sigma > 0, sigma, 1.0), 1.0)
    sign = jnp.prod(jnp.linalg.slogdet(jnp.stack([U, Vt]))[0])
    # Along singular vectors, so that what is small is found small before it is multiplied.
    along = jnp.concatenate([matmul(minor.from_items, Vt.T), matmul(minor.to_items, U)], axis=1)
    left, right = jnp.split(matmul(X, along), 2, axis=1)
    values = sign * (smallest * own.values - jnp.sum(ratios * left * right, axis=1))
    length_left, length_right = (jnp.linalg.norm(side, axis=1) for side in (left, right))
    weight_left, weight_right = (jnp.sum(ratios * jnp.abs(side), axis=1) for side in (left, right))
    magnitude = smallest * own.magnitudes + weight_left * length_right + weight_right * length_left
    second = sigma[-2] if m > 1 else jnp.ones((), X.dtype)
    possible = second > m * eps * largest  # no item makes up for two that are missing
    units = _ROUNDING_UNITS * eps * largest / jnp.where(possible, second, 1.0)  # singular vectors are as good as that
    # Both sides may be nothing but the rounding of the products that they are.
    reach = jnp.linalg.norm(minor.from_items) * jnp.linalg.norm(minor.to_items) * own.lengths**2
    rounding = units * magnitude + units**2 * reach
    positive = possible & ~_are_members(subset, len(X)) & (values > rounding)
    return jnp.where(positive, jnp.log(jnp.where(positive, values, 1.0)), -jnp.inf)


def _bordered_next_minors(own: Array, minor: Array, present: Array, from_items: Array, to_items: Array) -> Array:
    r"""det L_{S∪a} for every item a (n,), up to a constant, by S bordered with two phantom items of features G (m, 2):

    .. math:: \det L_{S∪a}
              = \begin{vmatrix} L_S + GG^\top & L_{Sa} & G \\ L_{aS} & L_{aa} & 0 \\ G^\top & 0 & I \end{vmatrix}
              ∝ \det E \, (L_{aa} - L_{aS} N L_{Sa}) - L_{aS} N G \operatorname{adj}(E) G^\top N L_{Sa}

    with N the inverse of L_S + GGᵀ and E = I - GᵀNG.
    """
    m, dtype = len(minor), minor.dtype
    # Directions spread by the golden section: no two items share one.
    angle = math.pi * ((jnp.arange(m, dtype=dtype) * _GOLDEN_SECTION) % 1.0)
    G = BORDER * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) * present[:, None]
    N = jnp.linalg.inv(minor + matmul(G, G.T))
    E = jnp.eye(2, dtype=dtype) - matmul(G.T, matmul(N, G))
    det_E = determinant(E)
    between = det_E * N + matmul(matmul(N, G), matmul(adjugate(E), matmul(G.T, N)))
    return det_E * own - jnp.sum(matmul(from_items, between) * to_items, axis=1)
