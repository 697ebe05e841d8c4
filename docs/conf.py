"""Sphinx settings of the documentation."""

import re
import tomllib
from pathlib import Path
from typing import Any

_metadata = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _metadata["name"]
author = "The numpyro_ndpp developers"
release = version = _metadata["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",  # for the directive; pytest runs the examples
    "sphinx.ext.mathjax",
]
exclude_patterns = ["tables/*", "_build"]
myst_enable_extensions = ["amsmath", "dollarmath"]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_copyright = False

autodoc_member_order = "bysource"
# NumPyro's words about its own members would be read as words about these.
autodoc_inherit_docstrings = False
# Docstrings say the shapes, which is what a reader needs; ArrayLike written out would fill the signatures.
autodoc_typehints = "none"


def _document_lazy_properties(app: Any) -> None:
    """Turn NumPyro's lazy properties into properties: autodoc takes them for methods."""
    from numpyro.distributions.util import lazy_property

    from numpyro_ndpp import distributions

    for value in vars(distributions).values():
        if isinstance(value, type) and value.__module__ == distributions.__name__:
            for name, member in list(vars(value).items()):
                if isinstance(member, lazy_property):
                    setattr(value, name, property(member.wrapped))


def _join_parameters(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write ":param V, B, D:" without spaces: Sphinx would take all but the last for a type."""
    several = re.compile(r"(?<=:param )\w+(, \w+)+(?=:)")
    lines[:] = [several.sub(lambda names: names[0].replace(" ", ""), line) for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _join_parameters)
    app.connect("builder-inited", _document_lazy_properties)
