r"""Bounds of the weights of all sizes by determinants on a grid of radii, for devices where eigenvalues are slow.

No coefficient of det(I + r M) = Σ e_k rᵏ is negative, so that

.. math:: \log e_k \le \min_r \; \log\det(I + r M) - k \log r .

The bound is some two nats too large, by nearly as much for neighbouring sizes: near enough to place the circles of
:mod:`numpyro_ndpp.circles`, which then say what e_k is. An accelerator has 128 determinants at once in the time of two,
and a general matrix's eigenvalues in the time of fifty.

Reference: Chernoff (1952), *A measure of asymptotic efficiency for tests of a hypothesis based on the sum of
observations*.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.linalg import column_lengths, log_det_and_sign, matmul
from numpyro_ndpp.normalizer import balanced_product

__all__ = ["SizeBounds", "bound_sizes", "log_concave"]

_NUM_RADII = 128
# The mean size at the smallest radius is at most this.
_SMALLEST_MEAN = 0.2
# At the largest one, over the norm, rounding noise weighs a hundredth of an eigenvalue, if the grid goes so far.
_LARGEST_NOISE = 0.01
_LARGEST_RADIUS = 1e5


class SizeBounds(NamedTuple):
    """Bounds, and the radii that gave them."""

    log_e: Array  # (d+1,)
    log_radii: Array  # (r,) ascending
    is_usable: Array  # whether the wanted sizes have their smallest bound within the grid


def bound_sizes(W: Array, C: Array, most: int, num_symmetric: int) -> SizeBounds:
    """Bounds of log e_0 .. log e_d of W C (d, d), of which the sizes up to ``most`` are wanted. No gradient passes.

    Kernels that need a larger radius than those of the grid are not usable.

    :param num_symmetric: how many of the first rows of W are those of the identity.
    """
    W, C = lax.stop_gradient((W, C))
    d, eps = len(W), float(jnp.finfo(W.dtype).eps)
    norm = jnp.linalg.norm(balanced_product(W, C))
    log_norm = jnp.log(jnp.where(norm > 0, norm, 1.0))
    low, high = _SMALLEST_MEAN / math.sqrt(d), min(_LARGEST_NOISE / (math.sqrt(d) * eps), _LARGEST_RADIUS)
    log_radii = jnp.linspace(math.log(low), math.log(high), _NUM_RADII, dtype=W.dtype) - log_norm
    log_f, is_positive = _log_dets(W, C, jnp.exp(log_radii)[:, None, None], num_symmetric)
    heights = log_f - jnp.arange(d + 1)[:, None] * log_radii
    is_usable = jnp.all(is_positive & jnp.isfinite(log_f)) & (jnp.argmin(heights[most]) < _NUM_RADII - 1)
    return SizeBounds(jnp.min(heights, axis=1).at[0].set(0.0), log_radii, is_usable)


def _log_dets(W: Array, C: Array, radii: Array, num_symmetric: int) -> tuple[Array, Array]:
    r"""log det(I + r W C) at radii r (r, 1, 1), and whether the determinant is positive.

    With W = Diag(I, K) the block I + r C₁₁ is symmetric. Cholesky's factor L of it leaves half of the columns for LU,
    which an accelerator does one after the other:

    .. math:: \det(I + r W C) = \det(L)^2 \det\big(I + r K (C_{22} - r Y^\top Y)\big), \qquad L Y = C_{12} .
    """
    s = num_symmetric
    length = jnp.where(jnp.arange(len(C)) < s, 1.0, column_lengths(C))
    C, K = C / (length[:, None] * length), (W * length[:, None] * length)[s:, s:]
    log_dets, is_positive, rest = jnp.zeros(len(radii), W.dtype), jnp.ones(len(radii), bool), C[s:, s:]
    if s:
        lower = lax.linalg.cholesky(jnp.eye(s, dtype=W.dtype) + radii * C[:s, :s], symmetrize_input=False)
        log_dets = 2 * jnp.sum(jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)), axis=1)
        border = jnp.broadcast_to(C[:s, s:], (len(radii), *C[:s, s:].shape))
        Y = lax.linalg.triangular_solve(lower, border, left_side=True, lower=True)
        rest = rest - radii * matmul(jnp.swapaxes(Y, 1, 2), Y)
    if len(K):
        log_abs, sign, _ = log_det_and_sign(jnp.eye(len(K), dtype=W.dtype) + radii * matmul(K, rest))
        log_dets, is_positive = log_dets + log_abs, sign > 0
    return log_dets, is_positive


def log_concave(log_e: Array) -> Array:
    """A log-concave sequence above log_e (s,), equal to it where it is log-concave.

    It is the least of some lines that lie above all of log_e. Their slopes are those between sizes that are one or two
    apart: two, since every other size of a kernel that is nearly skew is rare.
    """
    sizes, known = jnp.arange(len(log_e)), log_e > -jnp.inf
    finite = jnp.where(known, log_e, 0.0)

    def slopes(step: int) -> Array:
        return jnp.where(known[step:] & known[:-step], (finite[step:] - finite[:-step]) / step, 0.0)

    slope = jnp.concatenate([jnp.zeros(1, log_e.dtype), slopes(1), slopes(2)])[:, None]
    lines = jnp.max(log_e - slope * sizes, axis=1, keepdims=True) + slope * sizes
    return jnp.where(sizes <= jnp.max(jnp.where(known, sizes, 0)), jnp.min(lines, axis=0), -jnp.inf)
