"""Baskets from what is in memory: a table with a row for each item of each order, or lists of names."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.catalogue import item_names

__all__ = ["from_names", "from_transactions"]


def from_transactions(frame: Any = None, *, order: Any, item: Any) -> Baskets:
    """Baskets from a row for each item of each order: what shops' databases hold.

    Baskets are in the order in which they are first met. Items are numbered in the order of their names (of their
    numbers, if all are whole numbers). An item that an order names twice counts once. O(rows).

    :param frame: a pandas DataFrame, or anything else that gives a column for ``frame[name]``, such as a dictionary.
        None: the two columns themselves are given.
    :param order: the name of the column that says which order a row belongs to, or the column (r,) itself.
    :param item: the name of the column with the item, or the column itself.
    :return: baskets, and the names of the items.
    :raises ValueError: for a column that is not there, columns of different lengths, no rows, a missing value.
    :raises TypeError: for a name of a column without a frame.

    >>> rows = {"order": [7, 7, 8], "item": ["tea", "milk", "milk"]}
    >>> found = from_transactions(rows, order="order", item="item")
    >>> found.baskets, found.items
    ([[0, 1], [0]], ['milk', 'tea'])
    >>> from_transactions(order=rows["order"], item=rows["item"]) == found
    True
    """
    columns = {"order": _column("order", frame, order), "item": _column("item", frame, item)}
    if len(columns["order"]) != len(columns["item"]):
        raise ValueError(
            f"order and item must be of one length, got {len(columns['order'])} orders and {len(columns['item'])} items"
        )
    if not columns["order"]:
        raise ValueError("order and item have no rows")
    for name, values in columns.items():
        for row, value in enumerate(values):
            # NaN and NaT are the values that differ from themselves; pandas' NA has no truth.
            if value is None or str(value) in ("nan", "NaT", "<NA>", "") or value != value:
                raise ValueError(f"{name}: row {row} has no value ({value!r}); leave such rows out, as by dropna()")
    lists: dict[Any, list[Any]] = {}
    for key, value in zip(columns["order"], columns["item"], strict=True):
        lists.setdefault(key, []).append(value)
    return _numbered(list(lists.values()))


def _column(name: str, frame: Any, given: Any) -> list[Any]:
    if frame is None:
        if isinstance(given, str):
            raise TypeError(f"{name} must be a column of values where there is no frame, got {given!r}")
        values = given
    else:
        try:
            values = frame[given]
        except (KeyError, TypeError, IndexError):
            there = list(getattr(frame, "columns", frame))
            raise ValueError(f"{name}: there is no column {given!r}; the columns are {there}") from None
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one column, got an array of shape {array.shape}")
    # Whole numbers beside missing ones are floats in pandas.
    if array.dtype.kind == "f" and bool(np.all(np.isfinite(array) & (array == np.round(array)))):
        array = array.astype(np.int64)
    return array.tolist()


def from_names(baskets: Iterable[Iterable[Any]], items: Sequence[str] | None = None) -> Baskets:
    """Baskets of names, such as ``[["tea", "milk"], ["tea"]]``, as item numbers. O(entries).

    :param baskets: a list, tuple or set of names for each basket; a pandas Series of lists will do.
    :param items: the names of all items. None: those that are met, in the order of the alphabet.
    :raises ValueError: for a name that is not among ``items``, and for ``items`` with a name twice.
    :raises TypeError: for a text in place of a basket, or in place of ``items``.

    >>> from_names([["tea", "milk"], ["tea"]]).baskets
    [[0, 1], [1]]
    """
    rows = []
    for i, basket in enumerate(baskets):
        if isinstance(basket, (str, bytes)) or not isinstance(basket, Iterable):
            raise TypeError(f"baskets: row {i} must be a list of names, got {basket!r}")
        rows.append(list(basket))
    return _numbered(rows, None if items is None else item_names(items))


def _numbered(rows: list[list[Any]], items: list[str] | None = None) -> Baskets:
    if items is None:
        met = {value for row in rows for value in row}
        are_numbers = all(isinstance(value, int) for value in met)
        items = list(dict.fromkeys(map(str, sorted(met, key=None if are_numbers else str))))
    numbers = {name: number for number, name in enumerate(items)}
    if len(numbers) < len(items):
        twice = next(name for number, name in enumerate(items) if numbers[name] != number)
        raise ValueError(f"items: {twice!r} is there more than once")
    for i, row in enumerate(rows):
        unknown = [value for value in row if str(value) not in numbers]
        if unknown:
            raise ValueError(f"baskets: row {i} has {unknown[0]!r}, which is not among the {len(items)} items")
    return Baskets([sorted({numbers[str(value)] for value in row}) for row in rows], items, {})
