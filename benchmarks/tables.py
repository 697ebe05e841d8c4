"""What every benchmark's table ends with, the machine it was measured on; and its place: a page, or a file."""

import itertools
import operator
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    import jax  # not before a benchmark has set what JAX reads when it starts

    device = jax.devices()[0]
    name = f"{len(os.sched_getaffinity(0))} CPU cores" if device.platform == "cpu" else device.device_kind
    return f"{name}, {platform.machine()}, Python {platform.python_version()}, JAX {jax.__version__}"


def write_table(path: Path | None, lines: Sequence[str]) -> None:
    """Write the lines, if there is a place to write them to.

    ``PAGE.md#NAME`` is the place between the lines ``<!-- table: NAME -->`` and ``<!-- end -->`` of a page; any other
    path is that of a file of its own.

    :raises ValueError: if the page does not have exactly one such place.
    """
    if path is None:
        return
    text = "\n".join(lines).strip("\n")
    _, of_page, name = str(path).partition("#")
    if not of_page:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
        return
    page, place = _place(path)
    new, places = place.subn(lambda begin: f"{begin[1]}\n{text}\n\n", page.read_text(encoding="utf-8"))
    if places != 1:
        raise ValueError(f"{page} must have one place <!-- table: {name} --> ... <!-- end -->, got {places}")
    page.write_text(new, encoding="utf-8")


def read_place(path: Path) -> str:
    """What stands at a place of :func:`write_table`."""
    if "#" not in str(path):
        return path.read_text(encoding="utf-8")
    page, place = _place(path)
    found = place.search(page.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{page} has no place {path.name.partition('#')[2]}")
    return found[2]


def _place(path: Path) -> tuple[Path, re.Pattern[str]]:
    """The page, and the pattern of its lines up to a table (1) and of the table (2)."""
    page, _, name = str(path).partition("#")
    return Path(page), re.compile(rf"(<!-- table: {re.escape(name)} -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def read_table(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table in a text, each by the names of the columns."""
    is_row = operator.methodcaller("startswith", "|")
    lines = itertools.takewhile(is_row, itertools.dropwhile(lambda line: not is_row(line), text.splitlines()))
    head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]
