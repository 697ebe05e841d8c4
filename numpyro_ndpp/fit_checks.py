r"""Does a learned distribution fit? Sizes, items and pairs of items against what it expects; two of them compared.

Of N baskets, O hold an event (a size, an item, a pair of items) that has probability p under the distribution. It
expects N p of them, and

.. math:: z = (O - N p) \big/ \sqrt{N p\, (1 - p)}

is about standard normal if the baskets are drawn from the distribution, where N p is not too small. All p are exact:
they are those of ``size_log_prob``, ``inclusion_probs`` and ``marginal_log_prob``. The baskets should be held out, for
those learned from fit too well.

Two distributions are compared by the log-likelihood of the same held-out baskets. Baskets differ from each other far
more than distributions do, so it is the difference δ_b of each basket that counts: its mean has the standard error
sd(δ) / √N.

References: Gelman, Meng and Stern (1996), *Posterior predictive assessment of model fitness via realized
discrepancies*, Statistica Sinica 6; Vehtari, Gelman and Gabry (2017), *Practical Bayesian model evaluation using
leave-one-out cross-validation and WAIC*, Statistics and Computing 27, for the standard error of a difference.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import random
from scipy.stats import chi2

from numpyro_ndpp.baskets import Subsets
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.fit_plots import plot_fit_check
from numpyro_ndpp.fits import Fit
from numpyro_ndpp.subsets import as_padded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison", "FitCheck", "Frequencies", "check_fit", "compare_fits"]

_MEMBERS = ("log_prob", "size_log_prob", "inclusion_probs", "marginal_log_prob", "num_items")
# Fewer than this, expected, are too few for a normal distribution.
_ENOUGH = 5.0
# Pairs whose marginals are computed at once.
_CHUNK = 4096
_WIDEST_NAME = 32


class Frequencies(NamedTuple):
    """How many of the baskets hold each of some events, how many are expected, and the difference as a z-score."""

    observed: np.ndarray
    expected: np.ndarray
    z: np.ndarray

    @property
    def enough(self) -> np.ndarray:
        """Which events are expected often enough, five times, for their z to be about normal."""
        return self.expected >= _ENOUGH

    @property
    def rms_z(self) -> float:
        """The root mean square of z over the events that are expected often enough; 1 if the distribution is right."""
        return float(np.sqrt(np.mean(self.z[self.enough] ** 2))) if self.enough.any() else np.nan

    def worst(self, num: int) -> np.ndarray:
        """The places of the largest z of either sign, of what is observed or expected five times; the worst first."""
        weight = np.where(np.maximum(self.observed, self.expected) >= _ENOUGH, np.abs(self.z), -1.0)
        order = np.argsort(-weight, kind="stable")[:num]
        return order[weight[order] >= 0]


@dataclass(frozen=True, repr=False)
class FitCheck:
    """What :func:`check_fit` found; ``print(check)`` shows it as a table and ``check.plot()`` as a figure."""

    num_baskets: int
    each_size: Frequencies
    """One number for each size from 0 on."""
    size_classes: np.ndarray
    """Neighbouring sizes, so many that each class is expected five times: the smallest and the largest one (c, 2)."""
    sizes: Frequencies
    """One number for each class of sizes (c,)."""
    sizes_p_value: float
    """Of Pearson's chi-square test of the size classes, for a distribution that was not learned from these baskets."""
    items: Frequencies
    """One number for each item (n,)."""
    pair_items: np.ndarray
    """The two items of each pair (m, 2)."""
    pairs: Frequencies
    num_draws: int | None
    """From how many draws the expected pairs are; None: they are exact."""
    names: list[str] | None

    def worst_pairs(self, num: int = 10) -> list[tuple[str, str, int, float, float]]:
        """The pairs that fit worst: two names, how often observed and expected, z. The worst is first."""
        names = [(self._name(a), self._name(b)) for a, b in self.pair_items]
        return [(*names[i], *_numbers(self.pairs, i)) for i in self.pairs.worst(num)]

    def worst_items(self, num: int = 10) -> list[tuple[str, int, float, float]]:
        """The items that fit worst, as :meth:`worst_pairs`."""
        return [(self._name(i), *_numbers(self.items, i)) for i in self.items.worst(num)]

    def plot(self) -> "Figure":
        """Sizes, items, pairs and the worst pairs in one figure; see :func:`numpyro_ndpp.plots.plot_fit_check`."""
        return plot_fit_check(self)

    def __repr__(self) -> str:
        parts = ((name, getattr(self, name)) for name in ("sizes", "items", "pairs"))
        numbers = ", ".join(f"{name} {part.rms_z:.2f}" for name, part in parts)
        return f"<FitCheck: {self.num_baskets} baskets, root mean square z of {numbers}>"

    def __str__(self) -> str:
        how = "exact" if self.num_draws is None else f"by {self.num_draws} draws"
        lines = [f"{self.num_baskets} baskets; expected numbers are exact, those of pairs {how}", ""]
        lines.append(f"{'':<12}{'number':>8}{'rms z':>8}{'|z| > 2':>9}{'|z| > 3':>9}   (of those expected five times)")
        for name in ("sizes", "items", "pairs"):
            part = getattr(self, name)
            z = np.abs(part.z[part.enough])
            beyond = "".join(f"{100 * np.mean(z > limit):>8.1f}%" if len(z) else f"{'':>9}" for limit in (2, 3))
            lines.append(f"{name:<12}{len(z):>8}{part.rms_z:>8.2f}{beyond}")
        lines.append(
            f"{'if it fits':<20}{1:>8.2f}{4.6:>8.1f}%{0.3:>8.1f}%   p-value of the sizes {self.sizes_p_value:.2g}"
        )
        classes = [f"{low}" if low == high else f"{low}-{high}" for low, high in self.size_classes]
        rows = [(name, *_numbers(self.sizes, i)) for i, name in enumerate(classes)]
        lines += _table("sizes", rows)
        lines += _table("worst items", [(name, *row) for name, *row in self.worst_items(5)])
        lines += _table("worst pairs", [(_both(first, second), *row) for first, second, *row in self.worst_pairs(10)])
        return "\n".join(lines)

    def _name(self, item: int) -> str:
        return str(item) if self.names is None else self.names[item]


