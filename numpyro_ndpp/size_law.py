"""The law of the size: the weights e_0 .. e_d of all sizes at once.

Each size would want a radius of its own on the circle of :mod:`numpyro_ndpp.normalizer`. The products of eigenvalues in
:mod:`numpyro_ndpp.eigenvalue_products` give all of them. Eigenvalues are no road to derivatives (they fail where
eigenvalues repeat), so those come from a few circles (:mod:`numpyro_ndpp.circles`). So do the values where each size is
to have all its digits, however unlikely it is beside the others.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.circles import log_coefficients
from numpyro_ndpp.eigenvalue_products import eigenvalues_of, of_eigenvalues, rounding_of
from numpyro_ndpp.linalg import has_nan, once_known, with_derivatives_of
from numpyro_ndpp.normalizer import Pencil, pencil
from numpyro_ndpp.platforms import platform
from numpyro_ndpp.size_law_at_once import fits_at_once, log_esps_at_once


@partial(jax.jit, static_argnames=("most", "num_symmetric"))
def log_esps(W: Array, C: Array, most: int | None = None, num_symmetric: int = 0) -> Array:
    """log e_0 .. log e_d (d+1,): all coefficients, -inf where they are zero to rounding.

    :param most: no larger size is wanted: then there are most + 1, and each is accurate, however unlikely it is beside
        the others.
    :param num_symmetric: how many of the first rows of W are those of the identity: an accelerator makes use of it.

    Without ``most`` O(d³) for the value, O(J d³) for all derivatives, J ≤ d + 49 nodes on a few circles. The
    probabilities of all sizes are accurate to rounding; a coefficient that needs eigenvalues near eps times the largest
    is only as good as these. With ``most`` O(J d³) for both.
    """
    if most is None:
        log_e = _log_esps(W, C)
    elif platform().slow_eigenvalues and fits_at_once(W, most):
        log_e = log_esps_at_once(most, num_symmetric, W, C)[: most + 1]
    else:
        log_e = _every_log_esp(most, W, C)[: most + 1]
    return jnp.where(has_nan(W, C), jnp.nan, log_e)


@jax.custom_jvp
def _log_esps(W: Array, C: Array) -> Array:
    return of_eigenvalues(eigenvalues_of(W, C))


def _every_log_esp(most: int, W: Array, C: Array) -> Array:
    """log e_0 .. log e_d (d+1,), by circles whose radii eigenvalues give; zero above ``most``."""
    # No derivative passes through eigenvalues.
    eigenvalues = eigenvalues_of(*lax.stop_gradient((W, C)))
    about = of_eigenvalues(eigenvalues)
    value, probs = log_esps_by_circles(pencil(W, C), about, most, eigenvalues)
    value = jnp.where(probs > rounding_of(W), value, with_derivatives_of(about, value))
    return jnp.where(about == -jnp.inf, -jnp.inf, value.at[0].set(0.0))  # e_0 is one


@_log_esps.defjvp
def _log_esps_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    found, slopes = jax.jvp(partial(_every_log_esp, len(primals[0])), primals, tangents)
    return once_known(found, _log_esps(*primals)), slopes


def log_esps_by_circles(poly: Pencil, log_e: Array, most: int, eigenvalues: Array | None = None) -> tuple[Array, Array]:
    """The coefficients of sizes up to ``most``, whose logarithms are known about, in a way that has derivatives.

    And their probabilities on their circles.
    """
    factor, wanted = lax.stop_gradient(poly.log_factor), jnp.arange(len(log_e)) <= most
    value, probs = log_coefficients(poly, log_e - factor, wanted, most + 1, eigenvalues)
    return value + poly.log_factor, probs
