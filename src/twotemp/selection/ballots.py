"""A run's judged samples with what selectors look at: whose answer equals whose, rewards, confidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twotemp import graders, metrics, tasks
from twotemp.errors import UserError
from twotemp.evaluation import grader_of, problems_of
from twotemp.graders.base import Grader
from twotemp.metrics import NO_ANSWER
from twotemp.metrics.passk import Floats
from twotemp.policies import PRESETS, spell
from twotemp.records import Policy, Problem
from twotemp.rewards import RewardModel, scores
from twotemp.selection.answers import group
from twotemp.store import Cell, Key, Store, Table


@dataclass(frozen=True, eq=False)
class Ballot:
    """The samples of one question, in the order of their indices."""

    question: str
    index: NDArray[np.int64]
    passed: NDArray[np.bool_]
    answers: NDArray[np.int64]  # equal answers share a number; NO_ANSWER where none could be read
    spelled: tuple[str, ...]  # the answer behind each number, as it was first written
    nfe: NDArray[np.int64]
    reward: Floats  # empty where no reward model was asked
    confidence: Floats  # mean over the tokens written; empty where it was not asked for


@dataclass(frozen=True, eq=False)
class Ballots:
    """One policy on one task. Answers have the same numbers in all policies of a run."""

    model: str
    task: str
    policy: Policy
    grader: str
    reward_model: str | None
    ballots: tuple[Ballot, ...]
    ungraded: int
    pending: int

    def __iter__(self) -> Iterator[Ballot]:
        return iter(self.ballots)

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(ballot.question for ballot in self.ballots)

    @property
    def samples(self) -> int:
        """Samples a question: the most any has."""
        return max(len(ballot.passed) for ballot in self.ballots)

    @property
    def scored(self) -> bool:
        return self.reward_model is not None

    @property
    def traced(self) -> bool:
        return len(self.ballots[0].confidence) > 0

    @property
    def nfe(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(ballot.nfe for ballot in self.ballots)

    @property
    def cost(self) -> float:
        """Mean NFE of a sample."""
        return metrics.mean_cost(self.nfe)

    @property
    def unread(self) -> int:
        """Samples in which no answer was found: they count among the k, and are never elected."""
        return sum(int((ballot.answers == NO_ANSWER).sum()) for ballot in self.ballots)

    def entropy(self, ks: Sequence[int]) -> Floats:
        """Expected entropy (nats) of the answers among k samples, [questions, ks]."""
        return np.stack([metrics.answer_entropy(ballot.answers, ks) for ballot in self.ballots])


Watch = Callable[[str, int, int], None]  # cell, samples scored, samples to score


def read(
    run: Path | str,
    *,
    grader: str | None = None,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    reward_model: RewardModel | None = None,
    confidence: bool = False,
    watch: Watch | None = None,
) -> list[Ballots]:
    """All cells of a run that have grades: by model, task and policy.

    data: local data files by task, as for `evaluation.regrade`. reward_model: scores what the store has no scores
    of by this model. confidence: read the traces, too.
    """
    together: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell in Store.open(run).cells():
        if (judge := grader_of(cell, grader)) is not None:
            together[cell.config.model, cell.config.task, cell.config.data, judge].append(cell)
    found = []
    for (_, _, _, judge), cells in together.items():
        problems = {p.id: p for p in problems_of(cells[0], data, allow_altered).problems}
        tables = [cell.table(judge) for cell in cells]
        numbers = _number(tables, problems, judge)
        for cell, table in zip(cells, tables):
            if not table.questions:
                continue
            rewards = sure = None
            if reward_model is not None:
                rewards = _column(cell, table, scores(cell, problems, reward_model, watch))
            if confidence:
                sure = _column(cell, table, _confidence(cell))
            ballots = tuple(
                _ballot(table, row, numbers[question], rewards, sure)
                for row, question in enumerate(table.questions)
            )
            config = cell.config
            found.append(
                Ballots(
                    config.model,
                    config.task,
                    config.policy,
                    judge,
                    None if reward_model is None else reward_model.name,
                    ballots,
                    table.ungraded,
                    table.pending,
                )
            )
    if not found:
        raise UserError(
            f"nothing to choose from: {run} has no graded sample; start `twotemp eval` there, or `twotemp regrade` "
            "if it has samples"
        )
    known = list(dict.fromkeys([*tasks.TASKS, *(one.task for one in found)]))
    return sorted(found, key=lambda one: _place(one, known))


def _place(one: Ballots, known: Sequence[str]) -> tuple[Any, ...]:
    order = list(PRESETS).index(one.policy.name), spell(one.policy)
    return (one.model, known.index(one.task), *order)


@dataclass(frozen=True)
class _Numbers:
    """The answers to one question by all policies together."""

    of: Mapping[str | None, int]
    spelled: tuple[str, ...]


def _number(tables: Sequence[Table], problems: Mapping[str, Problem], judge: str) -> dict[str, _Numbers]:
    answers: dict[str, list[str | None]] = defaultdict(list)
    for table in tables:
        for question, given in zip(table.questions, table.answers):
            answers[question] += given
    grader = graders.get(judge.split()[0])
    try:
        # Threads, since a grader may wait for its worker processes.
        with ThreadPoolExecutor() as pool:
            grouped = pool.map(lambda q: _group(problems[q], answers[q], grader), answers)
            return dict(zip(answers, grouped))
    finally:
        grader.close()


def _group(problem: Problem, answers: Sequence[str | None], grader: Grader) -> _Numbers:
    def same(a: str, b: str) -> bool:
        try:
            return grader.same(problem, a, b)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the grader {grader.name!r} cannot compare two answers to {problem.id}, {a[:60]!r} and {b[:60]!r} "
                f"({type(error).__name__}: {error}); choose another one with --grader, or mend it and regrade"
            ) from error

    numbers = group(answers, same)
    of = {answer: int(number) for answer, number in zip(answers, numbers)}
    first: dict[int, str] = {}
    for answer, number in of.items():
        if answer is not None:
            first.setdefault(number, answer)
    return _Numbers(of, tuple(first.values()))


def _ballot(
    table: Table, row: int, numbers: _Numbers, rewards: list[Floats] | None, sure: list[Floats] | None
) -> Ballot:
    none = np.empty(0)
    return Ballot(
        table.questions[row],
        table.index[row],
        table.passed[row],
        np.array([numbers.of[answer] for answer in table.answers[row]], dtype=np.int64),
        numbers.spelled,
        table.nfe[row],
        none if rewards is None else rewards[row],
        none if sure is None else sure[row],
    )


def _column(cell: Cell, table: Table, values: Mapping[Key, float]) -> list[Floats]:
    """The value of every judged sample, question by question."""
    seed = cell.config.seed
    return [
        np.array([values[Key(question, int(i), seed)] for i in index], dtype=np.float64)
        for question, index in zip(table.questions, table.index)
    ]


def _confidence(cell: Cell) -> dict[Key, float]:
    """Mean confidence of the tokens a sample wrote, from its trace."""
    found = {}
    for sample in cell.samples():
        if sample.trace is None:
            raise UserError(
                f"{cell.path} was drawn without traces, so there is no confidence to weigh votes by; draw it again "
                "with `twotemp eval --trace` into another folder, or leave `confidence` out of --by"
            )
        written = [c for c, step in zip(sample.trace.confidence, sample.trace.steps) if step >= 0]
        found[sample.key] = float(np.mean(written)) if written else 0.0
    return found
