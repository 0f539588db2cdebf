"""Choose one answer from many: the selectors as data, and the ballots that they read.

A selector is an election in which answers, or single samples, collect weights. The grader decides which answers are
equal (1/2 and 0.5 are one answer).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twotemp import graders, metrics
from twotemp.analysis.cells import Ballot, GradedCell
from twotemp.errors import UserError, unknown
from twotemp.evaluation.work import problems_of
from twotemp.graders.base import Grader
from twotemp.metrics import NO_ANSWER
from twotemp.metrics.estimates import Floats
from twotemp.records import Problem
from twotemp.rewards import PLL, OnScores, RewardModel, likelihoods, scores
from twotemp.store import Cell, Config, Key, Store

if TYPE_CHECKING:
    from twotemp.rewards.denoiser import DenoiserReward

# Per sample: the candidate it votes for, and the weight of its vote.
Election = tuple[NDArray[Any], NDArray[Any]]
DRAWS = 1000  # subsets per question without a closed form: an error of at most 0.016, averaged over questions
TIE = 1e-12  # relative: equal sums added in another order may differ in the last digits


@dataclass(frozen=True)
class Selector:
    """`election` decides among all samples of a question; `best` is its success rate over subsets of size k."""

    title: str
    needs: Literal["nothing", "rewards", "traces", "likelihoods"]
    election: Callable[[Ballot], Election]
    best: Callable[[Ballot, Sequence[int]], Floats]


def highest(
    title: str, needs: Literal["rewards", "likelihoods"], score: Callable[[Ballot], Floats]
) -> Selector:
    """Return a selector under which the sample with the highest score wins."""
    return Selector(
        title,
        needs,
        lambda ballot: (np.arange(len(ballot.passed)), score(ballot)),
        lambda ballot, ks: metrics.best_by_score(ballot.passed, score(ballot), ks),
    )


def weighted(title: str, needs: Literal["rewards", "traces"], weight: Callable[[Ballot], Floats]) -> Selector:
    """Return a selector under which equal answers add up their weights."""

    def best(ballot: Ballot, ks: Sequence[int]) -> Floats:
        values, _ = metrics.best_by_weighted_vote(
            ballot.passed, ballot.answers, weight(ballot), ks, draws=DRAWS
        )
        return values

    return Selector(title, needs, lambda ballot: (ballot.answers, weight(ballot)), best)


def probability(reward: Floats) -> Floats:
    """Return sigma(reward), the weight of a vote.

    A reward is a log-odds (of being right, or in Bradley-Terry of being preferred) and often negative. If rewards
    were summed directly, a bad answer would get an even lower total by being given twice.
    """
    return 0.5 * (1 + np.tanh(reward / 2))


SELECTORS: dict[str, Selector] = {
    "majority": Selector(
        "Self-consistency",
        "nothing",
        lambda b: (b.answers, np.ones(len(b.answers))),
        lambda b, ks: metrics.best_by_vote(b.passed, b.answers, ks),
    ),
    "orm": highest("ORM", "rewards", lambda b: b.reward),
    "weighted": weighted("ORM-weighted vote", "rewards", lambda b: probability(b.reward)),
    "confidence": weighted("Confidence-weighted vote", "traces", lambda b: b.confidence),
    "pll": highest("Pseudo-log-likelihood", "likelihoods", lambda b: b.likelihood),
    "oracle": Selector(
        "Oracle (pass@k)",
        "nothing",
        lambda b: (np.arange(len(b.passed)), b.passed),
        lambda b, ks: metrics.pass_at_k(len(b.passed), int(b.passed.sum()), ks)[0],
    ),
}


def elect(answers: ArrayLike, weights: ArrayLike) -> int | None:
    """Return the position of the sample that represents the answer with the largest total weight.

    If answers tie, the one given first wins; its first sample represents it. None if no sample has an answer.
    """
    groups, weight = np.asarray(answers), np.asarray(weights, dtype=np.float64)
    if groups.shape != weight.shape or groups.ndim != 1:
        raise UserError(
            f"one answer and one weight per sample are needed, not {groups.shape} and {weight.shape}"
        )
    if not np.isfinite(weight).all():
        raise UserError("a weight is not finite; check the scores that the vote is weighted by")
    answered = np.flatnonzero(groups != NO_ANSWER)
    if not len(answered):
        return None
    _, first, inverse = np.unique(groups[answered], return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=weight[answered])
    tied = total >= total.max() - TIE * max(1.0, abs(total.max()))
    return int(answered[first[tied].min()])


def best_at(cell: GradedCell, selector: str, ks: Sequence[int]) -> Floats:
    """Return Best@k of every question, [questions, ks]; NaN where a question has fewer than k samples."""
    usable = _usable(cell, selector)
    best = (lambda ballot, ks: _first_best(usable, ballot, ks)) if cell.ordered else usable.best
    return np.stack([best(ballot, ks) for ballot in cell.ballots])


def _first_best(selector: Selector, ballot: Ballot, ks: Sequence[int]) -> Floats:
    """Return whether the answer chosen from the first k samples is right, for each k."""
    right = np.full(len(ks), np.nan)
    for column, k in enumerate(ks):
        if k <= len(ballot.passed):
            answers, weights = selector.election(ballot)
            position = elect(answers[:k], weights[:k])
            right[column] = 0.0 if position is None else float(ballot.passed[position])
    return right


def best_for(cell: GradedCell, selector: str, nfe: float) -> Floats:
    """Return Best@NFE of every question: chosen from as many samples as `nfe` function evaluations buy on average.

    A fraction of a sample is a mixture of its two neighbors, as in `metrics.at_budget`.
    """
    bought = nfe / cell.cost()
    few = int(bought + 1e-9)
    if few < 1:
        raise UserError(f"{nfe:g} NFE do not buy one sample, which costs {cell.cost():g}")
    fraction = max(0.0, bought - few)
    many = few + 1 if fraction > 1e-9 else few
    values = best_at(cell, selector, [few, many])
    mixed: Floats = values[:, 0] + fraction * (values[:, 1] - values[:, 0])
    return mixed


def choices(cell: GradedCell, selector: str) -> Iterator[int | None]:
    """Yield, per question, the position of the sample chosen from all; None if no sample has an answer."""
    election = _usable(cell, selector).election
    return (elect(*election(ballot)) for ballot in cell.ballots)


def check_selectors(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without repetitions; raise a UserError for an unknown one, or if there are none."""
    if not names:
        raise UserError(f"no selector given; name some of {', '.join(SELECTORS)}")
    for name in names:
        if name not in SELECTORS:
            raise unknown("selector", name, SELECTORS)
    return tuple(dict.fromkeys(names))


