"""A cell's judged samples as arrays: what metrics, reports and selection work on."""

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
    """One array per question (questions sorted by id, samples by index); questions may differ in their n.

    Samples our own graders failed on are left out and counted in `ungraded`; samples not judged yet in `pending`.
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
        return np.array([len(p) for p in self.passed], dtype=np.int64)

    @property
    def correct(self) -> NDArray[np.int64]:
        return np.array([p.sum() for p in self.passed], dtype=np.int64)


def build_table(rows: Iterable[Mapping[str, Any]], grades: Mapping[Key, Grade]) -> Table:
    """`rows` are samples as plain data, `grades` verdicts by key."""
    ungraded = pending = 0
    judged: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        grade = grades.get(row_key(row))
        if grade is None:
            pending += 1
        elif grade.outcome == "ungraded":
            ungraded += 1
        else:
            entry = (row["index"], grade.passed, grade.answer, row["nfe"], row["forwards"], row["seconds"])
            judged.setdefault(row["request"], []).append((*entry, row["written"]))
    questions = tuple(sorted(judged))
    columns = [list(zip(*sorted(judged[q], key=lambda entry: entry[0]))) for q in questions]

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
