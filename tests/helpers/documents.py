"""The blocks of code in README.md and CONTRIBUTING.md that tests/test_documents.py runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


RECIPES = {
    "policy": "add_policy",
    "task": "add_task",
    "grader": "add_grader",
    "model": "wrap",
    "family": "FAMILIES",
}


def code_of(recipe: str) -> str:
    (code,) = (block for block in blocks("CONTRIBUTING.md", "python") if RECIPES[recipe] in block)
    return code


def commands_of(recipe: str) -> str | None:
    """What is run with a plug-in; the other recipes are scripts."""
    if recipe not in ("policy", "task"):
        return None
    (block,) = (block for block in blocks("CONTRIBUTING.md", "shell") if f"--plugin {recipe}.py" in block)
    return block


# For tests/test_site.py, which runs every block that nobody else does.
RUN_HERE = {*blocks("README.md", "python"), *map(code_of, RECIPES), *map(commands_of, RECIPES)}
