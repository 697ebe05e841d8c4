"""Scales of a kernel: the numbers r for which the sizes, of weights e_k rᵏ, have a mean that is wanted."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.normalizer import log_sum_esp
from numpyro_ndpp.size_law import log_esps


def log_scales_of_mean_size(log_e: Array, mean_sizes: Array) -> Array:
    """log r for each of the mean sizes (t,), such that sizes of weight e_k rᵏ have it. No gradient passes through.

    :param log_e: log e_0 .. log e_d (d+1,); -inf for the sizes to leave out. A mean size outside the range of the
        others gives a scale at which the law sits at the end of that range.
    """
    log_e, mean_sizes = lax.stop_gradient(log_e), lax.stop_gradient(mean_sizes)
    sizes = jnp.arange(len(log_e), dtype=log_e.dtype)
    finite = jnp.where(jnp.isfinite(log_e), log_e, 0.0)
    # Beyond this, neighbouring weights differ by more than any two coefficients do, and by 1/eps on top.
    bound = jnp.max(finite) - jnp.min(finite) - jnp.log(jnp.finfo(log_e.dtype).eps) + math.log(len(log_e))

    def mean_size(log_scale: Array) -> Array:
        return jnp.dot(jax.nn.softmax(log_e + sizes * log_scale), sizes)

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        below = jax.vmap(mean_size)(middle) < mean_sizes
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    steps = jnp.finfo(log_e.dtype).nmant + 12
    low, high = lax.fori_loop(0, steps, halve, (jnp.full_like(mean_sizes, -bound), jnp.full_like(mean_sizes, bound)))
    return 0.5 * (low + high)


def log_scale_of_each_size(log_e: Array) -> Array:
    """log r (d+1,) for every size k such that the sizes of weight e_k rᵏ have a mean of about k - 1/2, where one can.

    :param log_e: log e_0 .. log e_d (d+1,), of all sizes: a law restricted to one size has that mean at every scale.
    """
    sizes, known = jnp.arange(len(log_e)), log_e > -jnp.inf
    least, most = jnp.min(jnp.where(known, sizes, len(sizes))), jnp.max(jnp.where(known, sizes, 0))
    half_less = jnp.clip(sizes.astype(log_e.dtype) - 0.5, least + 0.1, jnp.maximum(most - 0.1, least + 0.1))
    return jnp.where(least < most, log_scales_of_mean_size(log_e, half_less), 0.0)


def restrict_sizes(log_e: Array, low: Array | int, high: Array | int) -> Array:
    """The coefficients (d+1,) with -inf for the sizes outside low .. high."""
    sizes = jnp.arange(len(log_e))
    return jnp.where((sizes >= low) & (sizes <= high), log_e, -jnp.inf)


@partial(jax.jit, static_argnames=("low", "high", "rank"))
def log_scale_of_mean_size(W: Array, C: Array, mean_size: Array, low: int, high: int, rank: int) -> Array:
    """log r such that the kernel scaled by r, restricted to the sizes low .. high, has the given mean size.

    Differentiable to any order in W, C and ``mean_size``, as the root of an equation.
    """

    def excess(log_scale: Array) -> Array:
        # The mean size is the derivative of the log-normaliser in log r.
        return jax.grad(lambda u: log_sum_esp(W, jnp.exp(u) * C, low, high, rank))(log_scale) - mean_size

    def solve(_: Any, start: Array) -> Array:
        log_e = restrict_sizes(log_esps(lax.stop_gradient(W), lax.stop_gradient(C)), low, high)
        return start + log_scales_of_mean_size(log_e, jnp.asarray(mean_size, log_e.dtype)[None])[0]

    return lax.custom_root(excess, jnp.zeros((), W.dtype), solve, lambda slope, y: y / slope(jnp.ones_like(y)))
