"""Baskets from text: one basket per line, or a table with a line for each item of each order."""

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from numpyro_ndpp.baskets import Baskets
from numpyro_ndpp.datasets.collected import Collected
from numpyro_ndpp.datasets.lines import MOST_DIGITS, delimiter_of, numbered_lines, plain_rows, table_rows

Lines = list[tuple[int, list[int]]]
"""Baskets, each with the number of its line."""

# Item numbers have 32 bits, and one more stands for padding.
_MOST_ITEMS = 2**31 - 1
# Numbers may have gaps: items that are never bought. They are codes if less than one in so many is met.
_SPARSEST, _FEW_ITEMS = 100, 20_000
# What the column of orders is called, with spaces, underscores and hyphens taken out.
_ORDER = re.compile(
    r"(order|transaction|invoice|basket|receipt|ticket|session|cart|bill|customer|user|member|visit)s?"
    r"(id|no|nr|num|number)?"
)


def is_table_of_orders(path: Path) -> bool:
    """Whether the first line is the header of a table of two columns, the first of them orders.

    :raises ValueError: if it is the header of a wider table, or if every line has two items, which may be an order and
        an item, or a basket of two.
    """
    ways_out = "order= and item= (--order and --item) say which columns hold the order and the item"
    lines = numbered_lines(path, progress_bar=False)
    number, first = next(lines, (0, ""))
    delimiter = delimiter_of(first)
    fields = _fields(first, delimiter)
    if delimiter and any(_ORDER.fullmatch(re.sub(r"[\s_-]", "", field).lower()) for field in fields):
        if len(fields) == 2 and _ORDER.fullmatch(re.sub(r"[\s_-]", "", fields[0]).lower()):
            return True
        raise ValueError(f"{path}, line {number}: this is the header of a table, {fields}; {ways_out}")
    others = 0
    for _, line in itertools.chain([(number, first)], lines):
        if not delimiter or len(_fields(line, delimiter)) != 2:
            return False
        others += 1
    if others > 1:
        raise ValueError(
            f"{path}: every line has two items, so it may have an order and an item in each line, or baskets of two; "
            f"layout='orders' (--layout orders) or layout='baskets' (--layout baskets) says which"
        )
    return False


def _fields(line: str, delimiter: str) -> list[str]:
    """The fields of a line that are not blank."""
    return [field for field in _split(line.strip(), delimiter) if field]


def _split(line: str, delimiter: str) -> list[str]:
    words = next(csv.reader([line], delimiter=delimiter)) if '"' in line else line.split(delimiter or None)
    return [word.strip() for word in words]


def read_orders(path: Path, order: str | None, item: str | None, progress_bar: bool) -> Baskets:
    """Baskets from a table with a line for each item of each order. O(lines).

    :param order, item: the names of the two columns; None: the table has these two columns only, with a header or not.
    :raises ValueError: for a file of another form; the message names the file and the line.
    """
    collected = Collected(path, None)
    for line, (basket, name) in _pairs(path, order, item, progress_bar):
        collected.add(line, basket.strip(), name.strip())
    collected.by_number = all(code.isdecimal() and len(code) <= MOST_DIGITS for code in collected.of_item)
    return collected.baskets()


