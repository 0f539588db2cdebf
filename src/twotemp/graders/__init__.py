"""Graders by name. Imported only when asked for: most need something that not every user has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from twotemp.errors import unknown
from twotemp.graders.base import Grader

# Where each is, or (of a plug-in) what makes one.
_GRADERS: dict[str, tuple[str, str] | Callable[[], Grader]] = {
    "maths": ("twotemp.graders.maths", "MathsGrader"),
    "d1": ("twotemp.graders.d1", "D1Grader"),
    "programs": ("twotemp.graders.programs", "ProgramGrader"),
    "countdown": ("twotemp.graders.puzzles", "CountdownGrader"),
    "recorded": ("twotemp.graders.recorded", "RecordedGrader"),
}
_DESCRIPTIONS = {
    "maths": "numbers and formulas: own extraction, equality by math-verify",
    "d1": "maths as the d1 code base grades it, for comparison",
    "programs": "Python programs, run against tests in a sandbox",
    "countdown": "the embedded arithmetic puzzle",
    "recorded": "verdicts of another harness, imported with its samples",
}
_WITH_WORKERS = ("maths", "programs")


def descriptions() -> dict[str, str]:
    """What each grader judges; of a plug-in's, the first line of its docstring."""
    return {
        name: _DESCRIPTIONS.get(name) or (getattr(make, "__doc__", "") or "").partition("\n")[0]
        for name, make in _GRADERS.items()
    }


def get(name: str, *, workers: int | None = None) -> Grader:
    """A new grader; `workers`: processes of those that use any (default: one for each usable core)."""
    if name not in _GRADERS:
        raise unknown("grader", name, _GRADERS)
    found = _GRADERS[name]
    if callable(found):
        return found()
    module, kind = found
    make: Callable[..., Grader] = getattr(import_module(module), kind)
    return make(workers=workers) if name in _WITH_WORKERS else make()
