"""What a grader is: (problem, text) -> Grade, in bulk, in order, never raising for what a model wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from twotemp.errors import UserError
from twotemp.records import Grade, Problem


class Grader(Protocol):
    """A grader of ours inherits from it: then answers are the same if they are spelled the same, and there is nothing
    to close, unless it says otherwise."""

    name: str  # with its version: numbers from different graders are not comparable

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        """One Grade per item, in the order given. Our own failure is `ungraded`, never `failed`."""
        ...

    def same(self, problem: Problem, a: str, b: str) -> bool:
        """Are two extracted answers to this problem the same answer (1/2 and 0.5 are)?"""
        return a == b

    def close(self) -> None:
        """End worker processes, where there are any."""


def grades(grader: Grader, items: Sequence[tuple[Problem, str]]) -> Iterator[Grade]:
    """What it says of these. A grader of another kind of task, or a plug-in's, may raise anything."""
    try:
        yield from grader.grade(items)
    except UserError:
        raise
    except Exception as error:
        asked = items[0][0].task if items else "no question"
        raise UserError(
            f"the grader {grader.name!r} cannot judge answers of {asked} ({type(error).__name__}: {error}); "
            "choose another one for them with --grader, or mend it and start again"
        ) from error
