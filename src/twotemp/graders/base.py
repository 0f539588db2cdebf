"""The grader protocol, (problem, text) -> Grade in bulk and in order, and the registry of graders.

Text of a model never makes a grader raise. Graders are imported on demand: most have optional dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from twotemp.errors import UserError, unknown
from twotemp.records import Grade, Problem


class Grader(Protocol):
    """Grades texts. A subclass inherits string equality of answers and an empty `close`."""

    name: str  # with its version: numbers from different graders are not comparable

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        """Yield one grade per item, in order. A failure of the grader itself is `ungraded`, never `failed`."""

    def same(self, problem: Problem, a: str, b: str) -> bool:
        """Return whether two extracted answers to this problem are equal (1/2 and 0.5 are)."""
        return a == b

    def close(self) -> None:
        """Stop the worker processes, if there are any."""


def grades(grader: Grader, items: Sequence[tuple[Problem, str]]) -> Iterator[Grade]:
    """Yield the grades of the items; turn any error of a plug-in's or a wrong grader into a UserError."""
    try:
        yield from grader.grade(items)
    except UserError:
        raise
    except Exception as error:
        task = items[0][0].task if items else "no question"
        raise UserError(
            f"the grader {grader.name!r} cannot grade answers of {task} ({type(error).__name__}: {error}); "
            "choose another one for them with --grader, or fix it and start again"
        ) from error


def answer_kind(problem: Problem) -> str:
    """Return how a mathematical answer is written, "number" or "latex"."""
    kind, kinds = problem.reference.get("kind", "number"), ("number", "latex")
    if kind not in kinds:
        raise unknown("kind of answer", kind, kinds)
    return str(kind)


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
    "expression": GraderEntry(
        "puzzles", "ExpressionGrader", "an arithmetic expression that reaches a target"
    ),
    "sudoku": GraderEntry("puzzles", "SudokuGrader", "a solved 4x4 Sudoku grid"),
    "recorded": GraderEntry(
        "puzzles", "RecordedGrader", "grades of another harness, imported with its samples"
    ),
    "none": GraderEntry("puzzles", "NoGrader", "no verdict: for prompts without a right answer"),
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
