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

from numpyro_ndpp.linalg import log_det_and_sign

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
    rounding: Array  # the largest relative rounding error of the determinants that the wanted sizes need
    is_usable: Array  # whether the wanted sizes have their smallest bound within the grid


def bound_sizes(M: Array, most: int) -> SizeBounds:
    """Bounds of log e_0 .. log e_d of M (d, d), of which the sizes up to ``most`` are wanted. No gradient passes.

    Kernels that need a larger radius than those of the grid are not usable.
    """
    M = lax.stop_gradient(M)
    d, eps = len(M), float(jnp.finfo(M.dtype).eps)
    norm = jnp.linalg.norm(M)
    log_norm = jnp.log(jnp.where(norm > 0, norm, 1.0))
    low, high = _SMALLEST_MEAN / math.sqrt(d), min(_LARGEST_NOISE / (math.sqrt(d) * eps), _LARGEST_RADIUS)
    log_radii = jnp.linspace(math.log(low), math.log(high), _NUM_RADII, dtype=M.dtype) - log_norm
    log_f, sign, rounding = log_det_and_sign(jnp.eye(d, dtype=M.dtype) + jnp.exp(log_radii)[:, None, None] * M)
    heights = log_f - jnp.arange(d + 1)[:, None] * log_radii
    last = jnp.argmin(heights[most])
    is_usable = jnp.all((sign > 0) & jnp.isfinite(log_f)) & (last < _NUM_RADII - 1)
    needed = jnp.max(jnp.where(jnp.arange(_NUM_RADII) <= last, rounding, 0.0))
    return SizeBounds(jnp.min(heights, axis=1).at[0].set(0.0), log_radii, needed, is_usable)


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
