"""Give graded cells what selectors look at: which answers are equal, rewards, confidences and likelihoods.

Equality is the grader's own (1/2 and 0.5 are one answer). How to choose is in `selectors`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twotemp import graders
from twotemp.analysis.cells import Ballot, GradedCell
from twotemp.errors import UserError
from twotemp.evaluation.data import problems_of
from twotemp.graders.base import Grader
from twotemp.metrics import NO_ANSWER
from twotemp.metrics.passk import Floats
from twotemp.records import Problem
from twotemp.rewards import PLL, OnScores, RewardModel, likelihoods, scores
from twotemp.store import Cell, Config, Key, Store

if TYPE_CHECKING:
    from twotemp.rewards.denoiser import DenoiserReward


def add_ballots(
    cells: Sequence[GradedCell],
    *,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    hub: bool = True,
    reward_model: RewardModel | str | None = None,
    confidence: bool = False,
    itself: Callable[[Config], DenoiserReward] | None = None,
    watch: OnScores | None = None,
) -> list[GradedCell]:
    """Return the cells with their `ballots`. An answer has the same number under all policies of a task.

    Args:
        cells: Graded cells, whose stores are read again.
        data: Local data files by task, as for `evaluation.data.problems_of`.
        allow_altered: See `problems_of`.
        hub: See `problems_of`.
        reward_model: A model that scores the samples without a stored score, or the name of one whose scores the
            store has for all samples (`common_reward_model`).
        confidence: Whether to read the confidences from the traces.
        itself: Returns the model that drew a cell, for pseudo-log-likelihoods (`rewards.sampling_model`).
        watch: Called with (cell, samples scored, all samples).
    """
    stored = {cell: _stored(cell) for cell in cells}
    groups: dict[tuple[str, str, str, str], list[GradedCell]] = defaultdict(list)
    for cell in cells:
        groups[cell.model, cell.task, cell.config.data, cell.grader].append(cell)
    models = {} if itself is None else {cell: itself(cell.config) for cell in cells}
    name = reward_model if isinstance(reward_model, str | None) else reward_model.name
    result: dict[GradedCell, GradedCell] = {}
    for group in groups.values():
        problems = {p.id: p for p in problems_of(stored[group[0]], data, allow_altered, hub=hub).problems}
        numbered = _number_answers(group, problems)
        for cell in group:
            rewards = confidences = likelihood = [np.empty(0)] * len(cell.questions)
            if isinstance(reward_model, str):
                rewards = _column(cell, stored[cell].scores(reward_model))
            elif reward_model is not None:
                rewards = _column(cell, scores(stored[cell], problems, reward_model, watch))
            if confidence:
                confidences = _column(cell, _confidence(stored[cell]))
            if cell in models:
                likelihood = _column(cell, likelihoods(stored[cell], models[cell], watch))
            ballots = _ballots(cell, numbered, rewards, confidences, likelihood)
            result[cell] = replace(cell, ballots=ballots, reward_model=name)
    return [result[cell] for cell in cells]


def common_reward_model(cells: Sequence[GradedCell]) -> str | None:
    """Return the reward model that has scored every graded sample; None if there is none, or more than one.

    Pseudo-log-likelihoods do not count: they are not log-odds of being right, as a weighted vote would assume.
    """
    stored = [(cell, _stored(cell)) for cell in cells]
    names = set.intersection(*({*store.scorers()} for _, store in stored))
    complete = [
        name
        for name in sorted(names)
        if not name.startswith(PLL) and all({*store.scores(name)} >= {*_keys(cell)} for cell, store in stored)
    ]
    return complete[0] if len(complete) == 1 else None


def group_answers(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> NDArray[np.int64]:
    """Number the answers by `same`, from 0 in the order of first appearance; None (no answer) is NO_ANSWER.

    A grader's equality need not be transitive. An answer joins the first group whose first member it equals,
    so the numbers depend on the order of the answers and on nothing else.
    """
    members: list[str] = []  # the first of each group
    number: dict[str, int] = {}
    for answer in answers:
        if answer is None or answer in number:
            continue
        number[answer] = next((i for i, first in enumerate(members) if same(first, answer)), len(members))
        if number[answer] == len(members):
            members.append(answer)
    return np.array([NO_ANSWER if a is None else number[a] for a in answers], dtype=np.int64)


@dataclass(frozen=True)
class _NumberedAnswers:
    """The answers to one question under all policies."""

    number: Mapping[str | None, int]
    spelled: tuple[str, ...]


def _stored(cell: GradedCell) -> Cell:
    return Store.open(cell.path.parent)[cell.path.name]


def _number_answers(
    cells: Sequence[GradedCell], problems: Mapping[str, Problem]
) -> dict[str, _NumberedAnswers]:
    answers: dict[str, list[str | None]] = defaultdict(list)
    for cell in cells:
        for question, extracted in zip(cell.questions, cell.table.answers):
            if question not in problems:
                raise UserError(
                    f"{cell.path} has samples of question {question!r}, which {cell.task} does not have; the run is "
                    "damaged: restore it from a copy"
                )
            answers[question] += extracted
    # Threads, since a grader may wait for its worker processes.
    with closing(_grader(cells[0].grader)) as grader, ThreadPoolExecutor() as pool:
        numbered = pool.map(lambda q: _number(problems[q], answers[q], grader), answers)
        return dict(zip(answers, numbered))


def _grader(name: str) -> Grader:
    """Return the grader that signs its grades with this name.

    Our graders sign with their registered name and a version; a plug-in's class may sign with any name.
    """
    registered = (key for key, make in graders.GRADERS.items() if getattr(make, "name", None) == name)
    return graders.get(next(registered, name.split()[0]))


def _number(problem: Problem, answers: Sequence[str | None], grader: Grader) -> _NumberedAnswers:
    def same(a: str, b: str) -> bool:
        try:
            return grader.same(problem, a, b)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the grader {grader.name!r} cannot compare two answers to {problem.id}, {a[:60]!r} and {b[:60]!r} "
                f"({type(error).__name__}: {error}); choose another one with --grader, or fix it and regrade"
            ) from error

    numbers = group_answers(answers, same)
    number = {answer: int(n) for answer, n in zip(answers, numbers)}
    first: dict[int, str] = {}
    for answer, n in number.items():
        if answer is not None:
            first.setdefault(n, answer)
    return _NumberedAnswers(number, tuple(first.values()))


def _ballots(
    cell: GradedCell, numbered: Mapping[str, _NumberedAnswers], *columns: Sequence[Floats]
) -> tuple[Ballot, ...]:
    """Build the ballots; `columns` are rewards, confidences and likelihoods, question by question."""
    table = cell.table
    return tuple(
        Ballot(
            question,
            table.index[row],
            table.passed[row],
            np.array([numbered[question].number[answer] for answer in table.answers[row]], dtype=np.int64),
            numbered[question].spelled,
            *(column[row] for column in columns),
        )
        for row, question in enumerate(table.questions)
    )


def _keys(cell: GradedCell) -> list[Key]:
    """Return the key of every graded sample, question by question."""
    pairs = zip(cell.questions, cell.table.index)
    return [Key(question, int(i), cell.config.seed) for question, index in pairs for i in index]


def _column(cell: GradedCell, values: Mapping[Key, float]) -> list[Floats]:
    """Return the values of the graded samples, one array per question."""
    flat = np.array([values[key] for key in _keys(cell)], dtype=np.float64)
    return np.split(flat, np.cumsum(cell.table.n)[:-1])


def _confidence(cell: Cell) -> dict[Key, float]:
    """Return the mean confidence of the tokens that each sample generated, from its trace."""
    means = {}
    for sample in cell.samples():
        if sample.trace is None:
            raise UserError(
                f"{cell.path} was drawn without traces, so there is no confidence to weight votes by; draw it again "
                "with `twotemp eval --trace` into another folder, or leave `confidence` out of --by"
            )
        written = [c for c, step in zip(sample.trace.confidence, sample.trace.steps) if step >= 0]
        means[sample.key] = float(np.mean(written)) if written else 0.0
    return means
