"""One table of kernels for all tests, and the oracle they are compared with: enumeration of all subsets."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from numpyro_ndpp import KNDPP, NDPP
from numpyro_ndpp.base import SubsetDistribution

N = 10


def _normal(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def _skew_pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items (0, 1), (2, 3), (4, 5) and (6, 7) come in pairs only, items 8 and 9 never. There is no V."""
    D = np.zeros((8, 8))
    D[np.arange(0, 8, 2), np.arange(1, 8, 2)] = [1.0, 0.5, 2.0, 1.5]
    return np.zeros((N, 0)), np.eye(N, 8), D


def _skew_pairs_and_symmetric() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items (0, 1), (2, 3) and (6, 7) come in pairs; with V on items 0 and 5 these two may come alone."""
    B = np.zeros((N, 6))
    B[[0, 1, 2, 3, 6, 7], np.arange(6)] = 1.0
    D = np.zeros((6, 6))
    D[np.arange(0, 6, 2), np.arange(1, 6, 2)] = [1.0, 0.5, 1.5]
    V = np.zeros((N, 2))
    V[0, 0] = 1.0
    V[5, 1] = 0.7
    return V, B, D


def _conditioned(cond: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left, right, D = _normal(13, (N, 8), (8, 8), (4, 4))
    X = (np.linalg.qr(left)[0] * np.logspace(0, -np.log10(cond) / 2, 8)) @ np.linalg.qr(right)[0].T
    return X[:, :4], X[:, 4:], D


def _repeated_rows() -> list[np.ndarray]:
    V, B, D = _normal(9, (N, 4), (N, 4), (4, 4))
    V[3], B[3] = V[7], B[7]
    V[1], B[1] = V[7], B[7]
    return [V, B, D]


def _zero_rows() -> list[np.ndarray]:
    V, B, D = _normal(8, (N, 4), (N, 4), (4, 4))
    V[[2, 6]], B[[2, 6]] = 0, 0
    return [V, B, D]


def _scaled(scale: float) -> list[np.ndarray]:
    V, B, D = _normal(0, (N, 4), (N, 4), (4, 4))
    return [V * scale**0.5, B * scale**0.5, D]


def _near_skew() -> list[np.ndarray]:
    V, B, D = _normal(4, (N, 4), (N, 4), (4, 4))
    return [0.01 * V, B, D]


# name: (V, B, D), true rank. All but one have d = 8: by their factors they share a shape, and what is compiled for it.
KERNELS = {
    "ordinary": (_scaled(1.0), 8),
    "symmetric": ([*_normal(2, (N, 6)), np.zeros((N, 2)), np.ones((2, 2))], 6),
    "skew": ([np.zeros((N, 2)), *_normal(3, (N, 6), (6, 6))], 6),
    "near skew": (_near_skew(), 8),
    "skew pairs": (_skew_pairs(), 8),
    "skew pairs and V": (_skew_pairs_and_symmetric(), 7),
    "odd d2": (_normal(5, (N, 3), (N, 5), (5, 5)), 7),
    "d1 < d2": (_normal(6, (N, 2), (N, 6), (6, 6)), 8),
    "d1 > d2": (_normal(7, (N, 6), (N, 2), (2, 2)), 8),
    "zero rows": (_zero_rows(), 8),
    "repeated rows": (_repeated_rows(), 8),
    "n < d": (_normal(10, (N, 8), (N, 6), (6, 6)), 10),
    "scaled 1e-6": (_scaled(1e-6), 8),
    "scaled 1e6": (_scaled(1e6), 8),
    "cond(C) 1e6": (_conditioned(1e6), 8),
}
# Where formulas fail first; the rest of the table is as often left to the slow tests.
HARDEST = ("ordinary", "skew", "near skew", "skew pairs and V", "repeated rows")
PARTS = {name: tuple(parts) for name, (parts, _) in KERNELS.items()}
TRUE_RANK = {name: rank for name, (_, rank) in KERNELS.items()}


def factors(name: str, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) and W (d, d) of a kernel of the table: (10, 8) and (8, 8) for all but "n < d"."""
    V, B, D = PARTS[name]
    d1 = V.shape[1]
    W = np.eye(d1 + B.shape[1])
    W[d1:, d1:] = D - D.T
    return np.hstack([V, B]).astype(dtype), W.astype(dtype)


