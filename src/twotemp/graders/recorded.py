"""Verdicts that another harness gave when the samples were drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.records import Grade, Problem


class RecordedGrader(Grader):
    """Judges nothing itself: it stands for grades that were imported."""

    name = "recorded"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        raise UserError(
            "recorded verdicts came with the imported samples and cannot be given anew; name a grader that judges "
            "texts (`twotemp graders`)"
        )
