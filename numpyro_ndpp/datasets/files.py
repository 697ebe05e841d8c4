"""Baskets in files: npz with ``indptr``, ``indices`` and ``items``, or text of either layout."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numpyro_ndpp.baskets import Baskets, Subsets
from numpyro_ndpp.catalogue import item_names
from numpyro_ndpp.checkpoints import read_npz, write_whole
from numpyro_ndpp.checks import static_int
from numpyro_ndpp.datasets.text import is_table_of_orders, read_lines, read_orders
from numpyro_ndpp.subsets import as_padded

_ZIP = b"PK\x03\x04"  # how every npz file starts


def save_baskets(path: str | Path, baskets: Subsets, items: Sequence[str]) -> None:
    """Write an npz file that :func:`load_baskets` reads, whole or not at all.

    :param baskets: lists of item numbers, or any other form of :mod:`numpyro_ndpp.baskets`.
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
    items = item_names(items)
    rows = [row[row < len(items)] for row in as_padded("baskets", baskets, len(items))]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    indices = np.concatenate([*rows, np.zeros(0, np.int32)])
    arrays = {"indptr": indptr, "indices": indices, "items": np.array(items, dtype=np.str_)}
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def load_baskets(
    path: str | Path,
    *,
    catalogue: str | Path | Sequence[str] | None = None,
    max_size: int | None = None,
    layout: str | None = None,
    order: str | None = None,
    item: str | None = None,
    progress_bar: bool = False,
) -> Baskets:
    """Baskets from a file. O(entries).

    - npz: ``indptr`` (b+1,), ``indices`` and the names ``items`` (n,). Basket i has the items
      ``indices[indptr[i]:indptr[i+1]]``.
    - Text with one basket per line. Commas separate its items. A line without commas is one name, or has blanks between
      numbers. Items are numbers from 0 on, or names; if they are names without a catalogue, the catalogue is what is
      met, in the order of the alphabet.
    - Text or xlsx with a line for each item of each order, in two columns that commas, semicolons or tabs separate. It
      is known by its header, such as ``order,item``, or by ``order`` and ``item``. Items are names.

    Empty lines are passed over. An item that a basket names twice counts once.

    :param catalogue: the names of all items, or a text file with one name per line, for text with one basket per line.
    :param max_size: the most items of a basket; a larger one is refused.
    :param layout: ``"baskets"`` (one per line) or ``"orders"`` (a line for each item of each order), for text; None: as
        the file looks. It must be given where every line has two items and there is no header, which may be either.
    :param order, item: the columns with the order and the item, by their names in the header, if there are more.
    :param progress_bar: whether to show a bar for a large file of orders.
    :raises ValueError: for an empty file, an item that is no number or not in the catalogue, a basket that is too
        large; the message names the file and the line. Also for a catalogue with a blank or repeated name, or beside
        npz or orders, which have their own; for text that may be of either layout; for numbers among names, and names
        without any comma. Without a catalogue also for codes: numbers past two million and past a hundred times
        the number of items met.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "baskets.txt"
    >>> _ = path.write_text("tea, milk" + chr(10) + "tea" + chr(10))
    >>> load_baskets(path, catalogue=["milk", "sugar", "tea"]).baskets
    [[0, 2], [2]]
    >>> _ = path.write_text(chr(10).join(["order,item", "7,tea", "7,milk", "8,tea"]))
    >>> load_baskets(path)
    Baskets(baskets=[[0, 1], [1]], items=['milk', 'tea'], dropped={})
    """
    path, max_size = Path(path), None if max_size is None else static_int("max_size", max_size, 0)
    if layout not in (None, "baskets", "orders"):
        raise ValueError(f"layout must be 'baskets' or 'orders', got {layout!r}")
    if (order is None) != (item is None):
        raise ValueError(f"order and item are given together, got order={order!r} and item={item!r}")
    with path.open("rb") as file:
        is_sheet = path.suffix.lower() == ".xlsx"
        is_npz = not is_sheet and (path.suffix.lower() == ".npz" or file.read(len(_ZIP)) == _ZIP)
    if is_npz and (catalogue is not None or layout is not None or order is not None):
        given = "catalogue" if catalogue is not None else "layout" if layout is not None else "order"
        raise ValueError(f"{given} is for text; {path} is an npz file, which has the names of its items")
    is_orders = is_sheet or layout == "orders" or order is not None
    if not (is_npz or is_orders) and layout is None and catalogue is None:
        is_orders = is_table_of_orders(path)
    if is_orders and layout == "baskets":
        raise ValueError(f"order and item are for layout='orders', got layout='baskets' for {path}")
    if is_orders and catalogue is not None:
        raise ValueError(f"catalogue is for one basket per line; the orders of {path} name their items")
    if is_npz:
        baskets, items, what = *_from_npz(path), "basket"
    elif is_orders:
        found = read_orders(path, order, item, progress_bar)
        baskets, items, what = list(enumerate(found.baskets)), found.items, "basket"
    else:
        baskets, items, what = *read_lines(path, catalogue), "line"
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