def _usable(cell: GradedCell, name: str) -> Selector:
    """Return the selector; raise a UserError if the cell's ballots lack what it needs."""
    check_selectors([name])
    selector = SELECTORS[name]
    available = {
        "nothing": bool(cell.ballots),
        "rewards": cell.reward_model is not None,
        "traces": bool(cell.ballots) and len(cell.ballots[0].confidence) > 0,
        "likelihoods": bool(cell.ballots) and len(cell.ballots[0].likelihood) > 0,
    }
    if not available[selector.needs]:
        needs = "answers" if selector.needs == "nothing" else selector.needs
        raise UserError(f"choosing by {name} needs {needs}; request them from analysis.add_ballots")
    return selector


def add_ballots(
    cells: Sequence[GradedCell],
    *,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    hub: bool = True,
    reward_model: RewardModel | str | None = None,
    confidence: bool = False,
    sampling_model: Callable[[Config], DenoiserReward] | None = None,
    on_scores: OnScores | None = None,
) -> list[GradedCell]:
    """Return the cells with their `ballots`. An answer has the same number under all policies of a task.

    Args:
        cells: Graded cells, whose stores are read again.
        data, allow_altered, hub: See `evaluation.work.problems_of`.
        reward_model: A model that scores the samples without a stored score, or the name of one whose scores the
            store has for all samples (`common_reward_model`).
        confidence: Whether to read the confidences from the traces.
        sampling_model: Returns the model that drew a cell, for pseudo-log-likelihoods (`rewards.sampling_model`).
        on_scores: Called with (cell, samples scored, all samples).
    """
    stored = {cell: _stored(cell) for cell in cells}
    groups: dict[tuple[str, str, str, str], list[GradedCell]] = defaultdict(list)
    for cell in cells:
        groups[cell.model, cell.task, cell.config.data, cell.grader].append(cell)
    models = {} if sampling_model is None else {cell: sampling_model(cell.config) for cell in cells}
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
                rewards = _column(cell, scores(stored[cell], problems, reward_model, on_scores))
            if confidence:
                confidences = _column(cell, _confidence(stored[cell]))
            if cell in models:
                likelihood = _column(cell, likelihoods(stored[cell], models[cell], on_scores))
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
