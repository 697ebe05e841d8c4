"""Baskets to learn from and to judge by: split, checked against the rank, and what their sizes say."""

from typing import Any

import numpy as np

from numpyro_ndpp.basket_sizes import size_logits_of_baskets
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.subsets import as_padded

__all__ = ["columns_of", "sizes_of", "smallest_size", "split_baskets"]


def columns_of(model: str, rank: int | tuple[int, int], num_items: int) -> tuple[int, int]:
    """The columns of V and of B of a kernel of that rank: half each, those of B in pairs, or as two numbers say.

    :raises ValueError: for numbers out of range.
    """
    # An orthogonal B of as many columns as items would leave nothing to V.
    most = num_items - 1 if model == "ondpp" else None
    if isinstance(rank, (tuple, list)):
        if len(rank) != 2:
            raise ValueError(f"rank must be one number or two, the columns of V and of B, got {rank!r}")
        first = static_int("rank (columns of V)", rank[0], 1)
        second = static_int("rank (columns of B)", rank[1], 0, most, "num_items - 1")
        return first, 0 if model == "symmetric" else second
    rank = static_int("rank", rank, 1)
    second = 0 if model == "symmetric" else 2 * ((rank + 1) // 4)
    if most is not None:
        second = min(second, most // 2 * 2)
    return rank - second, second


def smallest_size(min_size: int | None, num_items: int, *parts: np.ndarray) -> int:
    """0 or 1: whether baskets may be empty, as given, or as the padded baskets say.

    :raises ValueError: if they may not, and some are.
    """
    is_empty = np.concatenate([np.all(part == num_items, axis=1) for part in parts])
    if min_size is None:
        return 0 if is_empty.any() else 1
    min_size = static_int("min_size", min_size, 0, 1)
    if min_size and is_empty.any():
        raise ValueError(
            f"baskets: {is_empty.sum()} of {len(is_empty)} are empty, which min_size=1 has no room for; leave them "
            f"out, or give min_size=0"
        )
    return min_size


def _padded(name: str, baskets: Any, num_items: int, columns: tuple[int, int]) -> np.ndarray:
    """Baskets as padded subsets. Items must be in range and none twice; no basket may be larger than the rank."""
    padded, rank = as_padded(name, baskets, num_items), columns[0] + columns[1] // 2 * 2
    sizes = np.sum(padded < num_items, axis=1)
    if len(sizes) and sizes.max() > rank:
        first = np.argmax(sizes > rank)
        why = (
            " (a skew matrix of odd size is singular: the last column of B counts for nothing)"
            if columns[1] % 2
            else ""
        )
        raise ValueError(
            f"{name}: {np.sum(sizes > rank)} baskets have more items than the rank of {rank}{why}, which gives them "
            f"probability zero (the first is basket {first} with {sizes[first]}); raise the rank or leave them out"
        )
    return padded


def split_baskets(
    baskets: Any, num_items: int, columns: tuple[int, int], validation: Any, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Baskets to learn from and baskets to judge by, checked, as padded subsets."""
    padded = _padded("baskets", baskets, num_items, columns)
    if len(padded) < 2:
        raise ValueError(f"baskets: two baskets at least are needed, got {len(padded)}")
    if validation is not None and not np.isscalar(validation):
        held_out = _padded("validation", validation, num_items, columns)
        if len(held_out) == 0:
            raise ValueError("validation: one basket at least is needed, got none")
        return padded, held_out
    number = min(300, max(1, len(padded) // 10)) if validation is None else validation
    number = static_int("validation (baskets, or how many)", number, 1, len(padded) - 1, "all baskets but one")
    order = np.random.default_rng(seed).permutation(len(padded))
    return padded[np.sort(order[number:])], padded[np.sort(order[:number])]


def sizes_of(settings: dict[str, Any], train: np.ndarray, held_out: np.ndarray) -> tuple[np.ndarray, int] | None:
    """For model "sized": the logarithms of the probabilities of all sizes, and the largest size that is there."""
    if settings["model"] != "sized":
        return None
    num_items, (d1, d2) = settings["num_items"], settings["rank"]
    most = min(num_items, d1 + d2 // 2 * 2)
    logits = size_logits_of_baskets(train, num_items, most, min_size=settings["min_size"])
    largest = max(int(np.sum(part < num_items, axis=1).max()) for part in (train, held_out))
    return logits.astype(np.float32), largest
