"""What a learned kernel is judged with: baskets that are held out, and popularity, which it should beat."""

from typing import Any

import numpy as np

from numpyro_ndpp.baskets import Baskets, Subsets
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.subsets import as_padded

__all__ = ["hold_out", "popularity"]

_MOST_HELD_OUT = 2000


def hold_out(baskets: Any, num: int | None = None, *, seed: int = 0) -> tuple[Any, Any]:
    """Baskets to learn from and baskets to judge by, chosen at random.

    :param baskets: of any form of :mod:`numpyro_ndpp.baskets`; both parts have that form, and names go with both.
    :param num: how many to hold out; by default a tenth, at most 2,000.
    :param seed: the seed of the choice.
    :raises ValueError: for fewer than two baskets, and a ``num`` that leaves no basket to one of the parts.

    >>> train, test = hold_out([[0], [1, 2], [0, 2], [1]], 1)
    >>> len(train), len(test)
    (3, 1)
    """
    if isinstance(baskets, tuple) and hasattr(baskets, "baskets") and hasattr(baskets, "items"):
        train, test = hold_out(baskets.baskets, num, seed=seed)
        return Baskets(train, list(baskets.items), {}), Baskets(test, list(baskets.items), {})
    number = baskets.shape[0] if hasattr(baskets, "shape") else len(baskets)
    if number < 2:
        raise ValueError(f"baskets: two baskets at least are needed, got {number}")
    num = min(_MOST_HELD_OUT, max(1, number // 10)) if num is None else num
    num = static_int("num", num, 1, number - 1, "all baskets but one")
    order = np.random.default_rng(static_int("seed", seed, 0)).permutation(number)
    return _chosen(baskets, np.sort(order[num:])), _chosen(baskets, np.sort(order[:num]))


def _chosen(baskets: Any, places: np.ndarray) -> Any:
    if hasattr(baskets, "iloc"):  # of pandas
        return baskets.iloc[places]
    if hasattr(baskets, "tocsr"):  # of SciPy, where not every format has rows by number
        return baskets.tocsr()[places]
    return baskets[places] if hasattr(baskets, "shape") else [baskets[place] for place in places]


def popularity(baskets: Subsets, num_items: int, *, seed: int = 0) -> np.ndarray:
    """How many of the baskets hold each item, (n,), and a random fraction below one half that parts items of one count.

    :func:`~numpyro_ndpp.metrics.mean_percentile_rank` takes it in place of a distribution: the baseline that a learned
    kernel should beat. Equal counts, of which rare items have many, would favour it.

    :param baskets: those learned from, of any form of :mod:`numpyro_ndpp.baskets`.
    :param seed: the seed of the fractions.
    :raises ValueError: for items out of range, or repeated within a basket.
    :raises TypeError: for items that are not integers.

    >>> popularity([[0, 1], [1], [2, 1]], num_items=3).round()
    array([1., 3., 1.])
    """
    padded = as_padded("baskets", baskets, num_items)
    counts = np.bincount(padded.ravel(), minlength=num_items + 1)[:num_items]
    return counts + np.random.default_rng(static_int("seed", seed, 0)).random(num_items) / 2
