r"""The distribution of the size of baskets, from baskets: a histogram with a smooth tail.

.. math:: π_s ∝ c_s + g_s, \qquad c_s = \#\{b : |S_b| = s\},

with g the negative binomial distribution that has the mean and the variance of the sizes: the posterior mean under a
Dirichlet prior of weight one. Sizes that were not seen keep a probability of the order of 1/N, by their distance.
"""

import numpy as np

from numpyro_ndpp.baskets import Subsets
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.subsets import as_padded

__all__ = ["size_logits_of_baskets"]


def size_logits_of_baskets(
    baskets: Subsets, num_items: int, max_size: int | None = None, *, min_size: int = 0
) -> np.ndarray:
    """log π_s (max_size+1,) for s = 0 .. max_size: what :class:`~numpyro_ndpp.SizedNDPP` takes as ``size_logits``.

    :param baskets: padded baskets (N, m), or any other form of :mod:`numpyro_ndpp.baskets`.
    :param num_items: the number n of items.
    :param max_size: the largest size; None: n.
    :param min_size: -inf below that.
    :raises ValueError: for no baskets at all, for one that is smaller than ``min_size`` or larger than ``max_size``,
        and for items out of range or repeated.
    :raises TypeError: for items that are not integers.

    >>> probs = np.exp(size_logits_of_baskets([[0], [1, 2], [0, 2], [1, 2]], 4, 3))
    >>> print(probs.round(2))
    [0.04 0.27 0.67 0.03]
    """
    max_size = static_int("max_size", num_items if max_size is None else max_size, 0, num_items, "num_items")
    min_size = static_int("min_size", min_size, 0, max_size, "max_size")
    sizes = np.sum(as_padded("baskets", baskets, num_items) < num_items, axis=1)
    if len(sizes) == 0:
        raise ValueError("baskets: one basket at least is needed, got none")
    if sizes.min() < min_size or sizes.max() > max_size:
        raise ValueError(
            f"baskets have {sizes.min()} to {sizes.max()} items, but sizes go from min_size={min_size} to {max_size}"
        )
    counts = np.bincount(sizes, minlength=max_size + 1).astype(float)
    with np.errstate(divide="ignore"):
        logits = np.log(counts + np.exp(_negative_binomial(sizes.mean(), sizes.var(), max_size)))
    logits[:min_size] = -np.inf
    return logits - np.logaddexp.reduce(logits)


def _negative_binomial(mean: float, variance: float, most: int) -> np.ndarray:
    """Log-probabilities of 0 .. most; those of a Poisson distribution where the variance is no larger than the mean."""
    mean = max(mean, 0.5)  # sizes that are all zero are no reason to be sure
    sizes = np.arange(most + 1)
    excess = max(variance - mean, 1e-3 * mean)
    shape = mean**2 / excess
    # log Γ(s + shape) - log Γ(shape) - log s!, by steps from one size to the next
    steps = np.log((sizes[:-1] + shape) / (sizes[:-1] + 1)) + np.log(mean / (mean + shape))
    return np.concatenate([[0.0], np.cumsum(steps)]) + shape * np.log(shape / (mean + shape))