def _numbers(part: Frequencies, i: int) -> tuple[int, float, float]:
    return int(part.observed[i]), float(part.expected[i]), float(part.z[i])


def _both(first: str, second: str) -> str:
    return " + ".join(name if len(name) <= _WIDEST_NAME else name[: _WIDEST_NAME - 1] + "…" for name in (first, second))


def _table(title: str, rows: list[tuple[Any, ...]]) -> list[str]:
    width = max([len(title), *(len(name) for name, *_ in rows)]) + 2
    lines = [f"{name:<{width}}{observed:>9}{expected:>11.1f}{z:>8.1f}" for name, observed, expected, z in rows]
    return ["", f"{title:<{width}}{'observed':>9}{'expected':>11}{'z':>8}", *lines]


def _z_scores(observed: np.ndarray, probs: np.ndarray, num_baskets: int) -> Frequencies:
    """What is certain or impossible, and so observed, has z = 0."""
    expected = num_baskets * probs
    difference, deviation = observed - expected, np.sqrt(expected * (1 - probs))
    # Without a deviation any difference is infinitely unlikely, but for the rounding of a probability of one.
    surprise = np.where(np.abs(difference) < 1e-3, 0.0, np.copysign(np.inf, difference))
    z = np.where(deviation > 0, difference / np.where(deviation > 0, deviation, 1.0), surprise)
    return Frequencies(observed, expected, z)


def _z_scores_of_draws(observed: np.ndarray, drawn: np.ndarray, num_baskets: int, num_draws: int) -> Frequencies:
    """Two proportions compared: the draws have an error of their own."""
    p = (observed + drawn) / (num_baskets + num_draws)
    deviation = np.sqrt(p * (1 - p) * (1 / num_baskets + 1 / num_draws))
    difference = observed / num_baskets - drawn / num_draws
    z = np.where(deviation > 0, difference / np.where(deviation > 0, deviation, 1.0), 0.0)
    return Frequencies(observed, num_baskets * drawn / num_draws, z)


def _size_classes(expected: np.ndarray, first: int) -> np.ndarray:
    """Neighbouring sizes from the first one on together, so that each class is expected five times; (c, 2)."""
    ends, mass = [], 0.0
    for size, number in enumerate(expected):
        mass += number
        if mass >= _ENOUGH:
            ends.append(size)
            mass = 0.0
    ends = [*ends[:-1], len(expected) - 1]  # what is left goes to the last class
    return np.stack([[first, *(end + 1 for end in ends[:-1])], ends], axis=1)


