"""One class name, one meaning: no class or type alias of the package is defined in two modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "src" / "twotemp"
# Names that may be defined more than once, each with the reason.
EXCEPTIONS: dict[str, str] = {}


def defined_names(source: str) -> set[str]:
    """Return the classes and CamelCase aliases that a module defines at its top level."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.lstrip("_")[:1].isupper() and not name.isupper() and len(name.lstrip("_")) > 1:
                names.add(name)
    return names


def test_no_class_name_is_defined_twice() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for name in defined_names(path.read_text("utf-8")):
            modules[name].append(str(path.relative_to(ROOT)))
    twice = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= twice.keys(), "an exception that is no longer needed"


def test_classes_and_aliases_are_seen() -> None:
    source = "class A: pass\nRow = dict[str, int]\nT = 1\nMOST = 3\ndef f():\n    class Inner: pass\n"
    assert defined_names(source) == {"A", "Row"}
