"""Tasks of other harnesses: their problems are stored with the imported samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.folders import read_json
from twotemp.records import Problem
from twotemp.serialization import record
from twotemp.tasks.base import ProblemSet, Task

FILE = "problems.json"
GRADER = "recorded"  # the harness's own grades


def imported(name: str, folder: Path) -> Task | None:
    """Return the task whose problems are in this folder; None if it has none."""
    path = folder / FILE
    if not path.exists():
        return None

    def load(data: object, prompt: object, subset: object) -> ProblemSet:
        try:
            content = read_json(path)
            problems = tuple(record(Problem, problem, str(path)) for problem in content["problems"])
            if not all(
                isinstance(problem.id, str) and isinstance(problem.prompt, str) for problem in problems
            ):
                raise ValueError("a problem's id and prompt must be strings")
            return ProblemSet(problems, str(content["digest"]), str(path))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}); import the results again") from error

    return Task(name, "imported", GRADER, length=0, load=load)


def to_dict(problems: ProblemSet) -> dict[str, Any]:
    """Return the JSON data that `imported` reads."""
    return {"digest": problems.digest, "problems": [vars(problem) for problem in problems.problems]}
