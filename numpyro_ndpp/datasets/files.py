"""Baskets in files of our own formats: npz with ``indptr``, ``indices`` and ``items``, or text, one basket per line."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpyro_ndpp.checkpoints import read_npz, write_whole
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.datasets.lines import MOST_DIGITS, numbered_lines
from numpyro_ndpp.subsets import Subsets, as_padded

# Item numbers have 32 bits, and one more stands for padding.
_MOST_ITEMS = 2**31 - 1
# Numbers may have gaps: items that are never bought. They are codes if less than one in so many is met.
_SPARSEST, _FEW_ITEMS = 100, 20_000
_ZIP = b"PK\x03\x04"  # how every npz file starts


class Baskets(NamedTuple):
    """Baskets as lists of item numbers, the name of every item, and how many were dropped, by reason."""

    baskets: list[list[int]]
    items: list[str]
    dropped: dict[str, int]


def save_baskets(path: str | Path, baskets: Subsets, items: Sequence[str]) -> None:
    """Write an npz file that :func:`load_baskets` reads, whole or not at all.

    :param baskets: lists of item numbers, or padded subsets (N, m).
    :param items: the name of every item.
    :raises ValueError: for items out of range or repeated within a basket, and for a name that ends in a null byte.
    :raises TypeError: for items that are not integers, and one text in place of names.
    :raises OSError: if it cannot be written; a file of that name stays as it was.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "baskets.npz"
    >>> save_baskets(path, [[0, 1], [1]], ["tea", "milk"])
    >>> load_baskets(path).baskets
    [[0, 1], [1]]
    """
    if isinstance(items, (str, bytes)):
        raise TypeError(f"items must be the names of all items, got one text, {items!r}")
    items = list(items)
    nested = [name for name in items if np.ndim(name)]
    if nested:
        raise TypeError(f"items must be a name for each item, got {nested[0]!r} for one")
    ended = [name for name in items if isinstance(name, (str, bytes)) and name[-1:] in ("\0", b"\0")]
    if ended:
        raise ValueError(f"items: {ended[0]!r} ends in a null byte, which a file of names does not keep")
    rows = [row[row < len(items)] for row in as_padded("baskets", baskets, len(items))]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    indices = np.concatenate([*rows, np.zeros(0, np.int32)])
    arrays = {"indptr": indptr, "indices": indices, "items": np.array(items, dtype=np.str_)}
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def load_baskets(
    path: str | Path, *, catalogue: str | Path | Sequence[str] | None = None, max_size: int | None = None
) -> Baskets:
    """Baskets from a file.

    An npz file holds ``indptr`` (b+1,), ``indices`` and the names ``items`` (n,): basket i has the items
    ``indices[indptr[i]:indptr[i+1]]``. Any other file is text with one basket per line. Commas separate its items; a
    line without commas is one name of the catalogue, or has blanks between its items. Empty lines are passed over. An
    item that a basket names twice counts once.

    :param catalogue: the names of all items, or a text file with one name per line, for text that names items. Without
        it items are numbers from 0 on.
    :param max_size: the most items of a basket; a larger one is refused.
    :raises ValueError: for an empty file, an item that is no number or not in the catalogue, a basket that is too
        large; the message names the file and the line. Also for a catalogue with a blank or repeated name, or beside
        npz, which has its own. Without a catalogue also for codes: numbers past two million and past a hundred times
        the number of items met.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "baskets.txt"
    >>> _ = path.write_text("tea, milk" + chr(10) + "tea" + chr(10))
    >>> load_baskets(path, catalogue=["milk", "sugar", "tea"]).baskets
    [[0, 2], [2]]
    """
    path, max_size = Path(path), None if max_size is None else static_int("max_size", max_size, 0)
    with path.open("rb") as file:
        is_npz = path.suffix.lower() == ".npz" or file.read(len(_ZIP)) == _ZIP
    if is_npz and catalogue is not None:
        raise ValueError(f"catalogue is for text; {path} is an npz file, which has the names of its items")
    if is_npz:
        baskets, items, what = *_from_npz(path), "basket"
    else:
        baskets, items, what = *_from_text(path, catalogue), "line"
    if not baskets:
        raise ValueError(f"{path} has no baskets")
    for place, basket in baskets:
        if max_size is not None and len(basket) > max_size:
            raise ValueError(f"{path}, {what} {place}: {len(basket)} items, but at most {max_size} are allowed")
    return Baskets([basket for _, basket in baskets], items, {})


def _from_npz(path: Path) -> tuple[list[tuple[int, list[int]]], list[str]]:
    names = ("indptr", "indices", "items")
    found: list[str] = []

    def read(file: Any) -> dict[str, np.ndarray]:
        found.extend(sorted(file))
        return {name: file[name] for name in names if name in file}

    arrays = read_npz(path, "an npz file of baskets", read)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"{path} has no array {missing[0]!r}; it has {found}")
    indptr, indices, items = (np.atleast_1d(arrays[name]) for name in names)
    for name in ("indptr", "indices"):
        # NumPy's empty lists are of floating type.
        if arrays[name].size and not np.issubdtype(arrays[name].dtype, np.integer):
            raise ValueError(f"{path}: {name} must be integers, got {arrays[name].dtype}")
    if indices.ndim > 1 or items.ndim > 1:
        raise ValueError(f"{path}: indices and items must have one dimension, got {indices.ndim} and {items.ndim}")
    ends_fit = indptr.ndim == 1 and indptr.size > 0 and indptr[0] == 0 and indptr[-1] == len(indices)
    if not ends_fit or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"{path}: indptr must rise from 0 to the length of indices, {len(indices)}")
    bad = (indices < 0) | (indices >= len(items))
    if bad.any():
        place = int(np.searchsorted(indptr, np.argmax(bad), side="right")) - 1
        raise ValueError(f"{path}, basket {place}: item {indices[bad][0]}; items must be 0 to {len(items) - 1}")
    rows = (np.unique(indices[low:high]).tolist() for low, high in itertools.pairwise(indptr))
    if items.dtype.kind == "S":
        items = np.char.decode(items, "utf-8", "replace")
    return list(enumerate(rows)), [str(name) for name in items]


def _from_text(
    path: Path, catalogue: str | Path | Sequence[str] | None
) -> tuple[list[tuple[int, list[int]]], list[str]]:
    numbers: dict[str, int] = {}
    if isinstance(catalogue, (str, Path)):
        catalogue = [line for _, line in numbered_lines(Path(catalogue), progress_bar=False)]
    names = None if catalogue is None else [str(name).strip() for name in catalogue]  # as the words of a line are
    for number, name in enumerate(names or ()):
        if not name:
            raise ValueError(f"catalogue: name {number} is blank")
        if name in numbers:
            raise ValueError(f"catalogue: {name!r} is there more than once")
        numbers[name] = number
    baskets = []
    for place, line in numbered_lines(path, progress_bar=False):
        basket, line = set(), line.strip()
        if "\r" in line:
            raise ValueError(f"{path}, line {place}: lines must end with a line feed, not with a carriage return alone")
        words = line.removesuffix(",").split(",") if "," in line else line.split()
        if line in numbers:
            words = [line]  # a name may have blanks
        for word in map(str.strip, words):
            if names is not None:
                if word not in numbers:
                    raise ValueError(f"{path}, line {place}: {word!r} is not in the catalogue")
                basket.add(numbers[word])
            elif not word.isdecimal():
                raise ValueError(
                    f"{path}, line {place}: {word!r} is no item number; names need a catalogue of all items"
                )
            elif len(word) > MOST_DIGITS or int(word) >= _MOST_ITEMS:
                raise ValueError(
                    f"{path}, line {place}: {word[:40]} is too large for an item number; codes need a catalogue of all "
                    f"items"
                )
            else:
                basket.add(int(word))
        baskets.append((place, sorted(basket)))
    if names is not None:
        return baskets, names
    items = set(itertools.chain.from_iterable(basket for _, basket in baskets))
    num_items = 1 + max(items, default=-1)
    if num_items > _SPARSEST * max(len(items), _FEW_ITEMS):
        raise ValueError(
            f"{path}: {len(items)} items have numbers up to {num_items - 1}; codes need a catalogue of all items (for "
            f"numbers that are meant, map(str, range({num_items})))"
        )
    return baskets, [str(number) for number in range(num_items)]
