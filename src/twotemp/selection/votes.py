"""Graded cells with what selectors look at: whose answer equals whose, rewards, confidence."""

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
from twotemp.analysis import Ballot, Graded, problems_of
from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.metrics import NO_ANSWER
from twotemp.metrics.passk import Floats
from twotemp.records import Problem
from twotemp.rewards import PLL, OnScores, RewardModel, likelihoods, scores
from twotemp.store import Cell, Config, Key, Store

if TYPE_CHECKING:
    from twotemp.rewards.denoiser import DenoiserReward


def count(
    cells: Sequence[Graded],
    *,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    hub: bool = True,
    reward_model: RewardModel | str | None = None,
    confidence: bool = False,
    itself: Callable[[Config], DenoiserReward] | None = None,
    watch: OnScores | None = None,
) -> list[Graded]:
    """The same cells with their `ballots`. Answers have the same numbers in all policies of a task.

    data, allow_altered, hub: where the questions come from, as for `analysis.problems_of`. reward_model: scores what
    the store has no scores of; a name instead of a model: the store has them all (`scored_by`). confidence: read the
    traces, too. itself: the model that drew a cell, whose likelihoods are kept apart (`rewards.sampling_model`).
    """
    stored = {one: Store.open(one.path.parent)[one.path.name] for one in cells}
    together: dict[tuple[str, str, str, str], list[Graded]] = defaultdict(list)
    for one in cells:
        together[one.model, one.task, one.config.data, one.grader].append(one)
    drawers = {} if itself is None else {one: itself(one.config) for one in cells}
    found: dict[Graded, Graded] = {}
    for some in together.values():
        problems = {p.id: p for p in problems_of(stored[some[0]], data, allow_altered, hub=hub).problems}
        numbers = _number(some, problems)
        for one in some:
            rewards = sure = likely = [np.empty(0)] * len(one.questions)
            if isinstance(reward_model, str):
                rewards = _column(one, stored[one].scores(reward_model))
            elif reward_model is not None:
                rewards = _column(one, scores(stored[one], problems, reward_model, watch))
            if confidence:
                sure = _column(one, _confidence(stored[one]))
            if one in drawers:
                likely = _column(one, likelihoods(stored[one], drawers[one], watch))
            name = reward_model if isinstance(reward_model, str | None) else reward_model.name
            found[one] = replace(
                one, ballots=_ballots(one, numbers, rewards, sure, likely), reward_model=name
            )
    return [found[one] for one in cells]


def scored_by(cells: Sequence[Graded]) -> str | None:
    """The reward model that has scored every judged sample; None where there is none, or more than one.

    Pseudo-log-likelihoods are no log-odds of being right, which a weighted vote would take them for.
    """
    stored = [(one, Store.open(one.path.parent)[one.path.name]) for one in cells]
    common = set.intersection(*({*cell.scorers()} for _, cell in stored))
    complete = [
        name
        for name in sorted(common)
        if not name.startswith(PLL) and all({*cell.scores(name)} >= {*_keys(one)} for one, cell in stored)
    ]
    return complete[0] if len(complete) == 1 else None


def group(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> NDArray[np.int64]:
    """Number the answers by `same`, from 0 in the order of first appearance; None (no answer) is NO_ANSWER.

    A grader's equivalence need not be transitive. An answer joins the first group whose first member it equals,
    so the numbers depend on the order of the answers and on nothing else.
    """
    members: list[str] = []  # the first of each group
    number: dict[str, int] = {}
    for answer in answers:
        if answer is None or answer in number:
            continue
        number[answer] = next((at for at, first in enumerate(members) if same(first, answer)), len(members))
        if number[answer] == len(members):
            members.append(answer)
    return np.array([NO_ANSWER if a is None else number[a] for a in answers], dtype=np.int64)


@dataclass(frozen=True)
class _Numbers:
    """The answers to one question by all policies together."""

    of: Mapping[str | None, int]
    spelled: tuple[str, ...]


def _number(cells: Sequence[Graded], problems: Mapping[str, Problem]) -> dict[str, _Numbers]:
    answers: dict[str, list[str | None]] = defaultdict(list)
    for one in cells:
        for question, given in zip(one.questions, one.table.answers):
            answers[question] += given
    # Threads, since a grader may wait for its worker processes.
    with closing(_grader(cells[0].grader)) as grader, ThreadPoolExecutor() as pool:
        grouped = pool.map(lambda q: _group(problems[q], answers[q], grader), answers)
        return dict(zip(answers, grouped))


def _grader(name: str) -> Grader:
    """Who signs grades with this name: ours as they are asked for, with a version; a plug-in's class as it likes."""
    signed = (key for key, make in graders.GRADERS.items() if getattr(make, "name", None) == name)
    return graders.get(next(signed, name.split()[0]))


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


def _ballots(one: Graded, numbers: Mapping[str, _Numbers], *columns: Sequence[Floats]) -> tuple[Ballot, ...]:
    """columns: rewards, confidences and likelihoods, question by question."""
    table = one.table
    return tuple(
        Ballot(
            question,
            table.index[row],
            table.passed[row],
            np.array([numbers[question].of[answer] for answer in table.answers[row]], dtype=np.int64),
            numbers[question].spelled,
            *(column[row] for column in columns),
        )
        for row, question in enumerate(table.questions)
    )


def _keys(one: Graded) -> list[Key]:
    """Of every judged sample, question by question."""
    pairs = zip(one.questions, one.table.index)
    return [Key(question, int(i), one.config.seed) for question, index in pairs for i in index]


def _column(one: Graded, values: Mapping[Key, float]) -> list[Floats]:
    """The value of every judged sample, question by question."""
    flat = np.array([values[key] for key in _keys(one)], dtype=np.float64)
    return np.split(flat, np.cumsum(one.table.n)[:-1])


def _confidence(cell: Cell) -> dict[Key, float]:
    """Mean confidence of the tokens that a sample wrote, from its trace."""
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
