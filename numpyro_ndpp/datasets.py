"""Baskets from files: npz with ``indptr``, ``indices`` and ``items``, or text with one basket per line."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Baskets", "load_baskets"]


class Baskets(NamedTuple):
    """Baskets as lists of item numbers, and the name of every item."""

    baskets: list[list[int]]
    items: list[str]


def load_baskets(path: str | Path, *, catalogue: Sequence[str] | None = None, max_size: int | None = None) -> Baskets:
    """Baskets from a file.

    A file that ends in ``.npz`` holds ``indptr`` (b+1,), ``indices`` and the names ``items`` (n,): basket i has the
    items ``indices[indptr[i]:indptr[i+1]]``. Any other is text with one basket per line, its items separated by commas
    or, in a line without any, by blanks; empty lines are passed over. An item that a basket names twice counts once.

    :param catalogue: the names of all items, for text that names them; without it items are numbers from 0 on.
    :param max_size: baskets with more items are refused.
    :raises ValueError: for an empty file, an item that is no number or not in the catalogue, a basket that is too
        large; the message names the file and the line.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "baskets.txt"
    >>> _ = path.write_text("tea, milk" + chr(10) + "tea" + chr(10))
    >>> load_baskets(path, catalogue=["milk", "sugar", "tea"]).baskets
    [[0, 2], [2]]
    """
    path = Path(path)
    if path.suffix == ".npz":
        baskets, items, what = *_from_npz(path), "basket"
    else:
        baskets, items, what = *_from_text(path, catalogue), "line"
    if not baskets:
        raise ValueError(f"{path} has no baskets")
    for place, basket in baskets:
        if max_size is not None and len(basket) > max_size:
            raise ValueError(f"{path}, {what} {place}: {len(basket)} items, but at most {max_size} are allowed")
    return Baskets([basket for _, basket in baskets], items)


def _from_npz(path: Path) -> tuple[list[tuple[int, list[int]]], list[str]]:
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in ("indptr", "indices", "items") if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {missing[0]!r}; it has {sorted(file)}")
        indptr, indices, items = (file[name] for name in ("indptr", "indices", "items"))
    ends_fit = indptr.ndim == 1 and indptr.size > 0 and indptr[0] == 0 and indptr[-1] == len(indices)
    if not ends_fit or (np.diff(indptr) < 0).any():
        raise ValueError(f"{path}: indptr must rise from 0 to the length of indices, {len(indices)}")
    bad = (indices < 0) | (indices >= len(items))
    if bad.any():
        place = int(np.searchsorted(indptr, np.argmax(bad), side="right")) - 1
        raise ValueError(f"{path}, basket {place}: item {indices[bad][0]}; items must be 0 to {len(items) - 1}")
    rows = (np.unique(indices[low:high]).tolist() for low, high in itertools.pairwise(indptr))
    return list(enumerate(rows)), [str(name) for name in items]


def _from_text(path: Path, catalogue: Sequence[str] | None) -> tuple[list[tuple[int, list[int]]], list[str]]:
    numbers = None if catalogue is None else {name: number for number, name in enumerate(catalogue)}
    baskets = []
    for place, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        basket = set()
        for word in (word.strip() for word in (line.split(",") if "," in line else line.split())):
            if numbers is not None:
                if word not in numbers:
                    raise ValueError(f"{path}, line {place}: {word!r} is not in the catalogue")
                basket.add(numbers[word])
            elif word.isdecimal():
                basket.add(int(word))
            else:
                raise ValueError(
                    f"{path}, line {place}: {word!r} is no item number; names need a catalogue of all items"
                )
        baskets.append((place, sorted(basket)))
    if catalogue is not None:
        return baskets, list(catalogue)
    num_items = 1 + max((item for _, basket in baskets for item in basket), default=-1)
    return baskets, [str(number) for number in range(num_items)]
