"""What a grader is: (problem, text) -> Grade, in bulk, in order, never raising for what a model wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

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
