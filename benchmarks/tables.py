"""What every benchmark's table ends with: the machine it was measured on, and the page or file it is written to."""

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
    file, of_page, name = str(path).partition("#")
    if not of_page:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
        return
    page = Path(file)
    place = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    new, places = place.subn(lambda begin: f"{begin[1]}\n{text}\n\n", page.read_text(encoding="utf-8"))
    if places != 1:
        raise ValueError(f"{page} must have one place <!-- table: {name} --> ... <!-- end -->, got {places}")
    page.write_text(new, encoding="utf-8")
