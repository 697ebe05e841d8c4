r"""How good a learned kernel is on baskets it has not seen: log-likelihood, AUC of subsets, mean percentile rank.

Each is a mean over baskets (or an AUC) with a bootstrap interval over them.

The published numbers come from the authors' code. It averages the AUC and the percentile rank over three groups of
sizes, cut evenly on the scale of their logarithms, and it hides the item with the largest number, not a random one:
``"grouped"`` and ``"reference"`` below. This matters: one ranking of baskets of all sizes (``"pooled"``) has a random
pair above a real basket of fifty, so the pooled AUC of a very good model may be 0.6.

Reference: Gartrell, Han, Dohmatob, Gillenwater and Brunel (2021), *Scalable learning and MAP inference for
nonsymmetric determinantal point processes*, ICLR, section 5.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from numpyro_ndpp.base import SubsetDistribution
from numpyro_ndpp.baskets import Subsets
from numpyro_ndpp.checks import check_distribution, finite_float, static_int
from numpyro_ndpp.held_out import hold_out, popularity
from numpyro_ndpp.subsets import as_padded, pad_subsets, to_multihot
from numpyro_ndpp.widths import narrowing_widths, power_of_two

__all__ = [
    "Estimate",
    "hold_out",
    "mean_log_likelihood",
    "mean_percentile_rank",
    "popularity",
    "subset_auc",
]

# At most so many scores, one for each pair of a basket and an item, are held at once.
_SCORES = 2**24
_NARROWEST = 4


class Estimate(NamedTuple):
    """A number and its bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


_NO_NUMBER = Estimate(np.nan, np.nan, np.nan)


def _bootstrap(
    statistic: Callable[[np.ndarray], float], groups: np.ndarray, level: float, seed: int, repeats: int
) -> Estimate:
    """The mean over groups of the statistic of each group's baskets, and quantiles of the same for baskets drawn anew.

    They are drawn with replacement within each group: without the smallest group the mean would be another one.
    """
    level, repeats = finite_float("level", level, 0, 1, exclusive=True), static_int("num_bootstraps", repeats, 0)
    rng = np.random.default_rng(seed)
    parts = [np.flatnonzero(groups == group) for group in np.unique(groups)]

    def mean(chosen: list[np.ndarray]) -> float:
        return float(np.mean([statistic(part) for part in chosen]))

    again = [mean([part[rng.integers(len(part), size=len(part))] for part in parts]) for _ in range(repeats)]
    if not again:
        return Estimate(mean(parts), np.nan, np.nan)
    # No interpolation: a mean may be -inf.
    low = np.quantile(again, (1 - level) / 2, method="lower")
    high = np.quantile(again, (1 + level) / 2, method="higher")
    return Estimate(mean(parts), float(low), float(high))


def _lists(baskets: Subsets, num_items: int) -> list[np.ndarray]:
    """Baskets as arrays of item numbers, checked."""
    lists = [row[row < num_items] for row in as_padded("baskets", baskets, num_items)]
    if not lists:
        raise ValueError("baskets: one basket at least is needed, got none")
    return lists


def _size_groups(sizes: np.ndarray) -> np.ndarray:
    """Which of three groups a size is in: equal steps of the logarithm from 1 to the largest."""
    largest = max(int(sizes.max()), 2)
    edges = np.linspace(0, np.log10(largest), 4)[1:3]
    return np.searchsorted(edges, np.log10(np.maximum(sizes, 1)), side="right")


def mean_log_likelihood(
    dist: SubsetDistribution, baskets: Subsets, *, level: float = 0.95, num_bootstraps: int = 1000, seed: int = 0
) -> Estimate:
    """The mean of log P(basket), with an interval of the given level.

    :param baskets: of any form of :mod:`numpyro_ndpp.baskets`, as in the other metrics.
    :param level: the probability of the bootstrap interval, between 0 and 1.
    :param num_bootstraps: how many times baskets are drawn anew for it. With 0 its ends are NaN.
    :param seed: the seed of these draws.
    :raises ValueError: for a batch of distributions, no baskets, items or settings out of range.
    :raises TypeError: for any other distribution.

    The value is NaN if the distribution's normaliser is not a number; so it is for the other metrics.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> dist = NDPP(jnp.eye(3), jnp.zeros((3, 1)), jnp.zeros((1, 1)))  # every subset has probability 1/8
    >>> round(mean_log_likelihood(dist, [[0], [1, 2]]).value, 3)
    -2.079
    """
    check_distribution(dist, SubsetDistribution)
    values = _log_probs(dist, _lists(baskets, dist.num_items))
    return _bootstrap(lambda part: values[part].mean(), np.zeros(len(values)), level, seed, num_bootstraps)