def _sizes(dist: Any, padded: np.ndarray) -> tuple[Frequencies, np.ndarray, Frequencies, float]:
    probs = np.exp(np.asarray(dist.size_log_prob(), np.float64))
    observed = np.bincount((padded < dist.num_items).sum(axis=1))
    # From the first to the last size that is possible or observed.
    possible = np.flatnonzero(probs)
    length = max(int(possible.max(initial=0)) + 1, len(observed))
    first = min(int(possible.min(initial=length)), int(np.argmax(observed > 0)))
    probs, observed = (np.pad(x, (0, max(length - len(x), 0)))[:length] for x in (probs / probs.sum(), observed))
    each = _z_scores(observed, np.minimum(probs, 1.0), len(padded))
    classes = _size_classes(each.expected, first)
    in_class, share = (np.add.reduceat(x, classes[:, 0]) for x in (observed, probs))
    part = _z_scores(in_class, np.minimum(share, 1.0), len(padded))
    statistic = np.sum((part.observed - part.expected) ** 2 / np.maximum(part.expected, np.finfo(float).tiny))
    return each, classes, part, float(chi2.sf(statistic, len(classes) - 1)) if len(classes) > 1 else 1.0


def _together(padded: np.ndarray, chosen: np.ndarray, num_items: int) -> np.ndarray:
    """How many of the padded subsets hold both of two chosen items, (m, m)."""
    place = np.full(num_items + 1, len(chosen))
    place[chosen] = np.arange(len(chosen))
    held = np.zeros((len(padded), len(chosen) + 1), np.float32)
    np.put_along_axis(held, place[padded], 1.0, axis=1)
    return np.rint(held[:, :-1].T @ held[:, :-1]).astype(int)


def check_fit(
    fit: Any,
    baskets: Subsets,
    *,
    num_pair_items: int = 50,
    num_draws: int | None = None,
    seed: int = 0,
) -> FitCheck:
    r"""Sizes, item frequencies and pair frequencies of baskets against those that a distribution expects, as z-scores.

    Pairs are those of the items that the distribution expects most often. They are chosen without a look at the
    baskets, which would make for large z. O(n d² + d³), and O(N) for the baskets. A pair costs O(d), or O(d²) for
    baskets that are not empty. With an upper limit on the size it is O(d⁴), a second at d = 200; give ``num_draws``.

    :param fit: a :class:`~numpyro_ndpp.learning.Fit`, or any distribution of subsets with ``log_prob``,
        ``size_log_prob``, ``inclusion_probs`` and ``marginal_log_prob``, of one kernel.
    :param baskets: held-out baskets, of any form of :mod:`numpyro_ndpp.baskets`.
    :param num_pair_items: how many items pairs are made of: 50 have 1,225.
    :param num_draws: expect as many of each pair as so many draws have, in place of its exact probability; z allows for
        the error of the draws.
    :param seed: the seed of the draws.
    :raises ValueError: for no baskets, items out of range, a batch of distributions, settings out of range.
    :raises TypeError: for what is no such distribution.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> check = check_fit(NDPP(jnp.eye(3)), [[0], [0, 1], [0, 2], [0]] * 12)  # each item has probability 1/2
    >>> print(check.items.observed, check.items.expected, check.items.z.round(1))
    [48 12 12] [24. 24. 24.] [ 6.9 -3.5 -3.5]
    >>> check
    <FitCheck: 48 baskets, root mean square z of sizes 2.24, items 4.90, pairs 2.31>
    """
    dist, names = _distribution_of("fit", fit)
    n = dist.num_items
    num_pair_items = static_int("num_pair_items", num_pair_items, 2)
    padded = _padded(baskets, n)
    sizes = _sizes(dist, padded)
    probs = np.clip(np.asarray(dist.inclusion_probs(), np.float64), 0.0, 1.0)
    items = _z_scores(np.bincount(padded.ravel(), minlength=n + 1)[:n], probs, len(padded))

    chosen = np.sort(np.argsort(-probs, kind="stable")[:num_pair_items])
    first, second = np.triu_indices(len(chosen), 1)
    pair_items = np.stack([chosen[first], chosen[second]], axis=1).astype(np.int32)
    observed = _together(padded, chosen, n)[first, second]
    if num_draws is None:
        pairs = _z_scores(observed, _pair_probs(dist, pair_items), len(padded))
    else:
        num_draws = static_int("num_draws", num_draws, 1)
        draws = np.asarray(dist.sample(random.key(static_int("seed", seed, 0)), (num_draws,)))
        draws = draws[(draws >= 0).all(axis=1)]
        num_draws = len(draws)
        pairs = _z_scores_of_draws(observed, _together(draws, chosen, n)[first, second], len(padded), num_draws)
    return FitCheck(len(padded), *sizes, items, pair_items, pairs, num_draws, names)


