"""Prompts of one's own, from a file, without answers: for open-ended questions, whose samples have no verdict."""

from __future__ import annotations

import hashlib
from pathlib import Path

from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.tasks.base import ProblemSet, Task


def load(
    data: Path | None = None,
    prompt: str | None = None,
    subset: str | None = None,
    allow_altered: bool = False,
) -> ProblemSet:
    """Return a problem for each line of the file that is not empty, identified by a hash of its text."""
    if data is None:
        raise UserError("the task prompts reads a file with one prompt per line: --data prompts=FILE")
    if prompt is not None or subset is not None:
        raise UserError("the task prompts has neither named prompts nor subsets; leave them out")
    try:
        text = data.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"{data} cannot be read as text ({error}); give a file with one prompt per line"
        ) from error
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not lines:
        raise UserError(f"{data} has no prompt; write one per line")
    names = [hashlib.blake2b(line.encode(), digest_size=8).hexdigest() for line in lines]
    problems = tuple(Problem(f"prompts/{name}", "prompts", line) for name, line in zip(names, lines))
    return ProblemSet(problems, hashlib.sha256("\n".join(lines).encode()).hexdigest(), data.name)


TASK = Task(
    "prompts", "your own prompts from a file, without a verdict", grader="none", length=256, load=load
)
