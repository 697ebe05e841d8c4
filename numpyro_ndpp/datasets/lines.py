"""Lines of text files and rows of tables, csv or xlsx, one after the other, with a progress bar for large files."""

import csv
import gzip
import re
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tqdm.auto import tqdm

_BAR_DELAY = 2.0  # seconds before a progress bar is shown
_LINES_PER_UPDATE = 2**14
MOST_DIGITS = 100  # of an item number, with zeros in front


def _bar(name: str, size: int, progress_bar: bool) -> tqdm:
    return tqdm(total=size, unit="B", unit_scale=True, delay=_BAR_DELAY, desc=name, disable=not progress_bar)


def numbered_lines(path: Path, progress_bar: bool) -> Iterator[tuple[int, str]]:
    """The lines of a text file, gzipped or not, with their numbers from 1 on. Blank lines are left out."""
    with path.open("rb") as raw, _bar(path.name, path.stat().st_size, progress_bar) as bar:
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


def delimiter_of(line: str) -> str:
    """The comma, semicolon or tab that separates the fields of a line; empty if there is none of them."""
    return next((delimiter for delimiter in ",;\t" if delimiter in line), "")


def plain_rows(path: Path, progress_bar: bool, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The rows of a csv or xlsx table, its header among them, with the line of each row."""
    if path.suffix.lower() == ".xlsx":
        return _sheet_rows(path, progress_bar)
    # A quoted field may hold line ends: the csv reader takes as many lines as it needs.
    numbered = numbered_lines(path, progress_bar)
    place = [0]

    def texts() -> Iterator[str]:
        for place[0], text in numbered:
            yield text

    return _csv_rows(path, csv.reader(texts(), delimiter=delimiter, strict=True), place)


def table_rows(
    path: Path, wanted: Sequence[str], progress_bar: bool, delimiter: str = ","
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The wanted columns of a csv or xlsx table, with the line of each row."""
    is_sheet = path.suffix.lower() == ".xlsx"
    rows = plain_rows(path, progress_bar, delimiter)
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
            # A comma in a name without quotes moves all that follows it.
            if any(field.strip() for field in row[len(header) :]):
                raise ValueError(f"{path}, line {place[0]}: {len(row)} fields, but there are {len(header)} columns")
            yield place[0], row
    except csv.Error as error:
        raise ValueError(f"{path}, line {place[0]}: {error}") from error


def _sheet_rows(path: Path, progress_bar: bool) -> Iterator[tuple[int, list[str]]]:
    """The rows of the first sheet of an xlsx file, one at a time. Missing cells are empty."""
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
        size, name = book.getinfo(sheet).file_size, Path(opened.name).name
        with book.open(sheet) as file, _bar(name, size, progress_bar) as bar:
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
    """The elements of that name as they end. Each is freed after use."""
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