def factored(name: str, k: int | None = None, dtype: type = np.float64, **settings: Any) -> SubsetDistribution:
    """The law by its factors, of fixed size k or else an NDPP."""
    if k is None:
        return NDPP.from_factors(*factors(name, dtype), **settings)
    return KNDPP.from_factors(*factors(name, dtype), k, **settings)


# Kernels that are skew: odd minors vanish, and enumeration leaves rounding in their place.
SKEW = ("skew", "skew pairs")


def table(*left_out: str) -> list:
    """The names of all kernels but some, as parameters of a test; all but the hardest are slow."""
    names = (name for name in KERNELS if name not in left_out)
    return [pytest.param(name, marks=[] if name in HARDEST else pytest.mark.slow) for name in names]


def all_subsets(n: int, low: int = 0, high: int | None = None) -> list[tuple[int, ...]]:
    high = n if high is None else high
    return [subset for k in range(low, high + 1) for subset in itertools.combinations(range(n), k)]


def dense_kernel(V: np.ndarray, B: np.ndarray, D: np.ndarray) -> np.ndarray:
    return V @ V.T + B @ (D - D.T) @ B.T


@cache
def enumerated_minors(name: str) -> dict[tuple[int, ...], float]:
    """det L_S of every subset S, zero where it is zero to rounding; by NumPy on the dense kernel."""
    L = dense_kernel(*PARTS[name])
    minors = {}
    for subset in all_subsets(N, 0, TRUE_RANK[name]):
        block = L[np.ix_(subset, subset)]
        minors[subset] = max(np.linalg.det(block), 0.0) if subset else 1.0
        if name in SKEW and len(subset) % 2:
            minors[subset] = 0.0
    return minors


def enumerated_law(name: str, low: int = 0, high: int = N) -> dict[tuple[int, ...], float]:
    """P(S) of every subset of low .. high items."""
    minors = {s: m for s, m in enumerated_minors(name).items() if low <= len(s) <= high}
    total = sum(minors.values())
    return {s: m / total for s, m in minors.items()}


def inclusion(law: dict[tuple[int, ...], float], n: int = N) -> np.ndarray:
    probs = np.zeros(n)
    for subset, p in law.items():
        probs[list(subset)] += p
    return probs


def sizes(law: dict[tuple[int, ...], float], length: int) -> np.ndarray:
    probs = np.zeros(length)
    for subset, p in law.items():
        probs[len(subset)] += p
    return probs


@cache
def minors_above_rounding(name: str) -> dict[tuple[int, ...], float]:
    """The minors of all subsets. A skew kernel has none of odd size, and what is zero is not left to rounding."""
    minors = dict(enumerated_minors(name))
    for size in range(N + 1):
        of_size = [subset for subset in minors if len(subset) == size]
        largest = max((minors[subset] for subset in of_size), default=0.0)
        for subset in of_size:
            if minors[subset] <= 1e-13 * largest or (name in SKEW and size % 2):
                minors[subset] = 0.0
    return minors


def conditional(
    name: str, include: list[int], exclude: list[int], low: int = 0, high: int = N
) -> dict[tuple[int, ...], float] | None:
    """P(T | include, exclude) of every T of other items, by enumeration; None if what is given is impossible."""
    weights = {}
    for subset, minor in minors_above_rounding(name).items():
        if set(include) <= set(subset) and not set(exclude) & set(subset) and low <= len(subset) <= high:
            weights[tuple(item for item in subset if item not in include)] = minor
    total = sum(weights.values())
    return {T: weight / total for T, weight in weights.items()} if total else None
