r"""What is asked about one target: its normaliser, the law of its size, the probabilities of items.

With w_s the weights of the sizes, all of them one unless the law of the size is free,

.. math:: Z = \sum_T w_{|J∪T|} \det L_{J∪T}, \qquad
          P(|T| = s) = \frac{w_{|J|+s}}{Z} \sum_{|T|=s} \det L_{J∪T}, \qquad
          P(a ∈ T) = x_a^\top \frac{∂ \log Z}{∂C} x_a .

A free law π of the size is that of the weights w_s = π_s / e_s.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ndpp.kernel import Kernel, marginal_matrix, quadratic_forms
from numpyro_ndpp.linalg import has_nan, once_known, with_derivatives_of
from numpyro_ndpp.normalizer import log_sum_esp, log_sum_esp_given
from numpyro_ndpp.size_law import log_esps
from numpyro_ndpp.size_law_given import log_esps_given
from numpyro_ndpp.size_scales import restrict_sizes
from numpyro_ndpp.target import Target


def log_normalizer(target: Target) -> Array:
    """log Σ w det L_S over the subsets of an allowed size that hold the pinned items; -inf where there is none.

    This is what decides whether a target is possible, for all that is asked of it and for all samplers.
    """
    return _log_normalizer(target.kernel.C, target)


def _log_normalizer(C: Array, target: Target) -> Array:
    return jnp.where(has_nan(target.kernel.W, C), jnp.nan, _log_sum_of_minors(C, target))


def _log_sum_of_minors(C: Array, target: Target) -> Array:
    W, pinned, rank, (low, high) = target.kernel.W, target.pinned, target.kernel.max_rank, target.sizes
    num_rows = len(pinned.rows)
    if target.log_size_weights is not None:
        return log_sum(log_weights_of_sizes(target, C))
    if num_rows == 0:
        return log_sum_esp(W, C, low, high, rank)
    if target.is_unlimited:
        return log_sum_esp(W, C, 0, rank, rank) + pinned.log_prob(marginal_matrix(W, C), C)
    fixed = target.is_fixed and target.num_certain == num_rows <= high
    return log_sum_esp_given(W, C, pinned, low, high, rank, fixed)


def log_sum(log_weights: Array) -> Array:
    """log Σ of weights (s,); -inf, with a gradient of zero, where all of them are zero."""
    is_none = jnp.all(log_weights == -jnp.inf)
    return jnp.where(is_none, -jnp.inf, jax.nn.logsumexp(jnp.where(is_none, 0.0, log_weights)))


def log_weights_of_sizes(target: Target, C: Array, *, every_size: bool = False) -> Array:
    """The logarithm of the weight of every number 0 .. d of other items than the pinned ones (d+1,).

    :param C: the kernel's Gram matrix, which samplers have already.
    :param every_size: whether all of them are to be accurate, also those that are unlikely beside the others; they are
        where sizes have weights.

    -inf where the whole subset is smaller or larger than allowed.
    """
    W, weights, (low, high) = target.kernel.W, target.log_size_weights, target.sizes
    if len(target.items):
        if weights is not None:  # whose circles come first: two batches of factorisations at once may stand still
            C = once_known(jnp.max(weights), C)
        log_e = log_esps_given(W, C, target.pinned, low, high, every_size or weights is not None)
    elif weights is None:
        log_e = restrict_sizes(log_esps(W, C), low, high)
    else:
        log_e = log_esps(W, C, high, target.kernel.num_symmetric)
        log_e = restrict_sizes(jnp.pad(log_e, (0, len(W) - high), constant_values=-jnp.inf), low, high)
    if weights is None:
        return log_e
    whole = jnp.arange(len(log_e)) + target.pinned.number
    weights = weights.at[whole].get(mode="fill", fill_value=-jnp.inf)
    return jnp.where(log_e == -jnp.inf, -jnp.inf, log_e + weights)


def size_weights_of(kernel: Kernel, size_logits: Array) -> Array:
    """log w_s (m,) for which the sizes 0 .. m-1 have probabilities ∝ exp(size_logits) (m,); -inf where e_s is zero."""
    log_e = log_esps(kernel.W, kernel.C, len(size_logits) - 1, kernel.num_symmetric)
    is_none = (log_e == -jnp.inf) | (size_logits == -jnp.inf)
    return jnp.where(is_none, -jnp.inf, jnp.where(is_none, 0.0, size_logits) - jnp.where(is_none, 0.0, log_e))


def size_log_probs(target: Target) -> Array:
    """log P(T has s items) for s = 0 .. d (d+1,)."""
    log_z = log_normalizer(target)
    # One after the other: on a CPU two batches of factorisations at once may wait for each other forever.
    log_weights = log_weights_of_sizes(target, once_known(log_z, target.kernel.C))
    # What is impossible is for the normaliser to say. A size of probability zero is missing in the derivatives of this
    # sum, and is not in the normaliser's.
    total = with_derivatives_of(jax.nn.logsumexp(log_weights), log_z)
    log_probs = jnp.where((log_weights > -jnp.inf) & (log_z > -jnp.inf), log_weights - total, -jnp.inf)
    return jnp.where(jnp.isnan(log_z), jnp.nan, log_probs)


def inclusion_probs(target: Target) -> Array:
    r"""P(a ∈ T) for every item a (n,): :math:`x_a^\top G x_a` with G = ∂ log Z / ∂C, Z the normaliser. O(n d²)."""
    log_z, slope = jax.value_and_grad(_log_normalizer)(target.kernel.C, target)
    probs = quadratic_forms(target.kernel.X, slope)
    probs = with_derivatives_of(jnp.clip(probs, 0.0, 1.0), probs)
    # Beside items that are never there together nothing is.
    probs = jnp.where(log_z == -jnp.inf, 0.0, jnp.where(jnp.isnan(log_z), jnp.nan, probs))
    return probs.at[target.items].set(0.0, mode="drop")


@jax.jit
def log_sums_given(target: Target, subsets: Array) -> Array:
    """The log-normaliser with each of the subsets (s, m) pinned."""
    return lax.map(lambda items: log_normalizer(target.with_items(items, target.num_certain)), subsets)
