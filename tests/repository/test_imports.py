"""The dependency rule, checked in the source: which package may import which, and what stays light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import mermaid
import pytest

ROOT = Path(__file__).resolve().parents[2] / "src" / "twotemp"

# package -> packages of ours that it may import, lowest layer first; drawn in `docs/architecture.md`.
# `sampling.requests` is below `backends`, `sampling.api` is above.
_DATA = {"errors", "serialization", "records"}
ALLOWED = {
    "errors": set(),
    "serialization": {"errors"},
    "records": {"errors", "serialization"},
    "processes": set(),
    "rng": {"errors"},
    "experimental": _DATA,
    "folders": {"errors", "serialization"},
    "policies": {*_DATA, "experimental", "rng"},
    "models": {*_DATA, "folders"},
    "engine": {*_DATA, "experimental", "rng", "policies", "models"},
    "tasks": {*_DATA, "folders"},
    "graders": {*_DATA, "folders", "processes", "tasks"},
    "metrics": _DATA,
    "store": {*_DATA, "folders"},
    "sampling": {*_DATA, "backends", "engine", "models", "policies", "report"},
    "backends": {*_DATA, "engine", "models", "plugins", "policies", "processes", "sampling"},
    "likelihood": {*_DATA, "models", "rng", "sampling"},
    "plugins": {*_DATA, "graders", "policies", "tasks"},
    "integrations": {
        *_DATA,
        *(
            "backends",
            "engine",
            "evaluation",
            "experimental",
            "likelihood",
            "models",
            "policies",
            "rng",
            "sampling",
            "store",
            "tasks",
        ),
    },
    "rewards": {*_DATA, "likelihood", "models", "sampling", "store", "tasks"},
    "evaluation": {
        *_DATA,
        "backends",
        "folders",
        "graders",
        "models",
        "policies",
        "sampling",
        "store",
        "tasks",
    },
    "analysis": {*_DATA, "evaluation", "graders", "metrics", "policies", "rewards", "store", "tasks"},
    "serving": {
        *_DATA,
        *("backends", "engine", "graders", "models", "policies", "report", "sampling", "tasks"),
    },
    "forks": {*_DATA, "backends", "engine", "folders", "graders", "models", "policies", "sampling"},
    "rl": {
        *_DATA,
        *("backends", "engine", "folders", "graders", "likelihood", "metrics", "models", "policies"),
        *("rng", "sampling", "tasks"),
    },
    "report": {
        *_DATA,
        "analysis",
        "evaluation",
        "folders",
        "forks",
        "metrics",
        "policies",
        "rl",
        "store",
        "tuning",
    },
    "tuning": {*_DATA, "evaluation", "metrics", "policies", "store", "tasks"},
}
NOT_IN_THE_WHEEL = {"benchmarks", "experiments", "recipes", "tests", "theory", "twotemp_sglang"}
FREE = {"cli", "__init__"}  # the command line may import everything
TORCH_FREE = {
    *(
        "errors",
        "serialization",
        "records",
        "folders",
        "tasks",
        "graders",
        "metrics",
        "store",
    ),
    *("plugins", "evaluation", "analysis", "report", "tuning"),
}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Dotted names imported anywhere in a file, inside functions too; type-checking blocks aside."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_packages_import_only_what_they_may(path):
    package = package_of(path)
    names = imports_of(path)
    ours = {name.split(".")[1] for name in names if name.startswith("twotemp.")}
    if package not in FREE:
        assert ours - ALLOWED[package] - {package, "__version__"} == set()
    if package in TORCH_FREE:
        assert not {n for n in names if n.split(".")[0] in ("torch", "transformers")}
    if package != "cli":
        assert "cli" not in ours, "no package imports the command line"
    assert not {n.split(".")[0] for n in names} & NOT_IN_THE_WHEEL


def test_every_package_is_governed():
    assert {package_of(path) for path in FILES} == set(ALLOWED) | FREE


def test_a_broken_rule_is_seen(tmp_path):
    """The rule itself: an import inside a function counts, one for type checkers does not."""
    lines = ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", " import torch"]
    lines += ["def f():", " from twotemp.cli import app"]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert imports_of(tmp_path / "a.py") == {"typing.TYPE_CHECKING", "twotemp.cli.app"}


def test_help_is_light():
    """`twotemp --help` and the package itself load neither torch nor transformers nor numpy, nor a harness."""
    code = (
        "import sys, twotemp, twotemp.cli; "
        "heavy = 'torch', 'transformers', 'numpy', 'matplotlib', 'lm_eval', 'inspect_ai', 'datasets'; "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_waiting_threads_go_to_sleep_unless_the_user_says_otherwise(given, expected):
    """Decided before torch is loaded, or it has no effect."""
    code = (
        "import contextlib, os, sys; from twotemp import cli; sys.argv = ['twotemp', '--version']\n"
        "with contextlib.suppress(SystemExit): cli.main()\n"
        "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | given)
    assert done.stdout.splitlines()[-1] == f"{expected} False"


def test_the_layer_diagram_agrees_with_the_import_rule():
    layer, level = {}, 0
    for line in mermaid.diagrams()[0].splitlines():
        level += "subgraph" in line
        if not re.search("flowchart|subgraph|direction|cli|end$", line):
            layer |= dict.fromkeys(re.findall(r"\w+", line), level)
    assert set(layer) == set(ALLOWED)
    upwards = {(a, b) for a, below in ALLOWED.items() for b in below if layer[b] > layer[a]}
    assert upwards == {("sampling", "report")}  # the page says so


def test_the_package_table_names_every_package():
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text()
    first = re.findall(r"(?m)^\| (`.*?) \|", page)
    assert {name for cell in first for name in re.findall(r"`(\w+)`", cell)} == {*ALLOWED, "cli"}


def test_no_test_module_imports_another():
    """What several need is in tests/helpers."""
    imports = re.compile(r"^\s*(?:from|import) tests\.(?!helpers\b|conftest\b).*", re.MULTILINE)
    files = Path(__file__).parents[1].rglob("*.py")
    found = {str(path): lines for path in files if (lines := imports.findall(path.read_text("utf-8")))}
    assert not found
