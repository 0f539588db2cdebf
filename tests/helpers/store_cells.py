"""A cell of a store, and the rows that it holds or should hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.store_worker import CONFIG, GRADER, QUESTIONS, draw, judge
from twotemp.records import Grade, Sample
from twotemp.store import Cell, Key, Store


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """Return an empty cell."""
    return Store.create(tmp_path / "run").cell("toy.tct", CONFIG)


def rows(cell: Cell) -> dict[Key, tuple[Sample, Grade | None]]:
    """Return all samples of a cell with their grades, without times."""
    grades = cell.grades(GRADER)
    return {s.key: (replace(s, seconds=0.0), grades.get(s.key)) for s in cell.samples()}


def expected(n: int) -> dict[Key, tuple[Sample, Grade | None]]:
    """Return the rows of a finished run with `n` samples per question."""
    samples = [draw(q, i) for q in QUESTIONS for i in range(n)]
    return {s.key: (replace(s, seconds=0.0), judge(s)) for s in samples}
