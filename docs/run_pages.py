"""Runs quickstart and tutorials as they stand on the page: every ```python block in turn, in one namespace.

    python docs/run_pages.py             # runs all pages and writes what they print and draw into them
    python docs/run_pages.py --check     # runs them and compares; exits with 1 where a page shows something else
    python docs/run_pages.py baskets     # one page

What a block prints stands in the ```text block after it. Every new figure that a block names ``figure`` is saved, as
figures/PAGE_1.svg, figures/PAGE_2.svg, ..., for the page to show. A check compares what is printed up to its numbers,
which differ from machine to machine, and asks that the page shows every figure. Where words differ too, such as the
names of items that are about as likely, the page says so by a line "<!-- varies -->" between the two blocks, which no
reader sees; then the check asks that something is printed. Every page runs in a process of its own, as a reader's
script would.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS / "quickstart.md", *sorted((DOCS / "tutorials").glob("*.md"))]
VARIES = "<!-- varies -->\n\n"
BLOCK = re.compile(
    rf"```python\n(?P<code>.*?)```\n(?:\n(?P<varies>{VARIES})?```text\n(?P<output>.*?)```\n)?", re.DOTALL
)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?%?|\s+")


def words(text: str) -> str:
    """The text without its numbers and white space."""
    return NUMBER.sub(" ", text).replace("  ", " ").strip()


def run_page(page: Path, check: bool) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.use("agg")
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    figures: list[Figure] = []

    def run_block(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start("code")) + 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + match["code"], page, "exec"), names)
        figure = names.get("figure")
        if isinstance(figure, Figure) and figure not in figures:
            figures.append(figure)
            name = f"{page.stem}_{len(figures)}.svg"
            if f"figures/{name}" not in text:
                sys.exit(f"{page.name}, line {line}: figure {name} is drawn and not shown")
            if not check:
                figure.savefig(DOCS / "figures" / name, metadata={"Date": None})
        output = "\n".join(each.rstrip() for each in printed.getvalue().splitlines()).rstrip("\n")
        agrees = bool(output) if match["varies"] else words(output) == words(match["output"] or "")
        if check and not agrees:
            sys.exit(f"{page.name}, line {line}: the block prints\n{output}\nand the page shows\n{match['output']}")
        shown = f"\n{match['varies'] or ''}```text\n{output}\n```\n" if output else ""
        return f"```python\n{match['code']}```\n{shown}"

    matplotlib.rcParams["svg.hashsalt"] = page.stem  # the same figure is the same file
    new = BLOCK.sub(run_block, text)
    if not check:
        page.write_text(new, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="names of pages; by default all")
    parser.add_argument("--check", action="store_true", help="write nothing; compare")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one page, in this process
    arguments = parser.parse_args()
    pages = [page for page in PAGES if not arguments.pages or page.stem in arguments.pages]
    if unknown := set(arguments.pages) - {page.stem for page in pages}:
        parser.error(f"no such page: {', '.join(sorted(unknown))}; there are {', '.join(p.stem for p in PAGES)}")
    if arguments.here:
        run_page(pages[0], arguments.check)
        return
    flags = ["--check"] if arguments.check else []

    def run_in_process(page: Path) -> bool:
        begun = time.perf_counter()
        command = [sys.executable, __file__, "--here", page.stem, *flags]
        done = subprocess.run(command, env=os.environ | {"TQDM_DISABLE": "1"}, check=False)
        print(f"{page.stem}: {time.perf_counter() - begun:.0f} s", flush=True)
        return done.returncode == 0

    # Compilation, most of the time, takes one core.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        ran = list(pool.map(run_in_process, pages))
    if not all(ran):
        sys.exit(f"failed: {', '.join(page.stem for page, well in zip(pages, ran, strict=True) if not well)}")


if __name__ == "__main__":
    main()
