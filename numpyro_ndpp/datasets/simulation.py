"""Baskets of a small shop whose distribution is known: which items go together, and which replace each other."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from numpyro_ndpp.checks import finite_float, static_int
from numpyro_ndpp.distributions import NDPP
from numpyro_ndpp.samplers import Cholesky
from numpyro_ndpp.subsets import unpad_subsets

SHOP = ("tea", "coffee", "bread", "butter", "pasta", "sauce", "cola", "juice", "soap", "candles", "rice", "beans")


class SimulatedBaskets(NamedTuple):
    """Baskets, their distribution, the name of every item, the pairs that attract and those that repel."""

    baskets: list[list[int]]
    items: list[str]
    complements: list[tuple[int, int]]
    substitutes: list[tuple[int, int]]
    distribution: NDPP


def simulate_baskets(
    num_baskets: int,
    *,
    items: Sequence[str] = SHOP,
    complements: Sequence[tuple[int, int]] = ((2, 3), (4, 5), (8, 9)),
    substitutes: Sequence[tuple[int, int]] = ((0, 1), (6, 7), (10, 11)),
    expected_size: float = 3.0,
    seed: int = 0,
) -> SimulatedBaskets:
    """Independent baskets from an NDPP whose complements (bought together) and substitutes (one of two) are known.

    Substitutes share a direction of V. Complements share a skew pair of B and D. Other items are independent. An item
    may be in one pair at most. The kernel has a column for every item, so there should be some hundreds at most.

    :raises ValueError: for a pair of an item with itself, an item out of range or in two pairs, a negative number of
        baskets, an expected size that is not between 0 and the number of items.

    >>> shop = simulate_baskets(3)
    >>> len(shop.baskets), [shop.items[item] for item in shop.complements[0]]
    (3, ['bread', 'butter'])
    """
    n, num_skew = len(items), 2 * len(complements)
    paired = [item for pair in (*complements, *substitutes) for item in pair]
    if any(not 0 <= item < n for item in paired) or len(set(paired)) < len(paired):
        raise ValueError(
            f"complements and substitutes must be pairs of different items from 0 to {n - 1}, none in two pairs, got "
            f"{list(complements)} and {list(substitutes)}"
        )
    num_baskets = static_int("num_baskets", num_baskets, 0)
    V, B, D = 0.6 * np.eye(n), np.zeros((n, num_skew)), np.zeros((num_skew, num_skew))
    for first, second in substitutes:
        V[second] = 0.95 * V[first] + 0.2 * V[second]
    for j, (first, second) in enumerate(complements):
        B[first, 2 * j] = B[second, 2 * j + 1] = 0.9
        D[2 * j, 2 * j + 1] = 1.0
    root = np.sqrt(_scale_of_mean_size(V @ V.T + B @ (D - D.T) @ B.T, expected_size))
    distribution = NDPP(root * V, root * B, D, sampler=Cholesky())
    baskets = unpad_subsets(distribution.sample(jax.random.key(seed), (num_baskets,)), n)
    return SimulatedBaskets(baskets, list(items), list(complements), list(substitutes), distribution)


def _scale_of_mean_size(L: np.ndarray, expected_size: float) -> float:
    """The factor with which a kernel of full rank has subsets of that mean size, by bisection.

    :meth:`~numpyro_ndpp.NDPP.with_expected_size` finds it for any kernel; NumPy has nothing to compile.
    """
    finite_float("expected_size", expected_size, 0, len(L), exclusive=True)
    eigenvalues = np.linalg.eigvals(L)
    low, high = -100.0, 100.0  # of the logarithm
    for _ in range(100):
        middle = (low + high) / 2
        scaled = np.exp(middle) * eigenvalues
        low, high = (middle, high) if np.sum(scaled / (1 + scaled)).real < expected_size else (low, middle)
    return float(np.exp(middle))
