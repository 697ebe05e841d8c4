"""Walks over the built site and says what a reader would stumble over.

    python docs/check_site.py docs/_build/html     # exits with 1 if there is anything to say

Every link leads to a page, and every anchor to a place on it. Every image is there. No formula, directive or mark of
Markdown or reStructuredText is shown as text. Every page can be reached from index.html. Nothing is loaded from another
host: the site reads as well without a network.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

VERBATIM = {"code", "pre", "script", "style", "math", "svg"}  # what stands in these is not prose
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
RAW = {
    "formula": re.compile(r"\\[(\[]|\$\$|\\[A-Za-z]{2,}|(?<![\w$])\$[^\s$](?:[^$]*[^\s$])?\$(?!\d)"),
    "directive": re.compile(r"```|:::|\.\. \w[\w-]*::|\{[a-z][\w:-]*\}`|:[a-z][\w:-]*:`"),
    "mark-up": re.compile(r"\*\*|\]\(|(?<!\w)`|`(?!\w)|<!--"),
}
LOADED = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


@dataclass
class Page(HTMLParser):
    """What one page holds: its anchors, the links, what it loads, its prose."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []  # the tags around what is read, "verbatim" for those that hold no prose
        text = self.path.read_text(encoding="utf-8")
        self.empty_formulas = len(re.findall(r"<math[^>]*>\s*</math>", text))
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links += [values[name] for name, of in (("href", "a"), ("action", "form")) if tag == of and name in values]
        self.loaded += [values[name] for name in ("src", "data", "poster") if name in values]
        self.loaded += [each.split()[0] for each in values.get("srcset", "").split(",") if each.strip()]
        self.loaded += [values["href"]] if tag == "link" and "href" in values else []
        self.loaded += LOADED.findall(values.get("style", ""))
        self.prose += [values["alt"]] if "alt" in values else []
        if tag not in VOID:
            # The signature of a function has its own stars.
            signature = "sig" in values.get("class", "").split()
            self._open.append(f"{tag} verbatim" if tag in VERBATIM or signature else tag)

    def handle_endtag(self, tag: str) -> None:
        for place in reversed(range(len(self._open))):
            if self._open[place].split()[0] == tag:
                del self._open[place:]
                return

    def handle_data(self, text: str) -> None:
        if self._open and self._open[-1].startswith("style"):
            self.loaded += LOADED.findall(text)
        if not any(tag.endswith(" verbatim") for tag in self._open):
            self.prose.append(text)


def is_outside(address: str) -> bool:
    """Whether the address names another host, or no host at all: mail, data."""
    parts = urlsplit(address)
    return bool(parts.scheme or parts.netloc)


def target(page: Path, address: str) -> tuple[Path, str]:
    """The file and the anchor that an address on a page leads to."""
    parts = urlsplit(address)
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return path / "index.html" if path.is_dir() else path, unquote(parts.fragment)


def faults_of_links(pages: dict[Path, Page], page: Page) -> Iterator[str]:
    for address in page.links:
        if is_outside(address) or address == "#":
            continue
        path, anchor = target(page.path, address)
        if not path.exists():
            yield f"broken link: {address}"
        elif anchor and path in pages and anchor not in pages[path].anchors:
            yield f"broken anchor: {address}"


def faults_of_loads(page: Page) -> Iterator[str]:
    for address in page.loaded:
        if address.startswith("data:"):
            continue
        if is_outside(address):
            yield f"loaded from another host: {address}"
        elif not target(page.path, address)[0].exists():
            yield f"missing file: {address}"


def faults_of_prose(page: Page) -> Iterator[str]:
    if page.empty_formulas:
        yield f"empty formulas: {page.empty_formulas}"
    for text in page.prose:
        for what, pattern in RAW.items():
            if found := pattern.search(text):
                yield f"{what} shown as text: {' '.join(text[max(0, found.start() - 30) : found.end() + 30].split())!r}"


def unreachable(pages: dict[Path, Page], start: Path) -> set[Path]:
    """The pages to which no chain of links leads."""
    left, waiting = set(pages) - {start}, [start]
    while waiting:
        page = pages[waiting.pop()]
        found = {target(page.path, address)[0] for address in page.links if not is_outside(address)} & left
        left -= found
        waiting += found
    return left


def check(site: Path) -> list[str]:
    """All faults of the site in a folder, each with its page."""
    site = site.resolve()
    start = site / "index.html"
    if not start.exists():
        return [f"index.html: not in {site}"]
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    faults = [
        (path, fault)
        for path, page in pages.items()
        for fault in (*faults_of_links(pages, page), *faults_of_loads(page), *faults_of_prose(page))
    ]
    faults += [(path, "no link leads here from index.html") for path in sorted(unreachable(pages, start))]
    for path in sorted(site.rglob("*.css")):
        loaded = LOADED.findall(path.read_text(encoding="utf-8"))
        faults += [(path, f"loaded from another host: {address}") for address in loaded]
    return [f"{path.relative_to(site)}: {fault}" for path, fault in faults]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    faults = check(Path(sys.argv[1]))
    print("\n".join(faults) if faults else "the site is whole")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