def _pairs(
    path: Path, order: str | None, item: str | None, progress_bar: bool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    first = next(numbered_lines(path, progress_bar=False), (0, ""))[1] if path.suffix.lower() != ".xlsx" else ""
    delimiter = delimiter_of(first) or ","
    if order is not None and item is not None:
        yield from table_rows(path, (order, item), progress_bar, delimiter)
        return
    for count, (line, fields) in enumerate(plain_rows(path, progress_bar, delimiter)):
        if len(fields) != 2:
            raise ValueError(
                f"{path}, line {line}: an order and an item are two fields, got {len(fields)}; where there are more "
                f"columns, order= and item= (--order and --item) say which"
            )
        if count or not _ORDER.fullmatch(re.sub(r"[\s_-]", "", fields[0]).lower()):
            yield line, tuple(fields)


def read_lines(path: Path, catalogue: str | Path | Sequence[str] | None) -> tuple[Lines, list[str]]:
    """Baskets from text with one basket per line, and the names of the items.

    :raises ValueError: for what is no item; the message names the file and the line.
    """
    if isinstance(catalogue, (str, Path)):
        catalogue = [line for _, line in numbered_lines(Path(catalogue), progress_bar=False)]
    if catalogue is not None:
        return _by_catalogue(path, [str(name).strip() for name in catalogue])  # as the words of a line are
    words = _words(path)
    first = next(words, None)
    if first is None:
        return [], []
    words = itertools.chain([first], words)
    return _by_number(path, words) if first[1] and first[1][0][:1].isdecimal() else _by_name(path, words)


def _words(path: Path, whole: dict[str, int] | None = None) -> Iterator[tuple[int, list[str], bool]]:
    """The number of a line, its items, and whether it has a comma. A line that is a name as a whole is one item."""
    for place, line in numbered_lines(path, progress_bar=False):
        line = line.strip()
        if "\r" in line:
            raise ValueError(f"{path}, line {place}: lines must end with a line feed, not with a carriage return alone")
        if whole and line in whole:
            yield place, [line], False  # a name may have blanks
        else:
            has_comma = "," in line
            yield place, _split(line.removesuffix(",") if has_comma else line, "," if has_comma else ""), has_comma


def _by_catalogue(path: Path, names: list[str]) -> tuple[Lines, list[str]]:
    numbers: dict[str, int] = {}
    for number, name in enumerate(names):
        if not name:
            raise ValueError(f"catalogue: name {number} is blank")
        if name in numbers:
            raise ValueError(f"catalogue: {name!r} is there more than once")
        numbers[name] = number
    baskets = []
    for place, words, _ in _words(path, numbers):
        unknown = [word for word in words if word not in numbers]
        if unknown:
            raise ValueError(f"{path}, line {place}: {unknown[0]!r} is not in the catalogue")
        baskets.append((place, sorted({numbers[word] for word in words})))
    return baskets, names


def _by_number(path: Path, lines: Iterator[tuple[int, list[str], bool]]) -> tuple[Lines, list[str]]:
    baskets = []
    for place, words, _ in lines:
        for word in words:
            if not word.isdecimal():
                raise ValueError(
                    f"{path}, line {place}: {word!r} is no item number; names need a catalogue of all items"
                )
            if len(word) > MOST_DIGITS or int(word) >= _MOST_ITEMS:
                raise ValueError(
                    f"{path}, line {place}: {word[:40]} is too large for an item number; codes need a catalogue of all "
                    f"items"
                )
        baskets.append((place, sorted(set(map(int, words)))))
    items = set(itertools.chain.from_iterable(basket for _, basket in baskets))
    num_items = 1 + max(items, default=-1)
    if num_items > _SPARSEST * max(len(items), _FEW_ITEMS):
        raise ValueError(
            f"{path}: {len(items)} items have numbers up to {num_items - 1}; codes need a catalogue of all items (for "
            f"numbers that are meant, map(str, range({num_items})))"
        )
    return baskets, [str(number) for number in range(num_items)]


def _by_name(path: Path, lines: Iterator[tuple[int, list[str], bool]]) -> tuple[Lines, list[str]]:
    """Names between commas. The catalogue is what is met, in the order of the alphabet."""
    rows, commas = [], 0
    for place, words, has_comma in lines:
        # A number among names may be a name, or a slip of the pen.
        number = [word for word in words if word.isdecimal() or not word]
        if number:
            raise ValueError(
                f"{path}, line {place}: {number[0]!r} among names; such names need a catalogue of all items"
            )
        commas += has_comma
        rows.append((place, words if has_comma else [" ".join(words)]))
    if not commas:
        raise ValueError(
            f"{path}: no line has a comma, so that a name with blanks cannot be told from several; put commas between "
            f"names, or give a catalogue of all items"
        )
    names = sorted({word for _, words in rows for word in words})
    numbers = {name: number for number, name in enumerate(names)}
    return [(place, sorted({numbers[word] for word in words})) for place, words in rows], names
