r"""Baskets: simulated ones whose law is known, files of our own formats, and the papers' data as published.

A basket is a list of item numbers, increasing. Our formats are npz with ``indptr``, ``indices`` and ``items``, and text
with one basket per line. The loaders of published data read the publishers' own files line by line, number the items
in the order of their codes, and drop baskets of more than 100 lines, as the papers do; what is dropped is counted and
said.
"""

import csv
import gzip
import itertools
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import numpy as np
from tqdm.auto import tqdm

from numpyro_ndpp.checkpoints import read_npz, write_whole
from numpyro_ndpp.distributions import NDPP
from numpyro_ndpp.samplers import Cholesky
from numpyro_ndpp.subsets import Subsets, as_padded, unpad_subsets

__all__ = [
    "Baskets",
    "SimulatedBaskets",
    "load_baskets",
    "load_goodreads",
    "load_instacart",
    "load_million_song",
    "load_recipes",
    "load_uk_retail",
    "save_baskets",
    "simulate_baskets",
]

_BAR_DELAY = 2.0  # seconds before a progress bar is shown
# Item numbers have 32 bits, and one more stands for padding.
_MOST_ITEMS = 2**31 - 1
_MOST_DIGITS = 100  # of a number, with zeros in front
# Numbers without gaps are expected, as far as what is never bought has one too: not of so many items one alone.
_SPARSEST, _FEW_ITEMS = 100, 20_000
_LINES_PER_UPDATE = 2**14
_ZIP = b"PK\x03\x04"  # how every npz file starts


class Baskets(NamedTuple):
    """Baskets as lists of item numbers, the name of every item, and how much was dropped, by reason."""

    baskets: list[list[int]]
    items: list[str]
    dropped: dict[str, int]


# --- Simulated -------------------------------------------------------------------------------------------------------

SHOP = ("tea", "coffee", "bread", "butter", "pasta", "sauce", "cola", "juice", "soap", "candles", "rice", "beans")


class SimulatedBaskets(NamedTuple):
    """Baskets, the name of every item, the pairs that attract and those that repel, and the law they come from."""

    baskets: list[list[int]]
    items: list[str]
    complements: list[tuple[int, int]]
    substitutes: list[tuple[int, int]]
    law: NDPP


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

    Substitutes share a direction of V; complements are tied by one skew pair of B and D; other items are independent.
    An item may be in one pair at most. The kernel has a column for every item: for up to some hundreds of them.

    :raises ValueError: for a pair of one item with itself or one out of range, an item in two pairs, a negative number
        of baskets.

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
    if num_baskets < 0:
        raise ValueError(f"num_baskets must not be negative, got {num_baskets}")
    V, B, D = 0.6 * np.eye(n), np.zeros((n, num_skew)), np.zeros((num_skew, num_skew))
    for first, second in substitutes:
        V[second] = 0.95 * V[first] + 0.2 * V[second]
    for j, (first, second) in enumerate(complements):
        B[first, 2 * j] = B[second, 2 * j + 1] = 0.9
        D[2 * j, 2 * j + 1] = 1.0
    root = np.sqrt(_scale_of_mean_size(V @ V.T + B @ (D - D.T) @ B.T, expected_size))
    law = NDPP(root * V, root * B, D, sampler=Cholesky())
    baskets = unpad_subsets(law.sample(jax.random.key(seed), (num_baskets,)), n)
    return SimulatedBaskets(baskets, list(items), list(complements), list(substitutes), law)


def _scale_of_mean_size(L: np.ndarray, expected_size: float) -> float:
    """The number to multiply a kernel of full rank with, so that subsets have that many items on average.

    :meth:`~numpyro_ndpp.NDPP.with_expected_size` finds it for any kernel; for a dense one, by bisection in NumPy, there
    is nothing to compile.
    """
    if not 0 < expected_size < len(L):
        raise ValueError(f"expected_size must be between 0 and {len(L)}, both exclusive, got {expected_size}")
    eigenvalues = np.linalg.eigvals(L)
    low, high = -100.0, 100.0  # of the logarithm
    for _ in range(100):
        middle = (low + high) / 2
        scaled = np.exp(middle) * eigenvalues
        low, high = (middle, high) if np.sum(scaled / (1 + scaled)).real < expected_size else (low, middle)
    return float(np.exp(middle))


# --- Our formats -----------------------------------------------------------------------------------------------------


