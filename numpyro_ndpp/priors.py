r"""Priors of kernels whose MAP estimate is the papers' regularised likelihood, as pieces of NumPyro models.

Let μ_i be the number of training baskets that hold item i (1 if none does), and N the number of baskets. The papers
maximise

.. math:: \frac1N \sum_b \log P(S_b) - α \sum_i \frac{‖v_i‖²}{μ_i} - β \sum_i \frac{‖b_i‖²}{μ_i},

which is, times N and up to a constant, the log density of the model

.. math:: v_i ∼ \mathcal N\big(0, \tfrac{μ_i}{2αN} I\big), \quad b_i ∼ \mathcal N\big(0, \tfrac{μ_i}{2βN} I\big),
          \quad S_b ∼ \mathrm{NDPP}(V, B, D) .

Such a prior is centred on zero, where an item that is never bought belongs: features of rare items shrink away, and a
new basket with one of them has probability zero. A prior that is centred on a random direction for each item
(``anchor``),

.. math:: v_i ∼ \mathcal N\big(\sqrt{μ_i/N}\, a_i, \tfrac{μ_i}{2αN} I\big),

can be strong, for what it shrinks towards is sensible; what occurs often enough moves away. With ‖a_i‖ = 1 and many
columns, items are then bought about independently and as often as in the data. This is the default of
:func:`~numpyro_ndpp.learning.fit`.

Where more is known of items than their baskets say, rows are centred on functions of it:
:mod:`numpyro_ndpp.features`.

The orthogonal kernel (ONDPP) has BᵀB = I, VᵀB = 0 and D - Dᵀ made of the pairs ±σ_j; a further term
γ Σ log(1 + 2σ_j/(σ_j² + 1)) is γ times the log of the expected number of proposals of the rejection sampler.

References: Gartrell, Han, Dohmatob, Gillenwater and Brunel (2021), *Scalable learning and MAP inference for
nonsymmetric determinantal point processes*, ICLR; Han, Gartrell, Gillenwater, Dohmatob and Karbasi (2022), *Scalable
sampling for nonsymmetric determinantal point processes*, ICLR.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from jax.typing import ArrayLike
from numpyro.distributions import ImproperUniform, Normal, TransformedDistribution, constraints
from numpyro.distributions.transforms import AffineTransform
from numpyro.util import not_jax_tracer

from numpyro_ndpp.basket_model import basket_model, to_event_width
from numpyro_ndpp.baskets import Subsets
from numpyro_ndpp.checks import finite_float
from numpyro_ndpp.distributions import NDPP
from numpyro_ndpp.features import Features, centre_with_features
from numpyro_ndpp.linalg import matmul
from numpyro_ndpp.sized import SizedNDPP
from numpyro_ndpp.subsets import as_padded

__all__ = [
    "basket_model",
    "item_counts",
    "ndpp_prior",
    "ondpp_prior",
    "sized_prior",
    "symmetric_prior",
    "to_event_width",
]


def item_counts(baskets: Subsets, num_items: int) -> np.ndarray:
    """How many of the baskets hold each item, (n,). An item that none holds counts 1, as published. O(entries).

    :param baskets: padded baskets (N, m), or any other form of :mod:`numpyro_ndpp.baskets`.
    :raises ValueError: for items out of range, or repeated within a basket.
    :raises TypeError: for items that are not integers.

    >>> item_counts(np.array([[0, 2], [2, 3]]), num_items=3)
    array([1, 1, 2])
    """
    return counts_of_padded(as_padded("baskets", baskets, num_items), num_items)


def counts_of_padded(padded: np.ndarray, num_items: int) -> np.ndarray:
    """:func:`item_counts` of padded baskets that are known to be proper."""
    return np.maximum(np.bincount(padded.ravel(), minlength=num_items + 1)[:num_items], 1)


def _item_scale(counts: ArrayLike, num_baskets: int) -> Array:
    """√(μ_i/N) (n, 1): the length that v_i has where items are bought independently, and rarely.

    It is in float32, or in the floating type of the counts; all that follows has its type.
    """
    if not_jax_tracer(counts) and not np.all(np.asarray(counts) > 0):
        raise ValueError("counts must be positive: item_counts has one for an item that no basket holds")
    counts = jnp.asarray(counts)
    if counts.ndim != 1 or np.ndim(num_baskets):
        raise ValueError(
            f"counts must be one number for each item, and num_baskets one for all, got shapes {counts.shape} and "
            f"{np.shape(num_baskets)}"
        )
    dtype = counts.dtype if jnp.issubdtype(counts.dtype, jnp.floating) else jnp.float32
    return jnp.sqrt(counts.astype(dtype) / num_baskets)[:, None]


def _rows(
    name: str,
    counts: ArrayLike,
    num_baskets: int,
    columns: int,
    strength: ArrayLike,
    anchor: ArrayLike | None = None,
    features: Features | None = None,
    angles: ArrayLike | None = None,
    feature_strength: ArrayLike = 1.0,
) -> Array:
    """Rows N(√(μ_i/N) centre_i, μ_i/(2 strength N)): a scale times rows of one scale. The centre is that of the anchor.

    With features it is their function, and what SVI moves are the items' own parts, so that items move together.
    """
    scale = _item_scale(counts, num_baskets)
    centre = _centre(anchor, (len(scale), columns), scale.dtype)
    _check_strengths(strength)
    if np.ndim(strength):  # one for each kernel of a plate
        strength = jnp.asarray(strength)[..., None, None]
    plain, transform = Normal(centre, (2 * strength) ** -0.5), AffineTransform(0.0, scale)
    if features is not None:
        centre = centre_with_features(name, centre, features, angles, feature_strength)
        plain, transform = (
            Normal(jnp.zeros_like(centre), (2 * strength) ** -0.5),
            AffineTransform(scale * centre, scale),
        )
    return numpyro.sample(name, TransformedDistribution(plain, transform).to_event(2))


def _centre(anchor: ArrayLike | None, shape: tuple[int, int], dtype: Any) -> Array:
    if anchor is not None and jnp.shape(anchor) != shape:
        raise ValueError(f"anchor must have shape {shape}, got {jnp.shape(anchor)}")
    return jnp.zeros(shape, dtype) if anchor is None else jnp.asarray(anchor, dtype)


def _check_strengths(*strengths: ArrayLike) -> None:
    if all(map(not_jax_tracer, strengths)) and not all(np.all(np.asarray(strength) > 0) for strength in strengths):
        raise ValueError(f"alpha and beta must be positive, got {' and '.join(map(repr, strengths))}")


def _flat(name: str, *shape: int, support: Any = constraints.real) -> Array:
    return numpyro.sample(name, ImproperUniform(support, (), event_shape=shape))


def ndpp_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    rank: tuple[int, int] = (100, 100),
    alpha: ArrayLike = 0.01,
    beta: ArrayLike = 0.01,
    anchor: ArrayLike | None = None,
    features: Features | None = None,
    angles: ArrayLike | None = None,
    feature_strength: ArrayLike = 1.0,
    **settings: Any,
) -> NDPP:
    r"""An NDPP whose sites ``V``, ``B`` and ``D`` have the papers' prior: for use inside a NumPyro model.

    D has a flat prior, so the posterior is improper: it is for a maximum, not for draws. The prior costs O(n d).

    :param counts: how many baskets hold each item (n,), at least 1 (:func:`item_counts`).
    :param num_baskets: their number N. Within a plate, counts and number are the same for all kernels.
    :param rank: the columns of V and of B.
    :param alpha, beta: the strengths of the priors of V and of B. They may be random themselves. Within a plate of
        kernels they are one number for all, or one for each.
    :param anchor: what v_i √(N/μ_i) is centred on (n, d₁); None: zero, as published.
    :param features: what is known of the items (n, p); rows are then centred on functions of it, with the sites
        ``V_map``, ``B_map`` and ``V_length`` (:mod:`numpyro_ndpp.features`). Or a function: it is given ``"V"`` or
        ``"B"`` and the number of columns, says what v_i √(N/μ_i) or b_i √(N/μ_i) is centred on beside the anchor,
        (n, columns), and may have sites of its own. None: nothing is known.
    :param angles: by how much what features say of each pair of columns of B is turned for each item (n, d₂ // 2).
        Random ones let items of the same features attract. None: nothing is turned.
    :param feature_strength: the strength λ of the prior of the linear map.
    :param settings: settings of :class:`~numpyro_ndpp.NDPP`, such as ``min_size=1``.
    :raises ValueError: for an anchor or counts of another shape, a strength or a count that is not positive.

    >>> import numpyro
    >>> from numpyro import handlers
    >>> baskets = np.array([[0, 2], [2, 3], [0, 1]])
    >>> def model():
    ...     dist = ndpp_prior(item_counts(baskets, 3), len(baskets), rank=(2, 2))
    ...     with numpyro.plate("baskets", len(baskets)):
    ...         numpyro.sample("basket", dist, obs=to_event_width(baskets, dist))
    >>> values = {"V": np.eye(3, 2), "B": np.ones((3, 2)), "D": np.zeros((2, 2))}
    >>> trace = handlers.trace(handlers.substitute(handlers.seed(model, 0), values)).get_trace()
    >>> trace["basket"]["fn"].batch_shape
    (3,)
    """
    V = _rows("V", counts, num_baskets, rank[0], alpha, anchor, features, None, feature_strength)
    B = _rows("B", counts, num_baskets, rank[1], beta, None, features, angles, feature_strength)
    return NDPP(V, B, _flat("D", rank[1], rank[1]), **settings)


def sized_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    size_logits: ArrayLike,
    rank: tuple[int, int] = (100, 100),
    alpha: ArrayLike = 0.01,
    beta: ArrayLike = 0.01,
    anchor: ArrayLike | None = None,
    **settings: Any,
) -> SizedNDPP:
    """The prior of :func:`ndpp_prior` for a :class:`~numpyro_ndpp.SizedNDPP`, whose sizes are those of ``size_logits``.

    The likelihood is a product, of the sizes' and of the subsets' given their sizes, so that the histogram of the
    baskets' sizes (:func:`~numpyro_ndpp.basket_sizes.size_logits_of_baskets`) is the best there is for any kernel.

    >>> from numpyro import handlers
    >>> values = {"D": np.zeros((2, 2))}
    >>> model = handlers.seed(handlers.substitute(sized_prior, values), 0)
    >>> model(np.array([2, 1, 1]), 3, size_logits=np.zeros(3), rank=(2, 2)).max_size
    2
    """
    V = _rows("V", counts, num_baskets, rank[0], alpha, anchor)
    B = _rows("B", counts, num_baskets, rank[1], beta)
    return SizedNDPP(V, B, _flat("D", rank[1], rank[1]), size_logits, **settings)


def symmetric_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    rank: tuple[int, int] = (100, 0),
    alpha: ArrayLike = 0.01,
    anchor: ArrayLike | None = None,
    features: Features | None = None,
    feature_strength: ArrayLike = 1.0,
    **settings: Any,
) -> NDPP:
    """The prior of a symmetric low-rank DPP: a site ``V``, and a B without columns. See :func:`ndpp_prior`.

    >>> from numpyro import handlers
    >>> handlers.seed(symmetric_prior, 0)(np.array([2, 1, 1]), 3, rank=(2, 0)).rank
    2
    """
    V = _rows("V", counts, num_baskets, rank[0], alpha, anchor, features, None, feature_strength)
    return NDPP(V, jnp.zeros((V.shape[-2], 0), V.dtype), jnp.zeros((0, 0), V.dtype), **settings)


def ondpp_prior(
    counts: ArrayLike,
    num_baskets: int,
    *,
    rank: tuple[int, int] = (100, 100),
    alpha: float = 0.01,
    beta: float = 0.01,
    gamma: float = 0.1,
    anchor: ArrayLike | None = None,
    **settings: Any,
) -> NDPP:
    r"""The prior of an orthogonal NDPP: BᵀB = I, VᵀB = 0, and D with σ_j at (0, 1), (2, 3), ... and zeros elsewhere.

    Its sites are ``V_raw``, ``B_raw`` and ``sigma``. B is the orthonormal factor of B_raw, in O(n d²), and V is what
    V_raw has outside the columns of B. Both are flat; the papers' terms for V, B and σ are factors. Other parameters
    and errors are those of :func:`ndpp_prior`.

    :param rank: the columns of V and of B. B has an even number.
    :param alpha, beta, gamma: the strengths, and the price of a unit of the log of the expected number of proposals of
        the rejection sampler. They are one number each. They cannot be learned: the factors have no normaliser.
    :raises ValueError: also for an odd number of columns in B, or a gamma below zero.

    >>> from numpyro import handlers
    >>> raw = {"V_raw": np.eye(4, 2), "B_raw": np.eye(4, 2, k=-2), "sigma": np.ones(1)}
    >>> dist = handlers.seed(handlers.substitute(ondpp_prior, raw), 0)(np.ones(4), 2, rank=(2, 2))
    >>> bool(abs(dist.B.T @ dist.B - np.eye(2)).max() < 1e-5)
    True
    """
    if rank[1] % 2:
        raise ValueError(f"rank: an orthogonal NDPP has an even number of columns in B, got {rank[1]}")
    if any(map(np.ndim, (alpha, beta, gamma))):
        raise ValueError(f"alpha, beta and gamma must be one number each, got {alpha!r}, {beta!r} and {gamma!r}")
    _check_strengths(alpha, beta)
    if not_jax_tracer(gamma):
        finite_float("gamma", gamma, 0)
    scale = _item_scale(counts, num_baskets)
    n, (d1, d2) = len(scale), rank
    B = orthonormalize(_flat("B_raw", n, d2) * scale)
    V = _flat("V_raw", n, d1) * scale
    # What rounding leaves of B in V after one projection is taken out by a second.
    for _ in range(2):
        V = V - matmul(B, matmul(B.mT, V))
    sigma = jnp.asarray(_flat("sigma", d2 // 2, support=constraints.positive))
    weights = scale**-2
    mean = 0.0 if anchor is None else scale * _centre(anchor, (n, d1), scale.dtype)
    numpyro.factor("prior_V", -alpha * jnp.sum(weights * (V - mean) ** 2, axis=(-2, -1)))
    numpyro.factor("prior_B", -beta * jnp.sum(weights * B**2, axis=(-2, -1)))
    numpyro.factor("proposals", -gamma * num_baskets * log_expected_proposals(sigma))
    first = 2 * jnp.arange(d2 // 2)
    D = jnp.zeros((*sigma.shape[:-1], d2, d2), sigma.dtype).at[..., first, first + 1].set(sigma)
    return NDPP(V, B, D, **settings)


def log_expected_proposals(sigma: Array) -> Array:
    """Σ log(1 + 2σ_j/(σ_j² + 1)), for an orthogonal NDPP, whatever its V."""
    return jnp.sum(jnp.log1p(2 * sigma / (sigma**2 + 1)), axis=-1)


@partial(jnp.vectorize, signature="(n,d)->(n,d)")
def orthonormalize(A: Array) -> Array:
    """An orthonormal basis (n, d) of the columns of A, by Cholesky's factor of AᵀA, three times. O(n d²).

    The first time the diagonal is raised by the size of the rounding: the factor then exists for any A, and the result
    is better conditioned than A. The second and third time make it orthonormal to rounding.
    """
    identity = jnp.eye(A.shape[1], dtype=A.dtype)
    for units in (8.0, 0.0, 0.0):
        C = matmul(A.T, A)
        factor = jnp.linalg.cholesky(C + units * jnp.finfo(A.dtype).eps * jnp.trace(C) * identity)
        A = matmul(A, jax.scipy.linalg.solve_triangular(factor, identity, lower=True).T)
    return A


@partial(jax.jit, static_argnums=(1, 2))
def directions(key: Array, num_items: int, num_columns: int) -> Array:
    """A random unit vector for each item."""
    A = random.normal(key, (num_items, num_columns), jnp.float32)
    return A / jnp.linalg.norm(A, axis=1, keepdims=True)
