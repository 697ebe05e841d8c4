"""The pages that docs/run_pages.py runs: their code compiles, and what they show and link to exists.

They are not run here: ``python docs/run_pages.py --check`` does that, and takes minutes.
"""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
RUNNER = runpy.run_path(str(DOCS / "run_pages.py"))
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")


def page_name(page: Path) -> str:
    return page.stem


@pytest.fixture(params=RUNNER["PAGES"], ids=page_name)
def page(request):
    return request.param


def test_code_compiles(page):
    for match in RUNNER["BLOCK"].finditer(page.read_text(encoding="utf-8")):
        compile(match["code"], page, "exec")


def test_lines_of_code_fit_the_page(page):
    for match in RUNNER["BLOCK"].finditer(page.read_text(encoding="utf-8")):
        assert all(len(line) <= 120 for line in match["code"].splitlines())


def test_links_and_figures_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def test_numbered_figures_are_shown_in_order(page):
    # Those that the runner draws: PAGE_1.svg, PAGE_2.svg, ..., each once.
    numbers = re.findall(rf"figures/{page.stem}_(\d+)\.svg\)", page.read_text(encoding="utf-8"))
    assert numbers == [str(number + 1) for number in range(len(numbers))]
    assert len(list((DOCS / "figures").glob(f"{page.stem}_*.svg"))) == len(numbers)