def save_baskets(path: str | Path, baskets: Subsets, items: Sequence[str]) -> None:
    """Write an npz file that :func:`load_baskets` reads, whole or not at all.

    :param baskets: lists of item numbers, or padded subsets (N, m).
    :param items: the name of every item.
    :raises ValueError: for items out of range or repeated within a basket, and for a name that ends in a null byte.
    :raises TypeError: for items that are not integers, and one text in place of names.
    :raises OSError: if it cannot be written, for want of space for example; a file of that name stays as it was.

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
    ``indices[indptr[i]:indptr[i+1]]``. Any other is text with one basket per line, its items separated by commas or, in
    a line without any that is not itself a name of the catalogue, by blanks; empty lines are passed over. An item that
    a basket names twice counts once.

    :param catalogue: the names of all items, for text that names them, or a text file with one name per line; without
        it items are numbers from 0 on.
    :param max_size: baskets with more items are refused.
    :raises ValueError: for an empty file, an item that is no number or not in the catalogue, a basket that is too
        large; the message names the file and the line. Without a catalogue also for numbers past two million and a
        hundred times the number of items met, which are codes. For a catalogue beside npz, which has its own, and for
        one with a name that is blank or there twice.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "baskets.txt"
    >>> _ = path.write_text("tea, milk" + chr(10) + "tea" + chr(10))
    >>> load_baskets(path, catalogue=["milk", "sugar", "tea"]).baskets
    [[0, 2], [2]]
    """
    path = Path(path)
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
        catalogue = [line for _, line in _lines(Path(catalogue), progress_bar=False)]
    names = None if catalogue is None else [str(name).strip() for name in catalogue]  # as the words of a line are
    for number, name in enumerate(names or ()):
        if not name:
            raise ValueError(f"catalogue: name {number} is blank")
        if name in numbers:
            raise ValueError(f"catalogue: {name!r} is there more than once")
        numbers[name] = number
    baskets = []
    for place, line in _lines(path, progress_bar=False):
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
            elif len(word) > _MOST_DIGITS or int(word) >= _MOST_ITEMS:
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


# --- Published data --------------------------------------------------------------------------------------------------


