"""Tasks of other harnesses: their problems lie beside the samples that were imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.serialization import record
from twotemp.tasks.base import ProblemSet, Task

FILE = "problems.json"
GRADER = "recorded"  # the harness's own verdicts, unless somebody grades anew


def imported(name: str, folder: Path) -> Task | None:
    """The task whose problems are in this folder; None where there are none."""
    path = folder / FILE
    if not path.exists():
        return None

    def load(data: object, prompt: object, subset: object) -> ProblemSet:
        try:
            found = json.loads(path.read_text("utf-8"))
            problems = tuple(record(Problem, one, str(path)) for one in found["problems"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); import the results again") from error
        return ProblemSet(problems, found["digest"], str(path))

    return Task(name, "imported", GRADER, length=0, load=load)


def to_dict(problems: ProblemSet) -> dict[str, Any]:
    """What `imported` reads."""
    return {"digest": problems.digest, "problems": [vars(problem) for problem in problems.problems]}
