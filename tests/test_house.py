"""How the package hangs together: no import circle, nothing private used across modules, no long file."""

import ast
import statistics
from pathlib import Path

import numpyro_ndpp

ROOT = Path(numpyro_ndpp.__file__).parent


def modules():
    """The syntax tree of every module, by its name."""
    names = {
        path: ".".join(("numpyro_ndpp", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in names.items()}


def imports(tree, known):
    """The modules of the package that a module imports, for its types too, and the names that it takes from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numpyro_ndpp"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole, "") if whole in known else (node.module, alias.name)


def test_no_import_circle():
    trees = modules()
    graph = {name: {module for module, _ in imports(tree, trees)} - {name} for name, tree in trees.items()}
    while leaves := [name for name, needed in graph.items() if not needed]:
        for leaf in leaves:
            del graph[leaf]
        for needed in graph.values():
            needed.difference_update(leaves)
    assert not graph, f"these import each other: {sorted(graph)}"


def test_nothing_private_is_imported():
    trees = modules()
    found = [
        (name, taken) for name, tree in trees.items() for _, taken in imports(tree, trees) if taken.startswith("_")
    ]
    assert not found


def test_no_private_member_is_used_in_another_module():
    trees = modules()
    owners = {}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        owners.setdefault(member.name, set()).add(name)
    found = [
        (name, node.attr)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and name not in owners.get(node.attr, {name})
    ]
    assert not found


def test_no_file_is_long():
    """A file is one idea."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert not {name: length for name, length in lengths.items() if length > 350}
    assert statistics.median(lengths.values()) <= 150
