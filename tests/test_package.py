"""What a release must have: one version, types, documentation of every public name, commands that exist."""

import importlib
import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import numpyro_ndpp

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_is_that_of_the_project():
    assert numpyro_ndpp.__version__ == PROJECT["version"]


def test_citation_has_the_same_version_and_licence():
    fields = dict(re.findall(r"^([\w-]+): (.+)$", text("CITATION.cff"), re.MULTILINE))
    assert fields["version"] == PROJECT["version"]
    assert fields["license"] == PROJECT["license"]


def test_changelog_knows_the_version():
    heads = re.findall(r"^## (.+)$", text("CHANGELOG.md"), re.MULTILINE)
    released = [head for head in heads if head != "Unreleased"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d{2}-\d{2}\)", head) for head in released)
    assert heads[0] == "Unreleased" or heads[0].startswith(f"{PROJECT['version']} (")


def test_types_are_shipped():
    assert files("numpyro_ndpp").joinpath("py.typed").is_file()


def documented():
    """The full names that the reference documents."""
    module, names = "numpyro_ndpp", set()
    directive = r"^\.\. (currentmodule|automodule|autoclass|autofunction|function|data):: ([\w.]+)"
    for kind, name in re.findall(directive, text("docs/reference/api.rst"), re.MULTILINE):
        if kind in ("currentmodule", "automodule"):
            module = name
        else:
            names.add(name if name.startswith("numpyro_ndpp.") else f"{module}.{name}")
    return names


def test_every_public_name_is_in_the_reference():
    missing = {f"numpyro_ndpp.{name}" for name in numpyro_ndpp.__all__} - documented()
    assert not missing


def test_every_name_of_the_reference_exists():
    for name in documented():
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", ".ci/run", ".github/pull_request_template.md"])
def test_every_command_exists(page):
    if page.startswith(".github/") and not (ROOT / ".github").exists():
        pytest.skip(f"{page} is in a clone only")
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\s*)make ([a-z][\w-]*)", text(page), re.MULTILINE))
    assert named
    assert not named - targets


def test_address_of_the_project_stands_in_one_place():
    """So that it is filled in, or changed, there alone."""
    for address in PROJECT["urls"].values():
        for path in (ROOT / "README.md", ROOT / "CITATION.cff", *(ROOT / "docs").rglob("*.md")):
            assert address not in path.read_text(encoding="utf-8"), path


def test_lower_bounds_are_exact_versions():
    """Every dependency has one, which ``make test-oldest`` installs."""
    for requirement in PROJECT["dependencies"]:
        assert re.match(r"[\w-]+(\[\w+\])?>=\d+\.\d+", requirement), requirement
