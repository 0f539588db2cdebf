"""Verdicts that another harness gave when the samples were drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twotemp.errors import UserError
from twotemp.records import Grade, Problem


class RecordedGrader:
    """Judges nothing itself: it stands for grades that were imported, where answers are the same if they are spelled
    the same."""

    name = "recorded"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        raise UserError(
            "recorded verdicts came with the imported samples and cannot be given anew; name a grader that judges "
            "texts (`twotemp graders`)"
        )

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return a == b

    def close(self) -> None:
        """Nothing to end: no worker processes."""
