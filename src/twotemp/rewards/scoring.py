"""The rewards of a cell's samples, computed once and kept in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twotemp.asking import answer
from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.rewards.base import RewardModel
from twotemp.store import Cell, Key, row_key

CHUNK = 1024  # samples between two writes: what a kill costs


def scores(
    cell: Cell,
    problems: Mapping[str, Problem],
    model: RewardModel,
    watch: Callable[[str, int, int], None] | None = None,
) -> dict[Key, float]:
    """All samples' rewards by this model; those the store lacks are computed and stored.

    problems: by id. watch(cell, scored, all of them) is called as it goes.
    """
    known = cell.scores(model.name)
    todo: list[tuple[Key, Problem, str]] = []
    for row in cell.light_rows():
        key = row_key(row)
        if key not in known:
            if row["text"] is None:
                raise UserError(f"{cell.path} holds token ids without text, which a reward model cannot read")
            problem = problems[key.request]
            todo.append((key, problem, answer(problem, row["text"])))
    if not todo:
        return known
    with cell.writer() as writer:
        for start in range(0, len(todo), CHUNK):
            part = todo[start : start + CHUNK]
            fresh = model.score([(problem, text) for _, problem, text in part])
            found = [(key, score) for (key, _, _), score in zip(part, fresh)]
            writer.scores(model.name, found)
            known.update(found)
            if watch is not None:
                watch(cell.name, start + len(part), len(todo))
    return known