def _pair_probs(dist: Any, pairs: np.ndarray) -> np.ndarray:
    parts = [dist.marginal_log_prob(pairs[start : start + _CHUNK]) for start in range(0, len(pairs), _CHUNK)]
    log_probs = np.concatenate([np.asarray(part, np.float64) for part in parts] or [np.zeros(0)])
    return np.exp(np.minimum(log_probs, 0.0))


def _distribution_of(name: str, given: Any) -> tuple[Any, list[str] | None]:
    """The distribution of a fit with its names, or a distribution as it is."""
    dist, names = (given.distribution(), given.items) if isinstance(given, Fit) else (given, None)
    missing = [member for member in _MEMBERS if not hasattr(dist, member)]
    if missing:
        raise TypeError(f"{name} must be a Fit or a distribution of subsets, got {type(given).__name__}")
    if dist.batch_shape:
        raise ValueError(f"{name} must be one distribution, got a batch of shape {dist.batch_shape}")
    return dist, names


def _padded(baskets: Any, num_items: int) -> np.ndarray:
    padded = as_padded("baskets", baskets, num_items)
    if not len(padded):
        raise ValueError("baskets: one basket at least is needed, got none")
    return padded


class Comparison(NamedTuple):
    """Two distributions by the log-likelihood of the same baskets, in nats per basket."""

    first: float
    second: float
    difference: float
    """The first less the second: above zero the first is better."""
    standard_error: float
    """Of the difference, which is paired."""
    share_better: float
    """The share of the baskets that are likelier under the first; equal ones count one half."""
    num_baskets: int
    impossible: tuple[int, int]
    """How many baskets have probability zero under each."""

    def __str__(self) -> str:
        text = f"{self.first:.3f} and {self.second:.3f} per basket, difference {self.difference:.3f}"
        if np.isfinite(self.standard_error):
            text += f" ± {self.standard_error:.3f}"
        text += f" over {self.num_baskets} baskets, {100 * self.share_better:.0f} % of them likelier under the first"
        if any(self.impossible):
            text += f"; {self.impossible[0]} and {self.impossible[1]} have probability zero"
        return text


def compare_fits(first: Any, second: Any, baskets: Subsets) -> Comparison:
    r"""The log-likelihood of held-out baskets under two distributions, and the difference with its standard error.

    .. math:: \bar δ ± \mathrm{sd}(δ) / \sqrt N, \qquad δ_b = \log P_1(S_b) - \log P_2(S_b) .

    The error is that of the choice of baskets, given the two distributions; it does not hold what other training
    baskets would change. If some baskets are impossible under one, the difference is infinite, and without an error.

    :param first, second: as ``fit`` in :func:`check_fit`, of the same number of items.
    :param baskets: held-out baskets, of any form of :mod:`numpyro_ndpp.baskets`.
    :raises ValueError: for no baskets, items out of range, and distributions of another number of items.
    :raises TypeError: for what is no distribution of subsets.

    >>> import jax.numpy as jnp
    >>> from numpyro_ndpp import NDPP
    >>> often, seldom = NDPP(jnp.eye(3)), NDPP(0.5 * jnp.eye(3))  # probability 1/2 and 1/5 for each item
    >>> print(compare_fits(often, seldom, [[0, 1], [0], [1, 2], [0, 1, 2]]))
    -2.079 and -3.442 per basket, difference 1.363 ± 0.566 over 4 baskets, 75 % of them likelier under the first
    """
    dists = [_distribution_of(name, given)[0] for name, given in (("first", first), ("second", second))]
    if dists[0].num_items != dists[1].num_items:
        raise ValueError(f"first has {dists[0].num_items} items, but second has {dists[1].num_items}")
    padded = _padded(baskets, dists[0].num_items)
    a, b = (np.asarray(dist.log_prob(padded), np.float64) for dist in dists)
    impossible = int(np.isneginf(a).sum()), int(np.isneginf(b).sum())
    better = float(np.mean((a > b) + 0.5 * (a == b)))
    means = float(a.mean()), float(b.mean())
    if any(impossible):
        difference = np.nan if all(impossible) else means[0] - means[1]
        return Comparison(*means, difference, np.nan, better, len(a), impossible)
    delta = a - b
    error = float(delta.std(ddof=1) / np.sqrt(len(a))) if len(a) > 1 else np.nan
    return Comparison(*means, float(delta.mean()), error, better, len(a), impossible)
