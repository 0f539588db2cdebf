"""Choose the most diverse policy whose samples the model finds nearly as likely as those of a start; no grader.

Diversity is the overlap distance of the samples of a prompt. Quality is the mean log-probability that the model gave
each token when it was written. All candidates draw for the same prompts with the same noise, so that both are
compared prompt by prompt. A candidate qualifies if its quality is below the start's by at most a margin, also at the
lower end of the paired interval; among those that qualify, the most diverse is chosen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twotemp import metrics
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.metrics.estimates import Floats
from twotemp.policies import parse, spell
from twotemp.records import Policy, Sample
from twotemp.store import Cell
from twotemp.tuning.race import PROBE, affordable_questions
from twotemp.tuning.tuner import RoundCallback, validation

if TYPE_CHECKING:
    from twotemp.backends import Backend

SAMPLES = 8  # of each prompt, unless the goal says how many
Interval = tuple[float, float, float]  # mean, low, high


@dataclass(frozen=True)
class DiversityGoal:
    """`diversity@8`: how different 8 samples of a prompt are."""

    n: int = SAMPLES
    margin: float = 0.1  # nats per token that the quality may be below the start's

    @classmethod
    def parse(cls, text: str, margin: float) -> DiversityGoal | None:
        """Parse `diversity` or `diversity@16`; return None for a goal that needs verdicts."""
        match = re.fullmatch(r"diversity(?:@(\d{1,4}))?", text.strip().lower())
        if match is None:
            return None
        n = int(match[1] or SAMPLES)
        if n < 2:
            raise UserError(f"--at {text}: diversity needs at least 2 samples of each prompt")
        return cls(n, margin)

    def __str__(self) -> str:
        return f"diversity@{self.n}"


@dataclass(frozen=True)
class DiversityStanding:
    """The result of a candidate on the prompts; differences are to the start, with 95 % intervals."""

    candidate: Policy
    diversity: Interval
    more_diverse: Interval
    quality: float  # mean log-probability of a token when it was written
    better: Interval  # in quality
    cost: float  # NFE per sample
    qualifies: bool


@dataclass(frozen=True)
class TunedDiversity:
    """The result of `tune_diversity`."""

    goal: DiversityGoal
    task: TaskChoice
    model: str
    spent: float  # NFE
    prompts: int
    start: Policy
    standings: list[DiversityStanding]  # the chosen one first, then by diversity

    @property
    def chosen(self) -> DiversityStanding:
        return self.standings[0]


def starting_policy(spec: str) -> Policy:
    """Return the policy of a spec: of several values the first, and the preset's own where none is given."""
    return parse(re.sub(r"\|[^,]*", "", spec))


def tune_diversity(
    plan: Plan,
    goal: DiversityGoal,
    backend: Backend,
    out: Path | str,
    *,
    budget: float,
    on_progress: RoundCallback | None = None,
) -> TunedDiversity:
    """Draw with every candidate for as many prompts as the budget allows, and choose.

    Args:
        plan: The candidates, of which the first is the start, the task, and at most how many prompts to use.
        goal: How many samples of each prompt, and the margin.
        backend: Draws the samples.
        out: The run directory.
        budget: NFE of all samples, approximately.
        on_progress: Called with the progress of the drawing.
    """
    plan = replace(validation(plan), n=goal.n, trace=True)
    (choice,) = plan.tasks
    candidates = [policy for policy in plan.policies if isinstance(policy, Policy)]
    most = len(choice.problems().problems[: plan.questions])

    def draw(questions: int) -> list[dict[str, list[Sample]]]:
        report = None if on_progress is None else partial(on_progress, len(candidates), questions)
        with Evaluation(replace(plan, questions=questions), out) as evaluation:
            store = evaluation.run_with(backend, on_progress=report)
            return [_drawn(store[f"{choice.name}@{spell(policy)}"], goal.n) for policy in candidates]

    drawn = draw(min(PROBE, most))
    price = _spent(drawn) / min(PROBE, most)
    drawn = draw(affordable_questions(budget, price, most, len(candidates)))
    ranked = standings(candidates, drawn, goal.margin)
    return TunedDiversity(goal, choice, backend.name, _spent(drawn), len(drawn[0]), candidates[0], ranked)


def standings(
    candidates: Sequence[Policy], drawn: Sequence[dict[str, list[Sample]]], margin: float
) -> list[DiversityStanding]:
    """Return the standings of candidates, the chosen one first; the first candidate is the start.

    Args:
        candidates: What was drawn with.
        drawn: The samples of each candidate, by prompt.
        margin: See `DiversityGoal`.
    """
    prompts = list(drawn[0])
    diversity, quality = (
        np.array([[measure(samples[prompt]) for samples in drawn] for prompt in prompts])
        for measure in (_diversity, _quality)
    )
    levels, gains, gaps = (
        metrics.bootstrap(diversity),
        metrics.paired_bootstrap(diversity, np.repeat(diversity[:, :1], len(drawn), axis=1)),
        metrics.paired_bootstrap(quality, np.repeat(quality[:, :1], len(drawn), axis=1)),
    )
    rows = []
    for n, (candidate, samples) in enumerate(zip(candidates, drawn)):
        level, gain, gap = (
            (float(e.mean[n]), float(e.low[n]), float(e.high[n])) for e in (levels, gains, gaps)
        )
        costs = [sample.nfe for group in samples.values() for sample in group]
        if n == 0:  # to itself
            gain = gap = (0.0, 0.0, 0.0)
        rows.append(
            DiversityStanding(
                candidate,
                diversity=level,
                more_diverse=gain,
                quality=float(quality[:, n].mean()),
                better=gap,
                cost=float(np.mean(costs)),
                qualifies=n == 0 or gap[1] >= -margin,
            )
        )
    return sorted(rows, key=lambda row: (not row.qualifies, -round(row.diversity[0], 9), row.cost))


def _drawn(cell: Cell, n: int) -> dict[str, list[Sample]]:
    """Return the first n samples of each prompt."""
    prompts: dict[str, list[Sample]] = defaultdict(list)
    for sample in cell.samples():
        if sample.index < n:
            prompts[sample.request].append(sample)
    return {prompt: prompts[prompt] for prompt in sorted(prompts)}


def _spent(drawn: Sequence[dict[str, list[Sample]]]) -> float:
    return float(sum(s.nfe for samples in drawn for group in samples.values() for s in group))


def _diversity(samples: Sequence[Sample]) -> float:
    return metrics.overlap_distance([sample.text for sample in samples])


def _quality(samples: Sequence[Sample]) -> float:
    losses: Floats = np.concatenate([metrics.token_losses(sample) for sample in samples])
    return -float(losses.mean())
