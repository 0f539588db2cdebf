"""The graded samples of a cell as arrays, for metrics, reports and selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twotemp.records import Grade, Key
from twotemp.store.rows import row_key


@dataclass(frozen=True)
class Table:
    """One array per question (questions sorted by id, samples by index); questions may differ in n.

    Samples on which a grader itself failed are left out and counted in `ungraded`; those not graded yet in `pending`.
    """

    questions: tuple[str, ...]
    index: tuple[NDArray[np.int64], ...]
    passed: tuple[NDArray[np.bool_], ...]
    answers: tuple[tuple[str | None, ...], ...]
    nfe: tuple[NDArray[np.int64], ...]
    forwards: tuple[NDArray[np.int64], ...]
    seconds: tuple[NDArray[np.float64], ...]
    tokens: tuple[NDArray[np.int64], ...]  # positions written
    ungraded: int
    pending: int

    @property
    def n(self) -> NDArray[np.int64]:
        """Samples per question."""
        return np.array([len(p) for p in self.passed], dtype=np.int64)

    @property
    def correct(self) -> NDArray[np.int64]:
        """Right samples per question."""
        return np.array([p.sum() for p in self.passed], dtype=np.int64)


def build_table(rows: Iterable[Mapping[str, Any]], grades: Mapping[Key, Grade]) -> Table:
    """Build a table from samples as JSON data and their grades."""
    ungraded = pending = 0
    graded: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        grade = grades.get(row_key(row))
        if grade is None:
            pending += 1
        elif grade.outcome == "ungraded":
            ungraded += 1
        else:
            entry = (row["index"], grade.passed, grade.answer, row["nfe"], row["forwards"], row["seconds"])
            graded.setdefault(row["request"], []).append((*entry, row["written"]))
    questions = tuple(sorted(graded))
    columns = [list(zip(*sorted(graded[q], key=lambda entry: entry[0]))) for q in questions]

    def arrays(column: int, kind: type) -> tuple[NDArray[Any], ...]:
        return tuple(np.array(c[column], dtype=kind) for c in columns)

    return Table(
        questions=questions,
        index=arrays(0, np.int64),
        passed=arrays(1, np.bool_),
        answers=tuple(c[2] for c in columns),
        nfe=arrays(3, np.int64),
        forwards=arrays(4, np.int64),
        seconds=arrays(5, np.float64),
        tokens=arrays(6, np.int64),
        ungraded=ungraded,
        pending=pending,
    )
