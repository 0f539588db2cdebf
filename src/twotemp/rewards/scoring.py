"""The rewards of a cell's samples, computed once and kept in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.rewards.base import RewardModel
from twotemp.sampling.prompts import answer
from twotemp.store import Cell, Key, row_key

if TYPE_CHECKING:
    from twotemp.rewards.likelihood import Likelihood

CHUNK = 1024  # samples between two writes: what a kill costs
Watch = Callable[[str, int, int], None]  # cell, samples scored, samples to score
T = TypeVar("T")


def scores(
    cell: Cell, problems: Mapping[str, Problem], model: RewardModel, watch: Watch | None = None
) -> dict[Key, float]:
    """All samples' rewards by this model; those the store lacks are computed and stored. problems: by id."""

    def answers() -> Iterator[tuple[Key, tuple[Problem, str]]]:
        for row in cell.light_rows():
            if row["text"] is None:
                raise UserError(f"{cell.path} holds token ids without text, which a reward model cannot read")
            problem = problems[row["request"]]
            yield row_key(row), (problem, answer(problem, row["text"]))

    return _kept(cell, model.name, answers(), model.score, watch)


def likelihoods(cell: Cell, itself: Likelihood, watch: Watch | None = None) -> dict[Key, float]:
    """The same of the model that drew the samples, from their rows."""
    from twotemp.rewards.likelihood import row_of

    rows = ((sample.key, row_of(itself.model, cell.config.task, sample)) for sample in cell.samples())
    return _kept(cell, itself.name, rows, itself.of, watch)


def _kept(
    cell: Cell,
    name: str,
    items: Iterable[tuple[Key, T]],
    score: Callable[[Sequence[T]], list[float]],
    watch: Watch | None,
) -> dict[Key, float]:
    known = cell.scores(name)
    todo = [(key, item) for key, item in items if key not in known]
    if not todo:
        return known
    with cell.writer() as writer:
        for start in range(0, len(todo), CHUNK):
            part = todo[start : start + CHUNK]
            fresh = score([item for _, item in part])
            found = [(key, value) for (key, _), value in zip(part, fresh)]
            writer.scores(name, found)
            known.update(found)
            if watch is not None:
                watch(cell.name, start + len(part), len(todo))
    return known