def _log_probs(dist: SubsetDistribution, lists: list[np.ndarray]) -> np.ndarray:
    return np.asarray(dist.log_prob(pad_subsets(lists, dist.num_items, _width(lists, dist.num_items))), np.float64)


def _width(lists: list[np.ndarray], num_items: int) -> int:
    """Room for the largest: baskets of much the same sizes need no other program."""
    return min(power_of_two(max(map(len, lists))), num_items)


def subset_auc(
    dist: SubsetDistribution,
    baskets: Subsets,
    *,
    kind: str = "paired",
    level: float = 0.95,
    num_bootstraps: int = 1000,
    seed: int = 0,
) -> Estimate:
    """How well log-probabilities tell baskets from uniformly random subsets of the same sizes.

    If the distribution is conditioned, the random subsets have none of the items that are given to be in or out.

    :param kind: ``"paired"``: the share of baskets that are likelier than their own random subset. ``"grouped"``: the
        AUC within each of three groups of sizes, averaged, as published. ``"pooled"``: one AUC over baskets of all
        sizes; it is blurred, for small baskets are always likelier than large ones. Ties count one half.
    :param level, num_bootstraps, seed: as in :func:`mean_log_likelihood`; the random subsets depend on the seed too.
    :raises ValueError: for another kind, a batch of distributions, no baskets, items out of range.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> V = jnp.diag(jnp.array([3.0, 3.0, 0.1, 0.1, 0.1, 0.1]))  # the first two items are bought, the others hardly
    >>> dist = NDPP(V, jnp.zeros((6, 1)), jnp.zeros((1, 1)))
    >>> subset_auc(dist, [[0, 1]] * 200).value > 0.9
    True
    """
    if kind not in ("paired", "grouped", "pooled"):
        raise ValueError(f"kind must be 'paired', 'grouped' or 'pooled', got {kind!r}")
    check_distribution(dist, SubsetDistribution)
    if np.isnan(dist.log_normalizer):
        return _NO_NUMBER
    lists, rng = _lists(baskets, dist.num_items), np.random.default_rng(seed)
    decided = np.concatenate([np.ravel(dist.pinned), np.ravel(dist.excluded)])
    free = np.setdiff1d(np.arange(dist.num_items), decided)
    if max(map(len, lists)) > len(free):
        raise ValueError(f"baskets: one has {max(map(len, lists))} items, but only {len(free)} are neither in nor out")
    random_sets = [np.sort(rng.choice(free, size=len(basket), replace=False)) for basket in lists]
    real, fake = _log_probs(dist, lists), _log_probs(dist, random_sets)
    groups = _size_groups(np.array(list(map(len, lists)))) if kind == "grouped" else np.zeros(len(lists))
    wins = (real > fake) + 0.5 * (real == fake)

    def statistic(part: np.ndarray) -> float:
        return wins[part].mean() if kind == "paired" else _auc(real[part], fake[part])

    return _bootstrap(statistic, groups, level, seed, num_bootstraps)


def _auc(real: np.ndarray, fake: np.ndarray) -> float:
    """The probability that one of ``real`` is above one of ``fake``, ties by half."""
    ordered = np.sort(fake)
    below, not_above = (np.searchsorted(ordered, real, side=side) for side in ("left", "right"))
    return float(np.mean(below + not_above) / (2 * len(fake)))


