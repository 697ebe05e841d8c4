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
from numpyro_ndpp.size_bounds import SizeBounds, bound_sizes

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


def fits_at_once(W: Array, most: int) -> bool:
    """Whether all matrices fit, and bounds can serve: they cannot for the largest size of all."""
    num_bytes = 2 * W.dtype.itemsize * num_places(most + 1, W.dtype) * W.size
    return most < len(W) and num_bytes <= platform().circle_chunk_bytes


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_esps_at_once(most: int, W: Array, C: Array) -> Array:
    """log e_0 .. log e_d (d+1,), each accurate up to ``most``, zero above. O(J d³)."""
    return _weights(most, *_find(most, W, C, False))[0]


@log_esps_at_once.defjvp
def _log_esps_at_once_jvp(
    most: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    placed, known = lax.stop_gradient(_find(most, *primals, True))

    def weights(W: Array, C: Array) -> Array:
        angle, log_abs = _determinants(balanced_product(W, C), placed.nodes.t, known)
        return _weights(most, placed, known._replace(angle=angle, log_abs=log_abs))[0]

    return jax.jvp(weights, primals, tangents)


def _weights(most: int, placed: _Placed, known: _Known) -> tuple[Array, Array]:
    """log e_k (d+1,), and the probabilities of the sizes on their circles."""
    log_e, circles, nodes = placed
    wanted = (jnp.arange(len(log_e)) <= most) & (log_e > -jnp.inf)
    value, probs = read_off(circles, nodes, known.angle, known.log_abs, wanted)
    value = jnp.where(probs > rounding_of(log_e[1:]), value, with_derivatives_of(log_e, value))
    return jnp.where(log_e == -jnp.inf, -jnp.inf, value.at[0].set(0.0)), probs  # e_0 is one


def _find(most: int, W: Array, C: Array, with_inverses: bool) -> tuple[_Placed, _Known]:
    """Nodes that serve all sizes, and what is known there. No gradient passes."""
    W, C = lax.stop_gradient((W, C))
    M = balanced_product(W, C)
    placed, known, is_enough, bounds = by_bounds(most, M, with_inverses)

    def at_more_nodes() -> tuple[_Placed, _Known]:
        found = placed, _at_all_nodes(M, placed.nodes, with_inverses)
        return where_needed(~_is_accurate(most, bounds, *found), by_eigenvalues, found)

    def by_eigenvalues() -> tuple[_Placed, _Known]:
        eigenvalues = eigenvalues_of(W, C)
        log_e, number = of_eigenvalues(eigenvalues), len(placed.nodes.angle)
        wanted = (jnp.arange(len(log_e)) <= most) & (log_e > -jnp.inf)
        circles = circles_with_room(log_e, wanted, number)
        nodes, _ = place_nodes(circles, log_e, eigenvalues, number)
        return _Placed(log_e, circles, nodes), _at_all_nodes(M, nodes, with_inverses)

    return where_needed(~is_enough, at_more_nodes, (placed, known))


def by_bounds(most: int, M: Array, with_inverses: bool) -> tuple[_Placed, _Known, Array, SizeBounds]:
    """Nodes placed by bounds, what is known at those that most kernels need, and whether that is enough."""
    bounds, number = bound_sizes(M, most), num_places(most + 1, M.dtype)
    circles = place_circles(bounds.log_e, jnp.arange(len(bounds.log_e)) <= most, bounds.log_radii)
    placed = _Placed(bounds.log_e, circles, all_nodes(circles, number))
    known, is_all = _at_few_nodes(M, placed, with_inverses)
    return placed, known, is_all & _is_accurate(most, bounds, placed, known), bounds


def _is_accurate(most: int, bounds: SizeBounds, placed: _Placed, known: _Known) -> Array:
    # A size whose weight is zero has no more than what rounding gives it.
    probs = _weights(most, placed, known)[1]
    return bounds.is_usable & (jnp.min(probs) > jnp.maximum(_LEAST_PROBABILITY, bounds.rounding))


def _factors(M: Array, nodes: Nodes, number: int) -> tuple[Array, Array, Array, Array]:
    """Angle and log-modulus of f at the first nodes, and the LU factors; of the identity where f is not needed."""
    t = jnp.where(nodes.counts, nodes.t, 0.0)[:number]
    lu, pivots, _ = lax.linalg.lu(jnp.eye(len(M), dtype=t.dtype) + t[:, None, None] * M)
    log_abs, sign, _ = log_abs_sign_and_rounding(lu, pivots)
    return jnp.angle(sign), log_abs, lu, pivots


def _at_all_nodes(M: Array, nodes: Nodes, with_inverses: bool) -> _Known:
    number = len(nodes.angle)
    angle, log_abs, lu, pivots = _factors(M, nodes, number)
    if not with_inverses:
        return _Known(angle, log_abs, jnp.arange(0), lu[:0])
    return _Known(angle, log_abs, jnp.arange(number), inverse_by_factors(lu, pivots))


def _at_few_nodes(M: Array, placed: _Placed, with_inverses: bool) -> tuple[_Known, Array]:
    """What is known at as many nodes as most kernels need, and whether there is nothing more."""
    (_, circles, nodes), eps = placed, jnp.finfo(M.dtype).eps
    number = len(nodes.angle)
    few = min(number, max(_FEWEST_NODES, number - MORE_NODES))
    angle, log_abs, lu, pivots = _factors(M, nodes, few)
    is_all = ~jnp.any(nodes.counts[few:])
    beyond = (0, number - few)
    angle, log_abs = jnp.pad(angle, beyond), jnp.pad(log_abs, beyond)
    if not with_inverses:
        return _Known(angle, log_abs, jnp.arange(0), lu[:0]), is_all
    # The derivatives of f are those of f times the inverse, which is about as large as one over the smallest pivot.
    smallest = jnp.min(jnp.abs(jnp.diagonal(lu, axis1=1, axis2=2)), axis=1)
    log_slope = log_abs[:few] - jnp.minimum(jnp.log(smallest), 0.0)
    counts = nodes.counts[:few] & (log_slope > circles.log_sum[nodes.first[:few]] + math.log(eps))
    some, number_of_some = few // 2, jnp.sum(counts)
    place = jnp.flatnonzero(counts, size=some, fill_value=0)
    inverses = inverse_by_factors(lu[place], pivots[place])
    inverses = jnp.where((jnp.arange(some) < number_of_some)[:, None, None], inverses, 0.0)
    inverses = jnp.pad(inverses, ((0, number - some), (0, 0), (0, 0)))
    return _Known(angle, log_abs, jnp.pad(place, (0, number - some)), inverses), is_all & (number_of_some <= some)


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
