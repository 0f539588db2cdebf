"""What a report is made of: all graded samples of one policy, on one task, by one model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.errors import UserError
from twotemp.evaluation import grader_of
from twotemp.metrics import Estimate
from twotemp.metrics.passk import Floats
from twotemp.policies import PRESETS, spell
from twotemp.records import Policy
from twotemp.report import style
from twotemp.store import Cell, Store
from twotemp.tasks import TASKS

T = TypeVar("T")
Cost = Literal["nfe", "forwards", "seconds"]


@dataclass(frozen=True, eq=False)
class Series:
    """Verdicts and costs, question by question. Ungraded samples are left out and counted."""

    model: str
    task: str
    policy: Policy
    grader: str
    length: int
    block: int | None
    questions: tuple[str, ...]
    n: NDArray[np.int64]  # graded samples of each question
    correct: NDArray[np.int64]
    nfe: tuple[NDArray, ...]  # one array a question, one number a graded sample
    forwards: tuple[NDArray, ...]
    seconds: tuple[NDArray, ...]
    tokens: tuple[NDArray, ...]  # tokens written
    ungraded: int = 0  # by our own fault
    pending: int = 0  # not graded yet

    @property
    def samples(self) -> int:
        """Samples a question: the most any has."""
        return int(self.n.max())

    @cached_property
    def passes(self) -> Floats:
        """[questions, samples]: pass@k of each question for every k from 1 on; NaN where it has fewer."""
        return metrics.pass_at_k(self.n, self.correct, range(1, self.samples + 1))

    @cached_property
    def curve(self) -> Estimate:
        """pass@k with its 95 % interval for every k from 1 on; entry k - 1 is pass@k."""
        return metrics.bootstrap(self.passes)

    def cost(self, kind: Cost) -> float:
        """The mean cost of a sample."""
        return metrics.mean_cost(getattr(self, kind))

    @property
    def tokens_per_forward(self) -> float:
        return metrics.tokens_per_forward(self.tokens, self.forwards)


def read(runs: Sequence[Path | str], grader: str | None = None) -> list[Series]:
    """All cells of some runs that have grades; models in the order given, then tasks, then policies.

    grader: a name with or without its version. None is each task's own, or the only one there is.
    """
    series: list[Series] = []
    sources: dict[tuple[str, str, Policy], Path] = {}
    for run in runs:
        for cell in Store.open(run).cells():
            one = _read_cell(cell, grader)
            if one is None:
                continue
            key = (one.model, one.task, one.policy)
            if key in sources:
                raise UserError(
                    f"{sources[key]} and {cell.path} both hold {one.model}, {one.task}, {spell(one.policy)}; "
                    "report them apart"
                )
            sources[key] = cell.path
            series.append(one)
    if not series:
        raise UserError(
            f"nothing to report: no graded sample in {', '.join(map(str, runs))}; start `twotemp eval` there, "
            "or `twotemp regrade` if it has samples"
        )
    models, tasks = unique(s.model for s in series), unique([*TASKS, *(s.task for s in series)])
    presets = unique([*style.NAMES, *PRESETS])  # the paper's six first, in its order
    return sorted(
        series,
        key=lambda s: (
            models.index(s.model),
            tasks.index(s.task),
            presets.index(s.policy.name),
            (s.policy.t_token, s.policy.t_pos, s.policy.threshold, s.policy.k, spell(s.policy)),
        ),
    )


def _read_cell(cell: Cell, grader: str | None) -> Series | None:
    config, judge = cell.config, grader_of(cell, grader)
    if judge is None:
        return None
    table = cell.table(judge)
    if not table.questions:
        return None
    return Series(
        model=config.model,
        task=config.task,
        policy=config.policy,
        grader=judge,
        length=config.length,
        block=config.block,
        questions=table.questions,
        n=table.n,
        correct=table.correct,
        nfe=table.nfe,
        forwards=table.forwards,
        seconds=table.seconds,
        tokens=table.tokens,
        ungraded=table.ungraded,
        pending=table.pending,
    )


class Sampled(Protocol):
    @property
    def samples(self) -> int: ...


def k_grid(series: Iterable[Sampled]) -> list[int]:
    """1, 2, 4, ... and the largest k that some series reaches."""
    most = max(one.samples for one in series)
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return powers if powers[-1] == most else [*powers, most]


def check_grid(ks: Sequence[int], series: Iterable[Series]) -> None:
    """Refuse a k beyond every series: it would be an empty column."""
    most = max(one.samples for one in series)
    if max(ks) > most:
        raise UserError(
            f"pass@{max(ks)} needs {max(ks)} graded samples a question and the run has {most}; "
            f"lower k, or draw more samples (twotemp eval ... -n {max(ks)})"
        )


def unique(values: Iterable[T]) -> list[T]:
    """Without repetitions, in the order of first appearance."""
    return list(dict.fromkeys(values))


def difference(first: Series, second: Series, k: int) -> Floats:
    """pass@k of the first minus the second, on each question they share (NaN where one has fewer samples)."""
    a, b = metrics.align(first.questions, second.questions)
    return first.passes[a, k - 1] - second.passes[b, k - 1]


def difference_at(first: Series, second: Series, budget: float, cost: Cost) -> Floats:
    """The same at equal cost: each side has as many samples as the budget buys."""
    a, b = metrics.align(first.questions, second.questions)
    mine = metrics.at_budget(first.passes[a], first.cost(cost), [budget])
    other = metrics.at_budget(second.passes[b], second.cost(cost), [budget])
    return (mine - other)[:, 0]
