"""What every benchmark's table ends with: the machine it was measured on, and the file it is written to; its rows."""

import itertools
import operator
import os
import platform
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    import jax  # not before a benchmark has set what JAX reads when it starts

    device = jax.devices()[0]
    name = f"{len(os.sched_getaffinity(0))} CPU cores" if device.platform == "cpu" else device.device_kind
    return f"{name}, {platform.machine()}, Python {platform.python_version()}, JAX {jax.__version__}"


def write_table(path: Path | None, lines: Sequence[str]) -> None:
    """Write the lines, if there is a file to write them to."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines).rstrip("\n") + "\n")


def read_table(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table in a text, each by the names of the columns."""
    is_row = operator.methodcaller("startswith", "|")
    lines = itertools.takewhile(is_row, itertools.dropwhile(lambda line: not is_row(line), text.splitlines()))
    head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]
