r"""f(t) = det(I + t M) at many nodes of one circle, all of them near the real axis, by one real matrix.

With Q = (rM - I)(rM + I)⁻¹, whose powers are bounded, and T = tan(θ/2) below one,

.. math:: \det(I + r e^{iθ} M) = \det(I + r M) \left(\tfrac{1+e^{iθ}}2\right)^d
          \exp\Big(-\sum_{m\ge1} \tfrac1m (-iT)^m \operatorname{tr} Q^m\Big) .

Twenty-four traces take twelve real products, in place of a complex factorisation for every node. Where sizes vary much,
all nodes that count are so near (:mod:`numpyro_ndpp.circles`).
"""

import jax
import jax.numpy as jnp
from jax import Array

from numpyro_ndpp.linalg import log_det_sign_and_inverse, matmul

__all__ = ["LARGEST_TANGENT", "NUM_TRACES", "on_wide_circle"]

NUM_TRACES = 24
# T at the nodes is at most this.
LARGEST_TANGENT = 0.9


def on_wide_circle(M: Array, log_radius: Array, angles: Array) -> tuple[Array, Array]:
    """Angle and log-modulus of det(I + r exp(iθ) M) at angles θ (j,), M (d, d)."""
    d, dtype = len(M), M.dtype
    identity, power = jnp.eye(d, dtype=dtype), jnp.arange(1, NUM_TRACES + 1)
    tangent = jnp.minimum(jnp.tan(angles / 2), LARGEST_TANGENT)
    # (-iT)ᵐ/m, whose even powers are real and odd ones imaginary
    terms = tangent[:, None] ** power / power.astype(dtype)
    real = jnp.where(power % 2 == 0, jnp.where(power % 4 == 0, terms, -terms), 0.0)
    imag = jnp.where(power % 2 == 1, jnp.where(power % 4 == 1, -terms, terms), 0.0)
    (log_whole, *_), inverse = log_det_sign_and_inverse(identity + jnp.exp(log_radius) * M)
    # Kept for the derivative, the powers of every circle that there is room for would take more time to store and to
    # read than products of the few that there are.
    traces = jax.checkpoint(_traces)(identity - 2 * inverse)
    angle = d * angles / 2 - matmul(imag, traces)
    return angle, log_whole + d * jnp.log(jnp.cos(angles / 2)) - matmul(real, traces)


def _powers(Q: Array) -> Array:
    """I, Q, Q², ... up to half the number of traces (h+1, d, d)."""
    powers = [jnp.eye(len(Q), dtype=Q.dtype), Q]
    for _ in range(NUM_TRACES // 2 - 1):
        powers.append(matmul(powers[-1], Q))
    return jnp.stack(powers)


def _traces_of_products(powers: Array, A: Array) -> Array:
    """tr(P A) for every power P (p, d, d), as one product of a matrix and a vector."""
    return matmul(powers.reshape(len(powers), -1), A.T.reshape(-1))


@jax.custom_jvp
def _traces(Q: Array) -> Array:
    """tr Qᵐ for m = 1 .. 24."""
    powers = _powers(Q)
    return jnp.concatenate([_traces_of_products(powers[1:], factor) for factor in (powers[0], powers[-1])])


@_traces.defjvp
def _traces_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # m tr(Qᵐ⁻¹ dQ), by the same powers and one product more.
    powers, dQ = _powers(primals[0]), tangents[0]
    further = matmul(powers[-1], dQ)
    slopes = [_traces_of_products(powers[:-1], dQ), _traces_of_products(powers[:-1], further)]
    return _traces(primals[0]), jnp.arange(1, NUM_TRACES + 1).astype(dQ.dtype) * jnp.concatenate(slopes)
