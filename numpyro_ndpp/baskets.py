"""Baskets as users have them, as rows of item numbers.

These are one and the same, for a catalogue of n = 4 items:

- lists, tuples, sets or arrays of item numbers, one for each basket, in a list, a tuple or a pandas Series:
  ``[[0, 2], {1}]``;
- rows that are filled up with n: ``np.array([[0, 2], [1, 4]])``;
- a matrix of n columns of zeros and ones, as a NumPy or JAX array, a sparse matrix of SciPy, or a pandas DataFrame:
  ``np.array([[1, 0, 1, 0], [0, 1, 0, 0]])``;
- :class:`Baskets`, which have the names of their items too.

An array of zeros and ones with n columns is a matrix of zeros and ones: as rows of item numbers it would name items
more than once. Only for n = 1 and n = 2 it may be either. It is refused there; booleans, or lists, say which it is.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax import Array

__all__ = ["Baskets", "Subsets", "item_rows", "with_names"]

_FEW_ITEMS = 2  # rows of zeros and ones of this width may be item numbers too


class Baskets(NamedTuple):
    """Baskets as lists of item numbers, the name of every item, and how many were dropped, by reason."""

    baskets: list[list[int]]
    items: list[str]
    dropped: dict[str, int]


class _Sparse(Protocol):
    def tocsr(self) -> Any:
        """The same matrix by its rows."""


Subsets = Iterable[Iterable[int]] | np.ndarray | Array | Baskets | _Sparse


def with_names(given: Any) -> tuple[Any, list[str] | None]:
    """Baskets without the names that come with them, and these names: those of :class:`Baskets`, columns of a table."""
    if isinstance(given, tuple) and hasattr(given, "baskets") and hasattr(given, "items"):
        return given.baskets, list(given.items)
    if _is_table(given):
        return given, [str(name) for name in given.columns]
    return given, None


def _is_table(given: Any) -> bool:
    """Whether it is a pandas DataFrame. pandas is not imported for it."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def item_rows(name: str, given: Any, num_items: int) -> list[np.ndarray]:
    """Baskets of any form as arrays of integers, one for each basket. Whether items are in range is not looked at.

    O(entries) for lists, padded rows and sparse matrices, O(N n) for other matrices.

    :raises ValueError: for a matrix of another number of columns or of other numbers than 0 and 1, an array that may be
        read in two ways, and baskets whose names are those of another number of items.
    :raises TypeError: for items that are not integers, and for what cannot be gone through.
    """
    plain, names = with_names(given)
    if _is_table(plain):
        if plain.shape[1] != num_items:
            raise ValueError(
                f"{name} is a table of {plain.shape[1]} columns, but there are {num_items} items; for a table with a "
                f"row for each item of each order use datasets.from_transactions"
            )
        return _of_ones(name, plain.to_numpy())
    if names is not None and len(names) != num_items:
        raise ValueError(f"{name} has the names of {len(names)} items, but there are {num_items} items")
    if hasattr(plain, "tocsr"):
        return _of_sparse(name, plain, num_items)
    if isinstance(plain, (np.ndarray, Array)) and not (plain.ndim == 1 and plain.dtype == object):
        return _of_array(name, np.asarray(plain), num_items)
    return _of_sequences(name, plain)


def _of_sequences(name: str, given: Any) -> list[np.ndarray]:
    try:
        rows = [_row(row) for row in given]
    except TypeError:
        raise TypeError(f"{name} must be lists of items, got {given!r}") from None
    for i, row in enumerate(rows):
        if row.ndim != 1:
            raise ValueError(f"{name}: row {i} must be a list of items, got {row.tolist()!r}")
        if row.size and not np.issubdtype(row.dtype, np.integer):
            way_out = ""
            if row.dtype.kind in "US":
                way_out = "; for names use datasets.from_names"
            elif row.dtype == bool:
                way_out = "; a matrix of zeros and ones must be one array"
            raise TypeError(f"{name}: row {i} has items of type {row.dtype}; item numbers are integers{way_out}")
    return rows


def _row(row: Any) -> np.ndarray:
    is_collection = isinstance(row, Iterable) and not isinstance(row, (str, bytes, np.ndarray, Array))
    return np.asarray(list(row) if is_collection else row)


def _of_array(name: str, rows: np.ndarray, num_items: int) -> list[np.ndarray]:
    if rows.ndim != 2:
        raise ValueError(f"{name} must be lists of items or padded subsets (s, m), got shape {rows.shape}")
    if rows.dtype == object:
        return _of_sequences(name, [[item for item in row if item != num_items] for row in rows.tolist()])
    width = rows.shape[1]
    is_binary = rows.size > 0 and bool(np.all((rows == 0) | (rows == 1)))
    if rows.dtype == bool or (is_binary and (width > _FEW_ITEMS or rows.dtype.kind == "f")):
        if width != num_items:
            raise ValueError(
                f"{name} is a matrix of zeros and ones with {width} columns, but there are {num_items} items; give it "
                f"a column for each of them"
            )
        return _of_ones(name, rows)
    if is_binary and width == num_items:
        # A row of two equal numbers is no set of items.
        if width == 1 or bool(np.all(rows[:, 0] != rows[:, 1])):
            raise ValueError(
                f"{name} may be a matrix of zeros and ones or rows of item numbers: with {num_items} items it can be "
                f"read in both ways; give booleans for zeros and ones (matrix == 1), or lists of item numbers "
                f"(rows.tolist())"
            )
        return _of_ones(name, rows)
    return _of_sequences(name, [row[row != num_items] for row in rows])


def _check_ones(name: str, others: np.ndarray) -> None:
    """Refuse numbers other than zero and one, given which of them there are."""
    if others.size:
        raise ValueError(
            f"{name} must be a matrix of zeros and ones, but it has {others.flat[0]!s}; counts become zeros and ones "
            f"by matrix > 0"
        )


def _of_ones(name: str, matrix: np.ndarray) -> list[np.ndarray]:
    _check_ones(name, matrix[(matrix != 0) & (matrix != 1)])
    return [np.flatnonzero(row) for row in matrix]


def _of_sparse(name: str, given: Any, num_items: int) -> list[np.ndarray]:
    if given.shape[1] != num_items:
        raise ValueError(f"{name} is a matrix of {given.shape[1]} columns, but there are {num_items} items")
    matrix = given.tocsr(copy=True)  # what follows works in place
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    _check_ones(name, matrix.data[matrix.data != 1])
    return np.split(matrix.indices.astype(np.int64), matrix.indptr[1:-1]) if given.shape[0] else []
