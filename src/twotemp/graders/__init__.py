"""Graders by name. Imported only when asked for: most need something that not every user has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from twotemp.errors import unknown
from twotemp.graders.base import Grader


@dataclass(frozen=True)
class GraderEntry:
    """A grader of ours: where it is, what it judges, and whether it has worker processes."""

    module: str
    name: str
    description: str
    workers: bool = False

    def make(self, workers: int | None) -> Grader:
        kind: Callable[..., Grader] = getattr(import_module(f"twotemp.graders.{self.module}"), self.name)
        return kind(workers=workers) if self.workers else kind()


# Ours, or (of a plug-in) what makes one.
GRADERS: dict[str, GraderEntry | Callable[[], Grader]] = {
    "maths": GraderEntry(
        "maths", "MathsGrader", "numbers and formulas: own extraction, equality by math-verify", workers=True
    ),
    "d1": GraderEntry("d1", "D1Grader", "maths as the d1 code base grades it, for comparison"),
    "programs": GraderEntry(
        "programs", "ProgramGrader", "Python programs, run against tests in a sandbox", workers=True
    ),
    "countdown": GraderEntry("puzzles", "CountdownGrader", "the embedded arithmetic puzzle"),
    "recorded": GraderEntry(
        "recorded", "RecordedGrader", "verdicts of another harness, imported with its samples"
    ),
}


def descriptions() -> dict[str, str]:
    """What each grader judges; of a plug-in's, the first line of its docstring."""
    return {
        name: one.description if isinstance(one, GraderEntry) else (one.__doc__ or "").partition("\n")[0]
        for name, one in GRADERS.items()
    }


def get(name: str, *, workers: int | None = None) -> Grader:
    """A new grader; `workers`: processes of those that use any (default: one for each usable core)."""
    if name not in GRADERS:
        raise unknown("grader", name, GRADERS)
    found = GRADERS[name]
    return found.make(workers) if isinstance(found, GraderEntry) else found()
