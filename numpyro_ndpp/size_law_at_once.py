r"""The weights of all sizes on an accelerator: the determinants at all nodes at once, placed by bounds.

An accelerator has a hundred factorisations in the time of two, is slow at eigenvalues, and waits for the host wherever
what is done next depends on a number. So the circles of :mod:`numpyro_ndpp.circles` are placed by the bounds of
:mod:`numpyro_ndpp.size_bounds`, in no loop, with room for the nodes that most kernels need. One condition asks whether
that was enough. Behind it are more nodes, and eigenvalues where bounds are too rough.

No derivative passes through the condition. It gives determinants and inverses at the nodes, all that is needed for

.. math:: d \log\det(I + t_j M) = t_j \operatorname{tr}((I + t_j M)^{-1} dM) .

About half of the nodes have inverses: at the others f is nothing but rounding beside f(r), and so are its derivatives.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.branches import where_needed
from numpyro_ndpp.circles import (
    MORE_NODES,
    Circles,
    Nodes,
    all_nodes,
    circles_with_room,
    num_places,
    place_circles,
    place_nodes,
    read_off,
)
from numpyro_ndpp.eigenvalue_products import eigenvalues_of, of_eigenvalues, rounding_of
from numpyro_ndpp.linalg import inverse_by_factors, log_abs_sign_and_rounding, matmul, with_derivatives_of
from numpyro_ndpp.normalizer import balanced_product
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.size_bounds import bound_sizes

__all__ = ["fits_at_once", "log_esps_at_once"]

# On a circle that was placed by bounds every size has to be as likely as this: then its weight is accurate.
_LEAST_PROBABILITY = 1e-3
# Most kernels need none of the places that are there for small ones; as many as a GPU has cores cost no more than one.
_FEWEST_NODES = 128


class _Placed(NamedTuple):
    """Where f is computed."""

    log_e: Array  # (d+1,) about; -inf where it is zero
    circles: Circles
    nodes: Nodes


class _Known(NamedTuple):
    """f at the nodes (j,), and inverses (i, d, d) of I + t M; beyond those that are there both are zero."""

    angle: Array
    log_abs: Array
    of_node: Array  # (i,)
    inverses: Array


class _Factors(NamedTuple):
    """f at some nodes (j,), its relative rounding error, and the LU factors (j, d, d) of I + t M."""

    angle: Array
    log_abs: Array
    rounding: Array
    lu: Array
    pivots: Array


def fits_at_once(W: Array, most: int) -> bool:
    """Whether all matrices fit, and bounds can serve: they cannot for the largest size of all."""
    num_bytes = 2 * W.dtype.itemsize * num_places(most + 1, W.dtype) * W.size
    return most < len(W) and num_bytes <= platform().circle_chunk_bytes


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def log_esps_at_once(most: int, num_symmetric: int, W: Array, C: Array) -> Array:
    """log e_0 .. log e_d (d+1,), each accurate up to ``most``, zero above. O(J d³)."""
    placed, known = _find(most, num_symmetric, W, C, False)
    return _weights(most, placed, known.angle, known.log_abs)[0]


@log_esps_at_once.defjvp
def _log_esps_at_once_jvp(
    most: int, num_symmetric: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    placed, known = lax.stop_gradient(_find(most, num_symmetric, *primals, True))

    def weights(W: Array, C: Array) -> Array:
        return _weights(most, placed, *_determinants(balanced_product(W, C), placed.nodes.t, known))[0]

    return jax.jvp(weights, primals, tangents)


def _weights(most: int, placed: _Placed, angle: Array, log_abs: Array) -> tuple[Array, Array]:
    """log e_k (d+1,), and the probabilities of the sizes on their circles, by f at the nodes (j,)."""
    log_e, circles, nodes = placed
    wanted = (jnp.arange(len(log_e)) <= most) & (log_e > -jnp.inf)
    value, probs = read_off(circles, nodes, angle, log_abs, wanted)
    value = jnp.where(probs > rounding_of(log_e[1:]), value, with_derivatives_of(log_e, value))
    return jnp.where(log_e == -jnp.inf, -jnp.inf, value.at[0].set(0.0)), probs  # e_0 is one


def _find(most: int, num_symmetric: int, W: Array, C: Array, with_inverses: bool) -> tuple[_Placed, _Known]:
    """Nodes that serve all sizes, and what is known there. No gradient passes."""
    W, C = lax.stop_gradient((W, C))
    M = balanced_product(W, C)
    placed, few, is_usable, is_enough = by_bounds(most, num_symmetric, W, C)
    number = len(placed.nodes.angle)
    counts = _have_slopes(placed, few)
    room = len(counts) // 2  # for the inverses, of which about half of the nodes need one
    if with_inverses:
        is_enough &= jnp.sum(counts) <= room

    def at_few_nodes() -> tuple[_Placed, _Known]:
        beyond = (0, number - len(few.angle))
        values = jnp.pad(few.angle, beyond), jnp.pad(few.log_abs, beyond)
        if not with_inverses:
            return placed, _Known(*values, jnp.arange(0), few.lu[:0])
        place = jnp.flatnonzero(counts, size=room, fill_value=0)
        inverses = inverse_by_factors(few.lu[place], few.pivots[place])
        inverses = jnp.where((jnp.arange(room) < jnp.sum(counts))[:, None, None], inverses, 0.0)
        beyond = (0, number - room)
        return placed, _Known(*values, jnp.pad(place, beyond), jnp.pad(inverses, (beyond, (0, 0), (0, 0))))

    def at_more_nodes() -> tuple[_Placed, _Known]:
        factors = _factors(M, placed.nodes, number)
        is_accurate = is_usable & _is_accurate(most, placed, factors)
        return where_needed(~is_accurate, by_eigenvalues, (placed, _at_all_nodes(factors, with_inverses)))

    def by_eigenvalues() -> tuple[_Placed, _Known]:
        eigenvalues = eigenvalues_of(W, C)
        log_e = of_eigenvalues(eigenvalues)
        wanted = (jnp.arange(len(log_e)) <= most) & (log_e > -jnp.inf)
        circles = circles_with_room(log_e, wanted, number)
        nodes, _ = place_nodes(circles, log_e, eigenvalues, number)
        return _Placed(log_e, circles, nodes), _at_all_nodes(_factors(M, nodes, number), with_inverses)

    return where_needed(~is_enough, at_more_nodes, at_few_nodes)


def by_bounds(most: int, num_symmetric: int, W: Array, C: Array) -> tuple[_Placed, _Factors, Array, Array]:
    """Nodes placed by bounds, f at those that most kernels need, whether bounds can serve, and whether that is enough.

    No gradient passes.
    """
    bounds, number = bound_sizes(W, C, most, num_symmetric), num_places(most + 1, W.dtype)
    circles = place_circles(bounds.log_e, jnp.arange(len(bounds.log_e)) <= most, bounds.log_radii)
    placed = _Placed(bounds.log_e, circles, all_nodes(circles, number))
    few = min(number, max(_FEWEST_NODES, number - MORE_NODES))
    factors = _factors(balanced_product(W, C), placed.nodes, few)
    is_all = ~jnp.any(placed.nodes.counts[few:])
    return placed, factors, bounds.is_usable, bounds.is_usable & is_all & _is_accurate(most, placed, factors)


def _is_accurate(most: int, placed: _Placed, factors: _Factors) -> Array:
    """Whether every size is likely on its circle, and more than rounding: one whose weight is zero is no more."""
    (_, circles, nodes), number = placed, len(factors.angle)
    beyond = (0, len(nodes.angle) - number)
    probs = _weights(most, placed, jnp.pad(factors.angle, beyond), jnp.pad(factors.log_abs, beyond))[1]
    first = nodes.first[:number]
    errors = jnp.exp(factors.log_abs - circles.log_sum[first]) / jnp.maximum(circles.num_upper[first], 1)
    errors = jnp.where(nodes.counts[:number], factors.rounding * errors, 0.0)
    error = jnp.zeros_like(probs).at[first].add(errors)[circles.first]
    return jnp.all(probs > jnp.maximum(_LEAST_PROBABILITY, error))  # those that are not wanted have one


def _factors(M: Array, nodes: Nodes, number: int) -> _Factors:
    """At the first nodes; of the identity where f is not needed."""
    t = jnp.where(nodes.counts, nodes.t, 0.0)[:number]
    lu, pivots, _ = lax.linalg.lu(jnp.eye(len(M), dtype=t.dtype) + t[:, None, None] * M)
    log_abs, sign, rounding = log_abs_sign_and_rounding(lu, pivots)
    return _Factors(jnp.angle(sign), log_abs, rounding, lu, pivots)


def _have_slopes(placed: _Placed, factors: _Factors) -> Array:
    """Which of the nodes (j,) have derivatives that are more than rounding beside f(r).

    They are those of f times the inverse, which is about as large as one over the smallest pivot.
    """
    (_, circles, nodes), number = placed, len(factors.angle)
    smallest = jnp.min(jnp.abs(jnp.diagonal(factors.lu, axis1=1, axis2=2)), axis=1)
    log_slope = factors.log_abs - jnp.minimum(jnp.log(smallest), 0.0)
    limit = circles.log_sum[nodes.first[:number]] + math.log(jnp.finfo(smallest.dtype).eps)
    return nodes.counts[:number] & (log_slope > limit)


def _at_all_nodes(factors: _Factors, with_inverses: bool) -> _Known:
    number = len(factors.angle) if with_inverses else 0
    inverses = inverse_by_factors(factors.lu, factors.pivots) if with_inverses else factors.lu[:0]
    return _Known(factors.angle, factors.log_abs, jnp.arange(number), inverses)


@jax.custom_jvp
def _determinants(M: Array, t: Array, known: _Known) -> tuple[Array, Array]:
    """Angle and log-modulus of det(I + t M) at t (j,), which are known, with the derivatives of M (d, d)."""
    del M, t
    return known.angle, known.log_abs


@_determinants.defjvp
def _determinants_jvp(
    primals: tuple[Array, Array, _Known], tangents: tuple[Array, Array, _Known]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (M, t, known), dM = primals, tangents[0]
    inverses = _inverses(M, t[known.of_node], known.inverses)
    slopes = t[known.of_node] * jnp.sum(jnp.swapaxes(inverses, 1, 2) * dM, axis=(1, 2))
    slopes = jnp.zeros_like(t).at[known.of_node].add(slopes)
    return _determinants(*primals), (jnp.imag(slopes), jnp.real(slopes))


@jax.custom_jvp
def _inverses(M: Array, t: Array, inverses: Array) -> Array:
    """(I + t M)⁻¹ at t (i,), which are known, with the derivatives of M (d, d)."""
    del M, t
    return inverses


@_inverses.defjvp
def _inverses_jvp(primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    inverses = _inverses(*primals)
    dM, t = tangents[0].astype(inverses.dtype), primals[1]
    return inverses, -t[:, None, None] * matmul(matmul(inverses, dM), inverses)
