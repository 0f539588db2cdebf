"""The selectors, as data: each is an election in which answers, or single samples, collect weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twotemp import metrics
from twotemp.analysis.cells import Ballot, GradedCell
from twotemp.errors import UserError, unknown
from twotemp.metrics import NO_ANSWER
from twotemp.metrics.passk import Floats

Election = tuple[
    NDArray[Any], NDArray[Any]
]  # per sample: the candidate it votes for, and the weight of its vote
DRAWS = 1000  # subsets per question without a closed form: an error of at most 0.016, averaged over questions
TIE = 1e-12  # relative: equal sums added in another order may differ in the last digits


@dataclass(frozen=True)
class Selector:
    """`election` decides among all samples of a question; `best` is its success rate over subsets of size k."""

    title: str
    needs: Literal["nothing", "rewards", "traces", "likelihoods"]
    election: Callable[[Ballot], Election]
    best: Callable[[Ballot, Sequence[int]], Floats]


def weighted(title: str, needs: Literal["rewards", "traces"], weight: Callable[[Ballot], Floats]) -> Selector:
    """Return a selector under which equal answers add up their weights."""

    def best(ballot: Ballot, ks: Sequence[int]) -> Floats:
        values, _ = metrics.best_by_weighted_vote(
            ballot.passed, ballot.answers, weight(ballot), ks, draws=DRAWS
        )
        return values

    return Selector(title, needs, lambda ballot: (ballot.answers, weight(ballot)), best)


def probability(reward: Floats) -> Floats:
    """Return sigma(reward). A reward is a log-odds (of being right, or in Bradley-Terry of being preferred) and often
    negative: summed as it is, a bad answer would lose by being given twice."""
    return 0.5 * (1 + np.tanh(reward / 2))


SELECTORS: dict[str, Selector] = {
    "majority": Selector(
        "Self-consistency",
        "nothing",
        lambda b: (b.answers, np.ones(len(b.answers))),
        lambda b, ks: metrics.best_by_vote(b.passed, b.answers, ks),
    ),
    "orm": Selector(
        "ORM",
        "rewards",
        lambda b: (np.arange(len(b.passed)), b.reward),
        lambda b, ks: metrics.best_by_score(b.passed, b.reward, ks),
    ),
    "weighted": weighted("ORM-weighted vote", "rewards", lambda b: probability(b.reward)),
    "confidence": weighted("Confidence-weighted vote", "traces", lambda b: b.confidence),
    "pll": Selector(
        "Pseudo-log-likelihood",
        "likelihoods",
        lambda b: (np.arange(len(b.passed)), b.likelihood),
        lambda b, ks: metrics.best_by_score(b.passed, b.likelihood, ks),
    ),
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
    best = _usable(cell, selector).best
    return np.stack([best(ballot, ks) for ballot in cell.ballots])


def best_for(cell: GradedCell, selector: str, nfe: float) -> Floats:
    """Return Best@NFE of every question: chosen from as many samples as `nfe` function evaluations buy on average.

    A fraction of a sample is a mixture of its two neighbours, as in `metrics.at_budget`.
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
    """Yield for every question the position of the sample chosen from all; None if no sample has an answer."""
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
