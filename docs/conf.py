"""Sphinx settings of the documentation."""

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx import addnodes
from sphinx.util import logging

_metadata = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _metadata["name"]
author = "The numpyro_ndpp developers"
release = version = _metadata["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]

html_theme = "furo"
pygments_dark_style = "github-dark"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"{project} {release}"
html_copy_source = False
highlight_language = "text"  # a block that names no language is what a program prints, or a command
toc_object_entries_show_parents = "hide"
html_show_copyright = False

autodoc_member_order = "bysource"
# NumPyro's words about its own members would be read as words about these.
autodoc_inherit_docstrings = False
# Docstrings say the shapes, which is what a reader needs; ArrayLike written out would fill the signatures.
autodoc_typehints = "none"


def _make_contents(app: Any, page: str, source: list[str]) -> None:
    """Turn ``<!-- contents: CAPTION``, names of pages, ``-->`` into a toctree.

    Code hosts show a directive as code, and a comment not at all.
    """
    toctree = r"```{toctree}\n:hidden:\n:caption: \1\n\n\2```"
    source[0] = re.sub(r"<!-- contents: (.*)\n([^>]*)-->", toctree, source[0])


def _document_lazy_properties(app: Any) -> None:
    """Turn NumPyro's lazy properties into properties: autodoc takes them for methods."""
    from numpyro.distributions.util import lazy_property

    from numpyro_ndpp import NDPP, SizedNDPP
    from numpyro_ndpp.distributions import FactorNDPP

    for cls in (*NDPP.__mro__, *SizedNDPP.__mro__, *FactorNDPP.__mro__):
        if cls.__module__.startswith("numpyro_ndpp."):
            for name, member in list(vars(cls).items()):
                if isinstance(member, lazy_property):
                    setattr(cls, name, property(member.wrapped))


def _join_parameters(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write ":param V, B, D:" without spaces: Sphinx would take all but the last for a type."""
    several = re.compile(r"(?<=:param )\w+(, \w+)+(?=:)")
    lines[:] = [several.sub(lambda names: names[0].replace(" ", ""), line) for line in lines]


def _part_parameters(app: Any, doctree: nodes.document) -> None:
    """Give the names that were joined for Sphinx their spaces back."""
    for names in doctree.findall(addnodes.literal_strong):
        names[:] = [nodes.Text(names.astext().replace(",", ", "))]


def _without_field_numbers(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Drop what Python says of a named tuple's field, "Alias for field number 0"."""
    lines[:] = [line for line in lines if not line.startswith("Alias for field number")]


# Docstrings write mathematics with its own letters, to be read in a terminal; the converter knows their LaTeX names.
_LETTERS = str.maketrans(
    {
        "∪": r"\cup ",
        "∖": r"\setminus ",
        "‖": r"\| ",
        "∼": r"\sim ",
        "±": r"\pm ",
        "∝": r"\propto ",
        "∉": r"\notin ",
        "½": r"\tfrac{1}{2}",
        "²": "^2",
    }
)


def _as_the_converter_reads_it(formula: str) -> str:
    formula = re.sub(r"\\[bB]ig(?![a-z])", "", formula.translate(_LETTERS))  # it knows no sizes of brackets
    formula = re.sub(r"\\(t?)frac(\w)(\w)", r"\\\1frac{\2}{\3}", formula)
    # It spaces the comma of 3{,}941 as if it stood between two numbers.
    formula = re.sub(r"\d+(?:\{,\}\d{3})+", lambda number: rf"\text{{{number[0].replace('{,}', ',')}}}", formula)
    # It does not know which bars of |S| open and which close.
    formula = re.sub(r"\\\|(.*?)\\\|", r"\\lVert \1 \\rVert ", formula)
    formula = re.sub(r"(?<!\\)\|(?=\S)([^|()]*?)(?<=[^\s\\])\|", r"\\lvert \1 \\rvert ", formula)
    # It sets functions without the thin space that LaTeX leaves before a letter: "det L", "k log n".
    formula = re.sub(r"(?<=[\w}]) *(?=\\(?:det|log)\b)", r"\\,", formula)
    return re.sub(r"(\\(?:det|log|min|max|sin)) *(?=[A-Za-z0-9]|\\(?!left|begin|,)[a-z])", r"\1\\,", formula)


# Bars that open and close, in MathML; a browser would take them for operators if they stand between other things.
_BARS = re.compile(r'<mo class="mathopen">([|‖])</mo>(.*?)<mo>\1</mo>', re.DOTALL)


def _write_mathml(translator: Any, node: nodes.math | nodes.math_block) -> None:
    as_block = isinstance(node, nodes.math_block)
    try:
        formula = latex2mathml.tex2mathml(_as_the_converter_reads_it(node.astext()), as_block=as_block)
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        raise nodes.SkipNode from error
    formula = _BARS.sub(
        r'<mo form="prefix" stretchy="false">\1</mo>\2<mo form="postfix" stretchy="false">\1</mo>', formula
    )
    translator.body.append(f'<div class="formula">{formula}</div>' if as_block else formula)
    raise nodes.SkipNode


def _keep_together(app: Any, doctree: nodes.document) -> None:
    """Keep a formula and what touches it, such as a comma, in one line: browsers break lines between the two."""
    for formula in list(doctree.findall(nodes.math)):
        line = formula.parent
        place = next(i for i, node in enumerate(line) if node is formula)
        before = line[place - 1] if place > 0 else None
        after = line[place + 1] if place + 1 < len(line) else None
        touching = re.search(r"\S*\Z", before)[0] if isinstance(before, nodes.Text) else ""
        following = re.match(r"\S*", after)[0] if isinstance(after, nodes.Text) else ""
        if following:
            line[place + 1] = nodes.Text(after[len(following) :])
        if touching:
            line[place - 1] = nodes.Text(before[: -len(touching)])
        if touching or following:
            parts = nodes.Text(touching), formula.deepcopy(), nodes.Text(following)
            line[place] = nodes.inline("", "", *parts, classes=["together"])


def _keep_numbers_whole(app: Any, doctree: nodes.document) -> None:
    """Break no line within a number of a table, and none between ± and the error."""
    for cell in doctree.findall(nodes.entry):
        for text in list(cell.findall(nodes.Text)):
            text.parent.replace(text, nodes.Text(text.replace("± ", "±\N{NO-BREAK SPACE}")))
        if re.fullmatch(r"[-−]?[.\d][^±]{,17}", cell.astext()):
            cell["classes"].append("together")


def _without_last_line(app: Any, doctree: nodes.document) -> None:
    """Drop the empty line at the end of a block of code: doctest asks for it, readers do not."""
    for block in doctree.findall(nodes.literal_block):
        if block.rawsource == block.astext():
            block.rawsource = block.rawsource.rstrip()
            block[:] = [nodes.Text(block.rawsource)]


def setup(app: Any) -> None:
    # Browsers draw MathML themselves: no script, no network.
    app.add_html_math_renderer("mathml", (_write_mathml, None), (_write_mathml, None))
    app.connect("source-read", _make_contents)
    app.connect("autodoc-process-docstring", _join_parameters)
    app.connect("autodoc-process-docstring", _without_field_numbers)
    app.connect("doctree-read", _part_parameters)
    app.connect("builder-inited", _document_lazy_properties)
    app.connect("doctree-read", _keep_together)
    app.connect("doctree-read", _keep_numbers_whole)
    app.connect("doctree-read", _without_last_line)
