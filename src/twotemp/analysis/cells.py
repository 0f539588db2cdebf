"""One view of a graded cell: the judged samples of one policy, on one task, by one model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.errors import UserError
from twotemp.metrics import NO_ANSWER, Estimate
from twotemp.metrics.passk import Floats, grid
from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.store import Config, Table

T = TypeVar("T")
Cost = Literal["nfe", "forwards", "seconds"]


@dataclass(frozen=True, eq=False)
class Ballot:
    """The samples of one question, in the order of their indices, with what selectors look at."""

    question: str
    index: NDArray[np.int64]
    passed: NDArray[np.bool_]
    answers: NDArray[np.int64]  # equal answers share a number; NO_ANSWER where none could be read
    spelled: tuple[str, ...]  # the answer behind each number, as it was first written
    reward: Floats  # empty where no reward model was asked
    confidence: Floats  # mean over the tokens written; empty where it was not asked for
    likelihood: Floats  # pseudo-log-likelihood; empty where it was not asked for


@dataclass(frozen=True, eq=False)
class Graded:
    """Verdicts, costs and answers, question by question. Ungraded samples are left out and counted.

    `ballots` are there when answers were compared (`selection.count`), one for each question.
    """

    path: Path
    config: Config
    grader: str
    table: Table
    ballots: tuple[Ballot, ...] = ()
    reward_model: str | None = None

    @property
    def model(self) -> str:
        return self.config.model

    @property
    def task(self) -> str:
        return self.config.task

    @property
    def policy(self) -> Policy:
        return self.config.policy

    @property
    def questions(self) -> tuple[str, ...]:
        return self.table.questions

    @property
    def samples(self) -> int:
        """Samples per question: the most any has."""
        return int(self.table.n.max())

    @property
    def drawn(self) -> int:
        """Samples that were judged, of all questions."""
        return int(self.table.n.sum())

    @cached_property
    def passes(self) -> Floats:
        """[questions, samples]: pass@k of each question for every k from 1 on; NaN where it has fewer."""
        return metrics.pass_at_k(self.table.n, self.table.correct, range(1, self.samples + 1))

    @cached_property
    def curve(self) -> Estimate:
        """pass@k with its 95 % interval for every k from 1 on; entry k - 1 is pass@k."""
        return metrics.bootstrap(self.passes)

    def questions_at(self, k: int) -> frozenset[str]:
        """The questions that pass@k rests on: those with k samples or more."""
        return frozenset(q for q, n in zip(self.questions, self.table.n) if n >= k)

    def cost(self, kind: Cost = "nfe") -> float:
        """The mean cost of a sample."""
        return metrics.mean_cost(getattr(self.table, kind))

    def costs(self, kind: Cost, ks: Sequence[int]) -> Floats:
        """What k samples cost: the x axis of pass@NFE."""
        return metrics.cost_axis(getattr(self.table, kind), ks)

    def summary(self) -> dict[str, Any]:
        """Which cell it is, and how large, as JSON data."""
        return {
            "model": self.model,
            "task": self.task,
            "policy": spell(self.policy),
            "grader": self.grader,
            "questions": len(self.questions),
            "n": self.samples,
            "ungraded": self.table.ungraded,
            "nfe": self.cost("nfe"),
        }

    @property
    def tokens_per_forward(self) -> float:
        return metrics.tokens_per_forward(self.table.tokens, self.table.forwards)

    @property
    def unread(self) -> int:
        """Samples in which no answer was found: they count among the k, and have no vote."""
        return sum(int((ballot.answers == NO_ANSWER).sum()) for ballot in self.ballots)

    def entropy(self, ks: Sequence[int]) -> Floats:
        """Expected entropy (nats) of the answers among k samples, [questions, ks]."""
        return np.stack([metrics.answer_entropy(ballot.answers, ks) for ballot in self.ballots])

    def only(self, rows: Sequence[int] | NDArray[np.int64]) -> Graded:
        """The same with these questions alone, in this order."""
        columns = {f.name: getattr(self.table, f.name) for f in fields(self.table)}
        picked: dict[str, Any] = {
            name: tuple(column[row] for row in rows)
            for name, column in columns.items()
            if isinstance(column, tuple)
        }
        ballots = tuple(self.ballots[row] for row in rows) if self.ballots else ()
        return replace(self, table=replace(self.table, **picked), ballots=ballots)


def shared(first: Graded, second: Graded) -> tuple[Graded, Graded] | None:
    """Both with the questions that both have, in the same order; None where there is none."""
    if first.questions == second.questions:
        return first, second
    if not {*first.questions} & {*second.questions}:
        return None
    a, b = metrics.align(first.questions, second.questions)
    return first.only(a), second.only(b)


def k_grid(cells: Iterable[Graded]) -> list[int]:
    """1, 2, 4, ... and the largest k that some cell reaches."""
    most = max(one.samples for one in cells)
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return powers if powers[-1] == most else [*powers, most]


def check_grid(ks: Sequence[int], cells: Iterable[Graded]) -> None:
    """Refuse what is no k, and a k beyond every cell: it would be an empty column."""
    most = max(one.samples for one in cells)
    if grid(ks).max() > most:
        raise UserError(
            f"pass@{max(ks)} needs {max(ks)} graded samples per question and the run has {most}; "
            f"lower k, or draw more samples (twotemp eval ... -n {max(ks)})"
        )


def unique(values: Iterable[T]) -> list[T]:
    """Without repetitions, in the order of first appearance."""
    return list(dict.fromkeys(values))