def load_uk_retail(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """UCI *Online Retail*, the publisher's xlsx or a csv of it: one basket per invoice.

    Rows with a quantity of zero or less (returns) are dropped. An item is a stock code; its name is the code and its
    most frequent description.

    :param max_size: baskets with more lines are dropped, counted before repeated items are merged, as published; None:
        none is.
    :raises ValueError: for a file that cannot be read so; the message names the file and the line.
    """
    wanted = ("InvoiceNo", "StockCode", "Description", "Quantity")
    names: dict[str, dict[str, int]] = {}
    collected = _Collected(path, max_size)
    for line, (invoice, code, description, quantity) in _table_rows(Path(path), wanted, progress_bar):
        try:
            number = float(quantity)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{path}, line {line}: Quantity is {quantity!r}, which is no number")
        if number <= 0:
            collected.drop("rows with a quantity of zero or less")
            continue
        described = names.setdefault(code, {})
        described[description.strip()] = described.get(description.strip(), 0) + 1
        collected.add(line, invoice, code)

    def name(code: str) -> str:
        return f"{code} {max(names[code], key=lambda text: (names[code][text], text))}".strip()

    return collected.baskets(name)


def load_recipes(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """Food.com *PP_recipes.csv* (Majumder et al. 2019): one basket per recipe, items are ingredient ids.

    Parameters and errors are those of :func:`load_uk_retail`.
    """
    collected = _Collected(path, max_size, by_number=True)
    for line, (recipe, ids) in _table_rows(Path(path), ("id", "ingredient_ids"), progress_bar):
        if not re.fullmatch(r"\s*\[\s*(\d+\s*(,\s*\d+\s*)*)?\]\s*", ids):
            raise ValueError(f"{path}, line {line}: ingredient_ids is {ids[:40]!r}, not a list of numbers like [1, 2]")
        ingredients = re.findall(r"\d+", ids)
        if not ingredients:
            collected.drop("recipes without ingredients")
        for ingredient in ingredients:
            collected.add(line, recipe, ingredient)
    return collected.baskets()


def load_instacart(
    orders: str | Path, products: str | Path, *, max_size: int | None = 100, progress_bar: bool = True
) -> Baskets:
    """Instacart 2017, *order_products__prior.csv* with *products.csv*: one basket per order, items are products.

    Products that no order names are left out. Other parameters and errors are those of :func:`load_uk_retail`.
    """
    columns = ("product_id", "product_name")
    names: dict[str, str] = {}
    for line, (product, name) in _table_rows(Path(products), columns, progress_bar):
        if names.setdefault(product, name) != name:
            raise ValueError(f"{products}, line {line}: product {product!r} is {name!r}, and was {names[product]!r}")
    collected = _Collected(orders, max_size, by_number=True)
    for line, (order, product) in _table_rows(Path(orders), ("order_id", "product_id"), progress_bar):
        if product not in names:
            raise ValueError(f"{orders}, line {line}: product {product!r} is not in {products}")
        collected.add(line, order, product)
    return collected.baskets(names.__getitem__)


def load_million_song(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """Echo Nest *train_triplets.txt* (McFee et al. 2012): one basket per listener, items are songs.

    The catalogue has the songs of the baskets that are kept, as published. Other parameters and errors are those of
    :func:`load_uk_retail`.
    """
    collected = _Collected(path, max_size)
    for number, line in _lines(Path(path), progress_bar):
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != 3:
            raise ValueError(
                f"{path}, line {number}: a listener, a song and a count with tabs between, got {line[:60]!r}"
            )
        collected.add(number, fields[0], fields[1])
    return collected.baskets(only_kept=True)


def load_goodreads(path: str | Path, *, max_size: int | None = 100, progress_bar: bool = True) -> Baskets:
    """UCSD *Goodreads* interactions or reviews, csv or json (gzipped or not): one basket per reader, items are books.

    The paper's baskets are the books that a reader has reviewed: rows of a csv whose ``is_reviewed`` is 0, and
    records of a json whose ``review_text_incomplete`` is there and empty or null, are dropped. The catalogue has the
    books of the baskets that are kept. Other parameters and errors are those of :func:`load_uk_retail`.
    """
    path, unreviewed = Path(path), "books that were not reviewed"
    collected = _Collected(path, max_size, by_number=True)
    if ".json" in map(str.lower, path.suffixes):
        for number, line in _lines(path, progress_bar):
            try:
                record = json.loads(line)
                reader, book = record["user_id"], record["book_id"]
                reviewed = record.get("review_text_incomplete", "a review") not in ("", None)
            except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
                raise ValueError(
                    f"{path}, line {number}: an object with user_id and book_id, got {line[:60]!r}"
                ) from None
            if reviewed:
                collected.add(number, "" if reader is None else str(reader), "" if book is None else str(book))
            else:
                collected.drop(unreviewed)
    else:
        for number, (reader, book, flag) in _table_rows(path, ("user_id", "book_id", "is_reviewed"), progress_bar):
            if flag not in ("0", "1"):
                raise ValueError(f"{path}, line {number}: is_reviewed is {flag[:40]!r}, not 0 or 1")
            if flag == "1":
                collected.add(number, reader, book)
            else:
                collected.drop(unreviewed)
    return collected.baskets(only_kept=True)


class _Collected:
    """Pairs of a basket and an item as they are read, in two arrays of numbers."""

    def __init__(self, path: str | Path, max_size: int | None, *, by_number: bool = False) -> None:
        self.path, self.max_size, self.by_number = path, max_size, by_number
        self.dropped: dict[str, int] = {}
        self.of_basket: dict[str, int] = {}
        self.of_item: dict[str, int] = {}
        self.pairs = array("q"), array("q")

    def add(self, line: int, basket: str, item: str) -> None:
        if not basket.strip() or not item.strip():
            raise ValueError(f"{self.path}, line {line}: the {'item' if basket.strip() else 'basket'} has no name")
        if self.by_number and not (item.isdecimal() and len(item) <= _MOST_DIGITS):
            raise ValueError(f"{self.path}, line {line}: {item[:40]!r} is no item number")
        self.pairs[0].append(self.of_basket.setdefault(basket, len(self.of_basket)))
        self.pairs[1].append(self.of_item.setdefault(item, len(self.of_item)))

    def drop(self, reason: str, number: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + number

    def _said(self) -> str:
        """What was dropped so far, as the end of a sentence; nothing if nothing was."""
        counted = ", ".join(f"{number:,} {reason}" for reason, number in self.dropped.items())
        return counted and f"; dropped: {counted}"

    def baskets(
        self,
        name: Callable[[str], str] = str,
        *,
        only_kept: bool = False,
    ) -> Baskets:
        """All of them, small enough, with the items in the order of their codes."""
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


def _lines(path: Path, progress_bar: bool) -> Iterator[tuple[int, str]]:
    """The lines of a text file, gzipped or not, with their numbers from 1 on, and a bar over the bytes."""
    with (
        path.open("rb") as raw,
        tqdm(
            total=path.stat().st_size,
            unit="B",
            unit_scale=True,
            delay=_BAR_DELAY,
            desc=path.name,
            disable=not progress_bar,
        ) as bar,
    ):
        opened: Any = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
        try:
            for number, line in enumerate(opened, 1):
                if number % _LINES_PER_UPDATE == 0:
                    bar.update(raw.tell() - bar.n)
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError:
                    text = line.decode("latin-1")
                if text.strip():
                    yield number, text
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error})") from error


def _table_rows(path: Path, wanted: Sequence[str], progress_bar: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The wanted columns of a csv or xlsx table, with the line of each row."""
    is_sheet = path.suffix.lower() == ".xlsx"
    if is_sheet:
        rows: Iterator[tuple[int, list[str]]] = _sheet_rows(path, progress_bar)
    else:
        # A quoted field may hold line ends: the csv reader takes as many lines as it needs.
        numbered = _lines(path, progress_bar)
        place = [0]

        def texts() -> Iterator[str]:
            for place[0], text in numbered:
                yield text

        rows = _csv_rows(path, csv.reader(texts(), strict=True), place)
    header = next(rows, (0, []))[1]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ValueError(f"{path}, line 1: no column {missing[0]!r}; the columns are {header}")
    places = [header.index(name) for name in wanted]
    for line, row in rows:
        if is_sheet:
            row += [""] * (len(header) - len(row))  # empty cells at the end are left out
        if len(row) <= max(places):
            absent = next(name for name, place in zip(wanted, places, strict=True) if place >= len(row))
            raise ValueError(f"{path}, line {line}: {len(row)} fields, but column {absent!r} is wanted")
        yield line, tuple(row[i] for i in places)


def _csv_rows(path: Path, reader: Iterator[list[str]], place: list[int]) -> Iterator[tuple[int, list[str]]]:
    header: list[str] = []
    try:
        for row in reader:
            header = header or row
            # A comma in a name without quotes moves all that follows.
            if any(field.strip() for field in row[len(header) :]):
                raise ValueError(f"{path}, line {place[0]}: {len(row)} fields, but there are {len(header)} columns")
            yield place[0], row
    except csv.Error as error:
        raise ValueError(f"{path}, line {place[0]}: {error}") from error


def _sheet_rows(path: Path, progress_bar: bool) -> Iterator[tuple[int, list[str]]]:
    """The rows of the first sheet of an xlsx file, one at a time; cells that are left out are empty."""
    with path.open("rb") as file:
        try:
            yield from _cells(file, progress_bar)
        except MemoryError:
            raise
        # Which of a dozen errors it is depends on the byte that is wrong.
        except Exception as error:
            raise ValueError(f"{path} is not an xlsx file: {error}") from error


def _cells(opened: IO[bytes], progress_bar: bool) -> Iterator[tuple[int, list[str]]]:
    with zipfile.ZipFile(opened) as book:
        names = set(book.namelist())
        sheet = "xl/worksheets/sheet1.xml"
        if sheet not in names:
            raise ValueError(f"it has no {sheet}")
        shared: list[str] = []
        if "xl/sharedStrings.xml" in names:
            with book.open("xl/sharedStrings.xml") as file:
                shared += (_text(element, "}t") for element in _closing(file, "si"))
        size = book.getinfo(sheet).file_size
        with (
            book.open(sheet) as file,
            tqdm(
                total=size,
                unit="B",
                unit_scale=True,
                delay=_BAR_DELAY,
                desc=Path(opened.name).name,
                disable=not progress_bar,
            ) as bar,
        ):
            for count, row in enumerate(_closing(file, "row"), 1):
                line = int(row.get("r", count))
                if len(row) == 0:
                    continue
                cells: list[str] = []
                for cell in row:
                    letters = re.match(r"[A-Z]+", cell.get("r", ""))
                    column = _column(letters.group()) if letters else len(cells)
                    cells += [""] * (column - len(cells))
                    text = _text(cell, "}v", "}t")
                    cells.append(shared[int(text)] if cell.get("t") == "s" else text)
                if count % _LINES_PER_UPDATE == 0:
                    bar.update(file.tell() - bar.n)
                yield line, cells


def _closing(file: IO[bytes], tag: str) -> Iterator[Any]:
    """The elements of that name as they end; each is let go after."""
    for _, element in ElementTree.iterparse(file):
        if element.tag.endswith("}" + tag):
            yield element
            element.clear()


def _text(element: Any, *tags: str) -> str:
    return "".join(part.text or "" for part in element.iter() if part.tag.endswith(tags))


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
