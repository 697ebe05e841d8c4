"""The model that :func:`~numpyro_ndpp.learning.fit` learns: a kernel from a prior, and baskets drawn with it."""

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
from jax import Array
from jax.typing import ArrayLike

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.distributions import NDPP
from numpyro_ndpp.sized import SizedNDPP

__all__ = ["basket_model", "to_event_width"]


def to_event_width(baskets: ArrayLike, dist: SubsetDistribution) -> Array:
    """Padded baskets (..., m) with as many columns as the distribution's events have: NumPyro's ELBOs insist on it.

    Columns of padding are added or left out. A basket that would lose an item becomes -1 throughout, which is no subset
    and has probability zero.

    >>> dist = NDPP(jnp.eye(4, 3), jnp.zeros((4, 0)), jnp.zeros((0, 0)))
    >>> to_event_width(jnp.array([[0, 2]]), dist)
    Array([[0, 2, 4]], dtype=...)
    """
    baskets = jnp.asarray(baskets)
    if jnp.issubdtype(baskets.dtype, jnp.integer):
        # Signed, and wide enough for the number of items.
        baskets = baskets.astype(jnp.int64 if baskets.dtype.itemsize == 8 else jnp.int32)
    width = dist.event_shape[0]
    missing = [(0, 0)] * (baskets.ndim - 1) + [(0, max(width - baskets.shape[-1], 0))]
    too_large = jnp.any(baskets[..., width:] < dist.num_items, axis=-1, keepdims=True)
    return jnp.where(too_large, -1, jnp.pad(baskets, missing, constant_values=dist.num_items)[..., :width])


def basket_model(
    baskets: ArrayLike,
    counts: ArrayLike,
    anchor: ArrayLike | None = None,
    features: ArrayLike | None = None,
    angles: ArrayLike | None = None,
    cold: ArrayLike | None = None,
    *,
    prior: Callable[..., NDPP | SizedNDPP],
    batch_size: int | None = None,
) -> NDPP | SizedNDPP:
    """A NumPyro model: a kernel from ``prior(counts, N, anchor=anchor)``, and padded ``baskets`` (N, m) drawn with it.

    :param features, angles: given to the prior too, unless they are None.
    :param cold: items (m,) that were not on sale: the baskets are drawn from the distribution without them.
    :param batch_size: the number of baskets in a minibatch; None: all.
    :return: the distribution that the baskets are drawn from.

    >>> from functools import partial
    >>> import numpy as np
    >>> from numpyro_ndpp.priors import item_counts, symmetric_prior
    >>> from numpyro import handlers
    >>> baskets = np.array([[0, 2], [2, 3], [0, 1]])
    >>> prior = partial(symmetric_prior, rank=(2, 0), alpha=1.0)
    >>> handlers.seed(basket_model, 0)(baskets, item_counts(baskets, 3), prior=prior, batch_size=2).num_items
    3
    """
    baskets = jnp.asarray(baskets)
    known = {name: value for name, value in (("features", features), ("angles", angles)) if value is not None}
    dist = prior(counts, len(baskets), anchor=anchor, **known)
    if cold is not None:
        dist = dist.condition(exclude=cold)
    size = None if batch_size is None else min(batch_size, len(baskets))
    with numpyro.plate("baskets", len(baskets), subsample_size=size):
        batch = numpyro.subsample(baskets, event_dim=1)
        numpyro.sample("basket", dist, obs=to_event_width(batch, dist))
    return dist
