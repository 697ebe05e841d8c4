"""The documentation as it is shown: a walk over the site finds each kind of fault, and tables are written in place.

The sites and pages are small and made up for the tests; ``make docs`` walks over the real one.
"""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
check = runpy.run_path(str(ROOT / "docs" / "check_site.py"))["check"]
write_table = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))["write_table"]

INDEX = (
    '<html><head><link rel="stylesheet" href="style.css"></head><body><a href="guides/one.html">one</a></body></html>'
)
PAGE = """<html><body><h1 id="top">One</h1><p>{body}</p>
<a href="../index.html">back</a> <a href="#top">up</a> <a href="#">nowhere</a> <a href="https://num.pyro.ai">NumPyro</a>
<form action="../index.html"></form></body></html>"""


def faults(tmp_path, body="", index=INDEX, css="body { color: black }"):
    """What is found on a site whose one page has this body; all files that it asks for are there."""
    (tmp_path / "guides").mkdir()
    (tmp_path / "index.html").write_text(index)
    (tmp_path / "style.css").write_text(css)
    (tmp_path / "picture.png").write_bytes(b"")
    (tmp_path / "guides" / "one.html").write_text(PAGE.format(body=body))
    return check(tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        '<img src="../picture.png" alt="A picture"> <img src="data:image/png;base64,AA">',
        r"<code>\frac{1}{2}, $$ and ```{note}</code> <pre>:func:`fit` **x**<span>$x$</span></pre>",
        r"<math><mi>x</mi><annotation>\frac</annotation></math>",
        '<dt class="sig sig-object">fit(<em>**options</em>)</dt>',
        "A basket for $5, and one for $6; f(x)[2] (three) and 2 * 3 * 4: all: prose.",
        "&lt;a&gt; is a tag, and {a, b} a set.",
    ],
)
def test_a_whole_site_has_no_faults(tmp_path, body):
    assert faults(tmp_path, body) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="two.html">two</a>', "broken link: two.html"),
        ('<a href="../index.html#no">no</a>', "broken anchor: ../index.html#no"),
        ('<a href="#no">no</a>', "broken anchor: #no"),
        ('<form action="find.html"></form>', "broken link: find.html"),
        ('<img src="../no.png">', "missing file: ../no.png"),
        ('<img srcset="../picture.png 1x, ../no.png 2x">', "missing file: ../no.png"),
        ('<object data="no.svg"></object>', "missing file: no.svg"),
        ('<script src="https://a.example/x.js"></script>', "loaded from another host: https://a.example/x.js"),
        ('<script src="//a.example/x.js"></script>', "loaded from another host: //a.example/x.js"),
        ('<link href="https://a.example/x.css">', "loaded from another host: https://a.example/x.css"),
        ("<style>@import 'https://a.example/f';</style>", "loaded from another host: https://a.example/f"),
        ('<p style="background: url(https://a.example/p)">', "loaded from another host: https://a.example/p"),
        (r"so \(x\) is", r"formula shown as text: 'so \\(x\\) is'"),
        ("so $$x$$ is", "formula shown as text: 'so $$x$$ is'"),
        ("so $x + 1$ is", "formula shown as text: 'so $x + 1$ is'"),
        (r"so \frac12 is", r"formula shown as text: 'so \\frac12 is'"),
        (r'<img src="../picture.png" alt="\det L">', r"formula shown as text: '\\det L'"),
        ('<math display="block"> </math>', "empty formulas: 1"),
        ("```{note}", "directive shown as text: '```{note}'"),
        (":::", "directive shown as text: ':::'"),
        (".. autofunction:: fit", "directive shown as text: '.. autofunction:: fit'"),
        ("see :func:`fit` there", "directive shown as text: 'see :func:`fit` there'"),
        ("see {func}`fit` there", "directive shown as text: 'see {func}`fit` there'"),
        ("<code>x</code> and then **", "mark-up shown as text: 'and then **'"),
        ("see [this](that.md)", "mark-up shown as text: 'see [this](that.md)'"),
        ("the name `fit is", "mark-up shown as text: 'the name `fit is'"),
    ],
)
def test_each_fault_is_found(tmp_path, body, fault):
    assert f"guides/one.html: {fault}" in faults(tmp_path, body)


def test_a_page_without_a_link_to_it_is_found(tmp_path):
    assert faults(tmp_path, index="<html></html>") == ["guides/one.html: no link leads here from index.html"]


def test_a_link_from_a_page_that_is_not_reached_does_not_count(tmp_path):
    (tmp_path / "lonely.html").write_text('<a href="friend.html">friend</a>')
    (tmp_path / "friend.html").write_text('<a href="lonely.html">lonely</a>')
    expected = [f"{page}.html: no link leads here from index.html" for page in ("friend", "lonely")]
    assert faults(tmp_path) == expected


def test_a_font_of_another_host_in_a_style_sheet_is_found(tmp_path):
    css = '@font-face { src: url("https://a.example/f.woff2"); } p { background: url(picture.png); }'
    assert faults(tmp_path, css=css) == ["style.css: loaded from another host: https://a.example/f.woff2"]


def test_a_folder_without_a_site_is_a_fault(tmp_path):
    assert check(tmp_path) == [f"index.html: not in {tmp_path.resolve()}"]


def test_a_table_is_written_into_its_place_on_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n<!-- table: one -->\nold\n<!-- end -->\n\n<!-- table: two -->\n<!-- end -->\n\nThe end.\n"
    )
    for _ in range(2):  # a second time replaces the first
        write_table(Path(f"{page}#one"), ["| a \\* |", "|---|", ""])
        write_table(Path(f"{page}#two"), ["", "| b |"])
    assert page.read_text() == (
        "# Title\n\n<!-- table: one -->\n\n| a \\* |\n|---|\n\n<!-- end -->\n\n"
        "<!-- table: two -->\n\n| b |\n\n<!-- end -->\n\nThe end.\n"
    )


def test_a_table_without_its_place_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: one -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"must have one place <!-- table: two --> ... <!-- end -->, got 0"):
        write_table(Path(f"{page}#two"), ["| b |"])


def test_a_table_is_written_to_a_file_of_its_own(tmp_path):
    write_table(tmp_path / "new" / "table.md", ["| a |", ""])
    assert (tmp_path / "new" / "table.md").read_text() == "| a |\n"
    write_table(None, ["| a |"])
