"""The registry of graders. They are imported on demand: most have optional dependencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from twotemp.errors import unknown
from twotemp.graders.base import Grader


@dataclass(frozen=True)
class GraderEntry:
    """A built-in grader: its module and class, what it grades, and whether it has worker processes."""

    module: str
    name: str
    description: str
    workers: bool = False

    def make(self, workers: int | None) -> Grader:
        """Return a new grader."""
        create: Callable[..., Grader] = getattr(import_module(f"twotemp.graders.{self.module}"), self.name)
        return create(workers=workers) if self.workers else create()


# Built-in graders, and the factories of plug-ins.
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
        "recorded", "RecordedGrader", "grades of another harness, imported with its samples"
    ),
}


def descriptions() -> dict[str, str]:
    """Return the description of each grader; for a plug-in's, the first line of its docstring."""
    return {
        name: grader.description
        if isinstance(grader, GraderEntry)
        else (grader.__doc__ or "").partition("\n")[0]
        for name, grader in GRADERS.items()
    }


def get(name: str, *, workers: int | None = None) -> Grader:
    """Return a new grader; `workers`: its worker processes, if it has any (default: one per usable core)."""
    if name not in GRADERS:
        raise unknown("grader", name, GRADERS)
    entry = GRADERS[name]
    return entry.make(workers) if isinstance(entry, GraderEntry) else entry()
