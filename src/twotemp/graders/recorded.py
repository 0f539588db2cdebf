"""Grades that another harness gave when the samples were drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.records import Grade, Problem


class RecordedGrader(Grader):
    """Stands for imported grades; it cannot grade samples itself."""

    name = "recorded"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        raise UserError(
            "recorded grades came with the imported samples and cannot be computed again; name a grader of texts "
            "(`twotemp graders`)"
        )
