"""The ways to choose, as data: each is an election in which answers, or single samples, collect weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.errors import UserError, unknown
from twotemp.metrics.passk import Floats
from twotemp.selection.answers import elect
from twotemp.selection.ballots import Ballot, Ballots

Election = tuple[NDArray[Any], NDArray[Any]]  # who is voted for by each sample, and with which weight
DRAWS = 1000  # subsets a question where there is no closed form: an error of at most 0.016, averaged over questions


@dataclass(frozen=True)
class Selector:
    """`election` decides among all samples of a question; `best` is its success over subsets of size k."""

    title: str
    needs: Literal["nothing", "rewards", "traces"]
    election: Callable[[Ballot], Election]
    best: Callable[[Ballot, Sequence[int]], Floats]


def weighted(title: str, needs: Literal["rewards", "traces"], weight: Callable[[Ballot], Floats]) -> Selector:
    """Equal answers add their weights."""

    def best(ballot: Ballot, ks: Sequence[int]) -> Floats:
        values, _ = metrics.best_by_weighted_vote(
            ballot.passed, ballot.answers, weight(ballot), ks, draws=DRAWS
        )
        return values

    return Selector(title, needs, lambda ballot: (ballot.answers, weight(ballot)), best)


def probability(reward: Floats) -> Floats:
    """sigma(reward). A reward is a log-odds (of being right, or in Bradley-Terry of being preferred), often below 0:
    summed as it is, a bad answer would lose by being given twice."""
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
    "oracle": Selector(
        "Oracle (pass@k)",
        "nothing",
        lambda b: (np.arange(len(b.passed)), b.passed),
        lambda b, ks: metrics.pass_at_k(len(b.passed), int(b.passed.sum()), ks)[0],
    ),
}


def best_at(ballots: Ballots, selector: str, ks: Sequence[int]) -> Floats:
    """Best@k of every question, [questions, ks]; NaN where a question has fewer than k samples."""
    best = _usable(ballots, selector).best
    return np.stack([best(ballot, ks) for ballot in ballots])


def best_for(ballots: Ballots, selector: str, nfe: float) -> Floats:
    """Best@NFE of every question: chosen from as many samples as so many function evaluations buy on average.

    A broken number of samples is a mixture of its two neighbours, as in `metrics.at_budget`.
    """
    bought = nfe / ballots.cost
    few = int(bought + 1e-9)
    if few < 1:
        raise UserError(f"{nfe:g} NFE do not buy one sample, which costs {ballots.cost:g}")
    part = max(0.0, bought - few)
    many = few + 1 if part > 1e-9 else few
    values = best_at(ballots, selector, [few, many])
    return values[:, 0] + part * (values[:, 1] - values[:, 0])


def choices(ballots: Ballots, selector: str) -> Iterator[int | None]:
    """For every question the position of the sample chosen from all of them; None where none has an answer."""
    election = _usable(ballots, selector).election
    return (elect(*election(ballot)) for ballot in ballots)


def named(names: Sequence[str]) -> tuple[str, ...]:
    """Names of selectors, checked; each once."""
    for name in names:
        if name not in SELECTORS:
            raise unknown("selector", name, SELECTORS)
    return tuple(dict.fromkeys(names))


def _usable(ballots: Ballots, name: str) -> Selector:
    (name,) = named([name])
    selector = SELECTORS[name]
    there = {"nothing": True, "rewards": ballots.scored, "traces": ballots.traced}[selector.needs]
    if not there:
        raise UserError(
            f"choosing by {name} needs {selector.needs}, and these samples were read without; see selection.read"
        )
    return selector
