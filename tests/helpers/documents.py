"""The blocks of code in README.md and CONTRIBUTING.md that tests/repository/test_documents.py runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, language: str) -> list[str]:
    """Return the code of all blocks of a language in a document."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


RECIPES = {
    "policy": "add_policy",
    "task": "add_task",
    "grader": "add_grader",
    "backend": "class CountingBackend",
    "model": "wrap",
    "family": "FAMILIES",
}


def code_of(recipe: str) -> str:
    """Return the Python block of a recipe in CONTRIBUTING.md."""
    (code,) = (block for block in blocks("CONTRIBUTING.md", "python") if RECIPES[recipe] in block)
    return code


def commands_of(recipe: str) -> str | None:
    """Return the commands that use a recipe's plug-in, or None for a recipe that is a script."""
    if recipe not in ("policy", "task"):
        return None
    (block,) = (block for block in blocks("CONTRIBUTING.md", "shell") if f"--plugin {recipe}.py" in block)
    return block


# Run by tests/repository/test_documents.py; tests/report/test_site.py runs the other blocks.
TESTED_BLOCKS = {*blocks("README.md", "python"), *map(code_of, RECIPES), *map(commands_of, RECIPES)}
