"""All coefficients of a polynomial by its factors: the eigenvalues of a kernel, multiplied out without cancellation.

The eigenvalues of M = W C have non-negative real part, so the polynomial det(I + t M) is a product of factors with
non-negative coefficients: multiplying those out in log space never cancels.
"""

import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.linalg import eigenvalues
from numpyro_ndpp.normalizer import balanced_product, true_rank


def rounding_of(W: Array) -> float:
    """What rounding leaves of a probability that is zero, or of a relative singular value."""
    return 8 * len(W) * float(jnp.finfo(W.dtype).eps)


def multiply_out(constant: Array, linear: Array, quadratic: Array) -> Array:
    """log of the coefficients (d+1,) of the product of d factors a + b t + c t², none of them negative."""
    d = len(constant)

    def multiply(log_poly: Array, log_factor: tuple[Array, Array, Array]) -> tuple[Array, None]:
        once = jnp.pad(log_poly[:-1], (1, 0), constant_values=-jnp.inf) + log_factor[1]
        twice = jnp.pad(log_poly[:-2], (2, 0), constant_values=-jnp.inf) + log_factor[2]
        return jnp.logaddexp(log_poly + log_factor[0], jnp.logaddexp(once, twice)), None

    # One coefficient more than the degree, so that a shift by two is always within the array.
    one = jnp.full(d + 2, -jnp.inf, linear.dtype).at[0].set(0.0)
    log_poly, _ = lax.scan(multiply, one, (jnp.log(constant), jnp.log(linear), jnp.log(quadratic)))
    return log_poly[: d + 1]


def eigenvalues_of(W: Array, C: Array) -> Array:
    """Those of W C (d,), zero beyond its rank; purely imaginary ones have no real part."""
    M = balanced_product(W, C)
    d, eps = len(M), jnp.finfo(M.dtype).eps
    values = eigenvalues(M)
    order = jnp.argsort(-jnp.abs(values))
    values = in_pairs(jnp.where(jnp.arange(d) < true_rank(W, C), values[order], 0.0))
    real, imag = jnp.maximum(jnp.real(values), 0.0), jnp.imag(values)
    # A skew kernel's pairs are purely imaginary: their real part is rounding noise.
    real = jnp.where((imag != 0) & (real < 4 * eps * jnp.linalg.norm(M)), 0.0, real)
    return lax.complex(real, imag)


def in_pairs(numbers: Array) -> Array:
    """The numbers (d,), but the real part of one whose conjugate was replaced: it was a pair by rounding only."""
    side, distance = jnp.sign(jnp.imag(numbers)), jnp.abs(numbers - jnp.conj(numbers)[:, None])
    # Not every library gives the two of a pair the same digits.
    is_conjugate = (side == -side[:, None]) & (distance <= jnp.sqrt(jnp.finfo(side.dtype).eps) * jnp.abs(numbers))
    return jnp.where(jnp.any(is_conjugate, axis=0), numbers, jnp.real(numbers))


def of_eigenvalues(values: Array) -> Array:
    """log of all coefficients (d+1,) of the polynomial Π (1 + λ t)."""
    real, imag = jnp.real(values), jnp.imag(values)
    # One factor for a real eigenvalue, one for a pair of conjugates (at its upper half), none at the lower half.
    linear = jnp.where(imag == 0, real, jnp.where(imag > 0, 2 * real, 0.0))
    quadratic = jnp.where(imag > 0, real**2 + imag**2, 0.0)
    return multiply_out(jnp.ones_like(real), linear, quadratic)
