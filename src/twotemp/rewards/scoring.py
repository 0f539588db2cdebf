"""Scores of a cell's samples, computed once and kept in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from twotemp.errors import UserError
from twotemp.records import Problem
from twotemp.rewards.base import RewardModel
from twotemp.sampling.prompts import answer
from twotemp.store import Cell, Key, row_key

if TYPE_CHECKING:
    from twotemp.rewards.denoiser import DenoiserReward

CHUNK = 1024  # samples between two writes: what a kill costs
OnScores = Callable[[str, int, int], None]  # is called with the cell, samples scored, samples to score
T = TypeVar("T")


def scores(
    cell: Cell, problems: Mapping[str, Problem], model: RewardModel, on_scores: OnScores | None = None
) -> dict[Key, float]:
    """Return the scores of all samples of a cell; those that the store lacks are computed and stored.

    Args:
        cell: whose samples to score, by their text.
        problems: by id.
        model: the reward model.
        on_scores: is called after every chunk.
    """

    def answers() -> Iterator[tuple[Key, tuple[Problem, str]]]:
        for row in cell.light_rows():
            if row["text"] is None:
                raise UserError(f"{cell.path} holds token ids without text, which a reward model cannot read")
            problem = problems[row["request"]]
            yield row_key(row), (problem, answer(problem, row["text"]))

    return _stored(cell, model.name, answers(), model.score, on_scores)


def likelihoods(cell: Cell, model: DenoiserReward, on_scores: OnScores | None = None) -> dict[Key, float]:
    """Return the scores by the model that drew the samples, from their token ids (see `scores`)."""
    from twotemp.rewards.denoiser import sample_row

    rows = ((sample.key, sample_row(model.model, sample)) for sample in cell.samples())
    return _stored(cell, model.name, rows, lambda part: model.score_rows(cell.config.task, part), on_scores)


def _stored(
    cell: Cell,
    name: str,
    items: Iterable[tuple[Key, T]],
    score: Callable[[Sequence[T]], list[float]],
    on_scores: OnScores | None,
) -> dict[Key, float]:
    """Return the stored scores under a name, after computing those of the items that have none."""
    known = cell.scores(name)
    missing = [(key, item) for key, item in items if key not in known]
    if not missing:
        return known
    with cell.writer() as writer:
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            values = score([item for _, item in part])
            pairs = [(key, value) for (key, _), value in zip(part, values)]
            writer.scores(name, pairs)
            known.update(pairs)
            if on_scores is not None:
                on_scores(cell.name, start + len(part), len(missing))
    return known