def mean_percentile_rank(
    dist: SubsetDistribution | ArrayLike,
    baskets: Subsets,
    *,
    definition: str = "paper",
    level: float = 0.95,
    num_bootstraps: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Where a hidden item of a basket stands among the items that could join the rest: 100 is first, 50 is chance.

    :param dist: a distribution, or a score for every item (n,) whatever the rest, such as its :func:`popularity`. Ties
        favour the hidden item by the paper's definition and go against it by the reference. Break them if there are
        many, as among the counts of rare items.
    :param baskets: of any form of :mod:`numpyro_ndpp.baskets`; those of one item or none are passed over.
    :param definition: ``"paper"``: a random item is hidden, and its rank is the share of the items outside the rest
        that are no likelier than it. ``"reference"``, the authors' code: the item with the largest number is hidden,
        its rank is the share of the possible items that are less likely, and the mean is over the means of three groups
        of sizes. A hidden item that is impossible has rank 0 in both.
    :param level, num_bootstraps, seed: as in :func:`mean_log_likelihood`; what is hidden depends on the seed too.
    :raises ValueError: for another definition, a batch of distributions, no basket of two items, items out of range,
        scores of another shape.

    A basket of m costs O(n m d), for the scores of all items.

    >>> import numpy as np
    >>> popularity = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    >>> mean_percentile_rank(popularity, [[0, 1], [1, 0]]).value  # the hidden one is the first of those left
    100.0
    """
    if definition not in ("paper", "reference"):
        raise ValueError(f"definition must be 'paper' or 'reference', got {definition!r}")
    if isinstance(dist, Distribution):
        check_distribution(dist, SubsetDistribution)
        if np.isnan(dist.log_normalizer):
            return _NO_NUMBER
    judged = dist if isinstance(dist, SubsetDistribution) else _in_order(dist)
    n = judged.num_items if isinstance(judged, SubsetDistribution) else len(judged)
    lists, rng = [basket for basket in _lists(baskets, n) if len(basket) > 1], np.random.default_rng(seed)
    if not lists:
        raise ValueError("baskets: none has two items or more")
    places = [len(basket) - 1 if definition == "reference" else rng.integers(len(basket)) for basket in lists]
    hidden = np.array([basket[place] for basket, place in zip(lists, places, strict=True)])
    rest = [np.delete(basket, place) for basket, place in zip(lists, places, strict=True)]
    sizes = np.array(list(map(len, rest)))
    counts = np.zeros((5, len(lists)))
    widths = narrowing_widths(_width(rest, n), _NARROWEST, 0.25)  # few shapes to compile
    for low, width in zip([0, *widths[:-1]], widths, strict=True):
        chosen = np.flatnonzero((sizes > low) & (sizes <= width))
        # Whole chunks: one shape to compile for each width.
        chunk = min(max(1, _SCORES // n), 64)
        for start in range(0, len(chosen), chunk):
            part = chosen[start : start + chunk]
            filled = np.resize(part, chunk)
            rows = pad_subsets([rest[i] for i in filled], n, width)
            counts[:, part] = np.asarray(_rank_counts(judged, rows, hidden[filled]))[:, : len(part)]
    no_likelier, outside, likelier, possible, can_join = counts
    by_paper = no_likelier / np.maximum(outside, 1)
    ranks = 100 * (by_paper if definition == "paper" else 1 - likelier / np.maximum(possible, 1))
    ranks[can_join == 0] = 0.0
    groups = _size_groups(sizes + 1) if definition == "reference" else np.zeros(len(ranks))
    return _bootstrap(lambda part: ranks[part].mean(), groups, level, seed, num_bootstraps)


def _in_order(scores: ArrayLike) -> Array:
    """The places of the scores (n,) in order, equal ones alike: float32 would not hold all digits of the scores."""
    given = np.asarray(scores)
    if given.ndim != 1:
        raise ValueError(f"dist must be a distribution or a score for every item, got an array of shape {given.shape}")
    places = np.unique(given, return_inverse=True)[1].astype(np.float32)
    return jnp.where(given > -np.inf, places, -jnp.inf)


@jax.jit
def _rank_counts(dist: SubsetDistribution | Array, rest: Array, hidden: Array) -> Array:
    """Five counts (5, c) for the hidden items (c,), given the rest (c, m) of their baskets.

    They are the items outside the rest that are no likelier; all outside; the possible ones that are as likely or
    likelier; all possible ones; and 1 if the hidden item is possible itself.
    """
    if isinstance(dist, SubsetDistribution):
        n, scores = dist.num_items, dist.next_item_log_prob(rest)
        rest = dist.with_pinned(rest)  # these are in every subset, and cannot join
    else:
        n, scores = len(dist), jnp.broadcast_to(dist, (len(rest), len(dist)))
    outside = ~to_multihot(rest, n).astype(bool)
    possible = outside & (scores > -jnp.inf)
    own = jnp.take_along_axis(scores, hidden[:, None], axis=1)
    chosen = outside & (scores <= own), outside, possible & (scores >= own), possible, own > -jnp.inf
    return jnp.stack([jnp.sum(which, axis=1) for which in chosen])
