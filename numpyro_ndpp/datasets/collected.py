"""Baskets from pairs of a basket and an item, one after the other, in any order."""

import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np

from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.datasets.lines import MOST_DIGITS


class Collected:
    """Pairs of a basket and an item, as they are read, in two arrays of numbers: 16 bytes a pair."""

    def __init__(self, path: str | Path, max_size: int | None, *, by_number: bool = False) -> None:
        self.path, self.by_number = path, by_number
        self.max_size = None if max_size is None else static_int("max_size", max_size, 0)
        self.dropped: dict[str, int] = {}
        self.of_basket: dict[str, int] = {}
        self.of_item: dict[str, int] = {}
        self.pairs = array("q"), array("q")

    def add(self, line: int, basket: str, item: str) -> None:
        """A pair, and the line that it is from.

        :raises ValueError: for a blank name, or an item that is no number where items are numbers.
        """
        if not basket.strip() or not item.strip():
            raise ValueError(f"{self.path}, line {line}: the {'item' if basket.strip() else 'basket'} has no name")
        if self.by_number and not (item.isdecimal() and len(item) <= MOST_DIGITS):
            raise ValueError(f"{self.path}, line {line}: {item[:40]!r} is no item number")
        self.pairs[0].append(self.of_basket.setdefault(basket, len(self.of_basket)))
        self.pairs[1].append(self.of_item.setdefault(item, len(self.of_item)))

    def drop(self, reason: str, number: int = 1) -> None:
        """Count what is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + number

    def _said(self) -> str:
        """The end of a sentence that says what was dropped; empty if nothing was."""
        counted = ", ".join(f"{number:,} {reason}" for reason, number in self.dropped.items())
        return counted and f"; dropped: {counted}"

    def baskets(self, name: Callable[[str], str] = str, *, only_kept: bool = False) -> Baskets:
        """The baskets that are small enough, with the items in the order of their codes. What was dropped is printed.

        :param name: the name of an item, by its code.
        :param only_kept: whether the catalogue has only the items of baskets that are kept.
        :raises ValueError: if no basket is left.
        """
        path = self.path
        if not self.of_basket:
            raise ValueError(f"{path} has no baskets" + self._said())
        rows, items = (np.frombuffer(numbers, dtype=np.int64) for numbers in self.pairs)
        if self.max_size is not None:
            large = np.bincount(rows) > self.max_size
            if large.all():
                raise ValueError(f"{path} has no baskets of at most {self.max_size} lines" + self._said())
            if large.any():
                self.drop(f"baskets with more than {self.max_size} lines", int(large.sum()))
            rows, items = rows[~large[rows]], items[~large[rows]]
        codes = list(self.of_item)
        if only_kept:
            used = np.unique(items)
            codes, items = [codes[i] for i in used], np.searchsorted(used, items)
        order = sorted(range(len(codes)), key=lambda i: int(codes[i]) if self.by_number else codes[i])
        place = np.empty(len(codes), np.int64)
        place[order] = np.arange(len(codes))
        rows, items = np.divmod(np.unique(rows * len(codes) + place[items]), len(codes))
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        baskets = [row.tolist() for row in np.split(items, starts[1:])]
        if self.dropped:
            print(f"{path}: {len(baskets):,} baskets of {len(codes):,} items" + self._said(), file=sys.stderr)
        return Baskets(baskets, [name(codes[i]) for i in order], self.dropped)
