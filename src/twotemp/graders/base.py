"""The grader protocol: (problem, text) -> Grade, in bulk and in order. Text of a model never makes it raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from twotemp.errors import UserError
from twotemp.records import Grade, Problem


class Grader(Protocol):
    """Grades texts. A subclass inherits string equality of answers and an empty `close`."""

    name: str  # with its version: numbers from different graders are not comparable

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        """Yield one grade per item, in order. A failure of the grader itself is `ungraded`, never `failed`."""
        ...

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
