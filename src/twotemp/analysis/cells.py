"""Read run directories into graded cells, each with the samples of one policy, on one task, by one model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics, tasks
from twotemp.errors import UserError, counted
from twotemp.evaluation.work import task_of
from twotemp.metrics import NO_ANSWER, Estimate
from twotemp.metrics.estimates import Floats, grid
from twotemp.policies import PRESETS, spell
from twotemp.records import Policy
from twotemp.store import Cell, Config, Store, Table

T = TypeVar("T")
Cost = Literal["nfe", "forwards", "seconds"]


@dataclass(frozen=True, eq=False)
class Ballot:
    """The samples of one question, ordered by index, with everything that selectors look at."""

    question: str
    index: NDArray[np.int64]
    passed: NDArray[np.bool_]
    answers: NDArray[np.int64]  # equal answers share a number; NO_ANSWER if none could be extracted
    spelled: tuple[str, ...]  # the text behind each number, as it first appeared
    reward: Floats  # empty without a reward model
    confidence: Floats  # mean over the generated tokens; empty unless requested
    likelihood: Floats  # pseudo-log-likelihood; empty unless requested


@dataclass(frozen=True, eq=False)
class GradedCell:
    """Grades, costs and answers of a cell, question by question. Ungraded samples are left out and counted.

    `ballots` is empty until `add_ballots` has compared the answers; then it has one entry per question.
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
    def ordered(self) -> bool:
        """Whether pass@k uses the first k samples (as for a portfolio) instead of any k."""
        return False

    @property
    def questions(self) -> tuple[str, ...]:
        return self.table.questions

    @property
    def samples(self) -> int:
        """The largest number of graded samples that any question has."""
        return int(self.table.n.max())

    @property
    def drawn(self) -> int:
        """The number of graded samples over all questions."""
        return int(self.table.n.sum())

    @cached_property
    def passes(self) -> Floats:
        """pass@k per question for k = 1, 2, ...: [questions, samples]; NaN where a question has fewer than k."""
        return metrics.pass_at_k(self.table.n, self.table.correct, range(1, self.samples + 1))

    @cached_property
    def curve(self) -> Estimate:
        """pass@k with its 95 % interval for k = 1, 2, ...; entry k - 1 is pass@k."""
        return metrics.bootstrap(self.passes)

    def questions_at(self, k: int) -> frozenset[str]:
        """Return the questions that pass@k averages over: those with at least k samples."""
        return frozenset(q for q, n in zip(self.questions, self.table.n) if n >= k)

    def cost(self, kind: Cost = "nfe") -> float:
        """Return the mean cost of a sample."""
        return metrics.mean_cost(getattr(self.table, kind))

    def costs(self, kind: Cost, ks: Sequence[int]) -> Floats:
        """Return the cost of k samples for each k: the x axis of pass@NFE."""
        return metrics.cost_axis(getattr(self.table, kind), ks)

    def summary(self) -> dict[str, Any]:
        """Return the identity and the size of the cell as JSON data."""
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
    def without_answer(self) -> int:
        """The number of samples without an answer. They count among the k samples but have no vote."""
        return sum(int((ballot.answers == NO_ANSWER).sum()) for ballot in self.ballots)

    def entropy(self, ks: Sequence[int]) -> Floats:
        """Return the expected entropy (nats) of the answers among k samples, [questions, ks]."""
        return np.stack([metrics.answer_entropy(ballot.answers, ks) for ballot in self.ballots])

    def only(self, rows: Sequence[int] | NDArray[np.int64]) -> GradedCell:
        """Return the cell restricted to these rows (questions), in this order."""
        columns = {f.name: getattr(self.table, f.name) for f in fields(self.table)}
        picked: dict[str, Any] = {
            name: tuple(column[row] for row in rows)
            for name, column in columns.items()
            if isinstance(column, tuple)
        }
        ballots = tuple(self.ballots[row] for row in rows) if self.ballots else ()
        return replace(self, table=replace(self.table, **picked), ballots=ballots)


def shared(first: GradedCell, second: GradedCell) -> tuple[GradedCell, GradedCell] | None:
    """Return both cells restricted to their common questions, in the same order; None if there are none."""
    if first.questions == second.questions:
        return first, second
    if not {*first.questions} & {*second.questions}:
        return None
    a, b = metrics.align(first.questions, second.questions)
    return first.only(a), second.only(b)


def k_grid(cells: Iterable[GradedCell]) -> list[int]:
    """Return 1, 2, 4, ... and the largest k that any cell reaches."""
    most = max(cell.samples for cell in cells)
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return powers if powers[-1] == most else [*powers, most]


def check_grid(ks: Sequence[int], cells: Iterable[GradedCell]) -> None:
    """Raise a UserError for anything but integers >= 1, and for a k that no cell reaches (an empty column)."""
    most = max(cell.samples for cell in cells)
    if grid(ks).max() > most:
        raise UserError(
            f"pass@{max(ks)} needs {max(ks)} graded samples per question and the run has {most}; "
            f"lower k, or draw more samples (twotemp eval ... -n {max(ks)})"
        )


def unique(values: Iterable[T]) -> list[T]:
    """Return the values without repetitions, in the order of their first appearance."""
    return list(dict.fromkeys(values))


PAPER_POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")  # listed first, in this order


@dataclass(frozen=True, eq=False)
class RunSurvey:
    """The graded cells of some runs, and one sentence for each missing or damaged part."""

    cells: list[GradedCell]
    gaps: list[str]


def read(runs: Sequence[Path | str], grader: str | Mapping[str, str] | None = None) -> list[GradedCell]:
    """Return the cells of `survey`."""
    return survey(runs, grader).cells


def survey(runs: Sequence[Path | str], grader: str | Mapping[str, str] | None = None) -> RunSurvey:
    """Read all cells of some runs that have grades.

    Args:
        runs: Run directories.
        grader: A grader with or without its version, or such names by task. None: each task's own grader, or the only
            one that graded the cell.

    Returns:
        The cells, ordered by model (as given), task and policy, and what is missing.
    """
    cells: list[GradedCell] = []
    gaps: list[str] = []
    sources: dict[tuple[str, str, Policy], Path] = {}
    for run in runs:
        store = Store.open(run)
        damaged = store.damage()
        gaps += damaged.values()
        for stored in store.cells(without=damaged):
            requested = grader.get(stored.config.task) if isinstance(grader, Mapping) else grader
            name = grader_of(stored, requested)
            if name is None:
                gaps.append(f"{stored.path} has no grades: `twotemp regrade {run}`")
                continue
            try:
                cell = GradedCell(stored.path, stored.config, name, stored.table(name))
            except UserError as error:
                gaps.append(str(error))
                continue
            if not cell.questions:
                gaps.append(f"{stored.path} has no graded sample: `twotemp regrade {run}`")
                continue
            key = (cell.model, cell.task, cell.policy)
            if key in sources:
                raise UserError(
                    f"{sources[key]} and {stored.path} both hold {cell.model}, {cell.task}, {spell(cell.policy)}; "
                    "report them separately"
                )
            sources[key] = stored.path
            cells.append(cell)
    if not cells:
        raise UserError(
            f"nothing to report: no graded sample in {', '.join(map(str, runs))}; run `twotemp eval` there, "
            "or `twotemp regrade` if it has samples" + "".join(f". {gap}" for gap in gaps)
        )
    return RunSurvey(_sorted(cells), gaps + list(_incomplete(cells)))


def _incomplete(cells: Sequence[GradedCell]) -> Iterator[str]:
    """Yield a sentence per cell with missing questions, missing samples or samples that are not graded yet."""
    asked: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for cell in cells:
        asked[cell.model, cell.task, cell.config.data].update(cell.questions)
    for cell in cells:
        total = len(asked[cell.model, cell.task, cell.config.data])
        pending, ungraded = cell.table.pending, cell.table.ungraded
        if len(cell.questions) < total:
            yield f"{cell.path} has graded samples of {len(cell.questions)} of {total} questions"
        missing = cell.samples * len(cell.questions) - cell.drawn - ungraded - pending
        if missing > 0:
            yield f"{cell.path} lacks {counted(missing, 'sample')} of questions that should have {cell.samples}"
        if pending:
            samples = counted(pending, "sample")
            yield f"{cell.path} has {samples} without a grade: `twotemp regrade {cell.path.parent}`"


def _sorted(cells: Sequence[GradedCell]) -> list[GradedCell]:
    models, names = unique(cell.model for cell in cells), unique(cell.task for cell in cells)
    known = unique([*tasks.TASKS, *names])
    presets = unique([*PAPER_POLICIES, *PRESETS, *(cell.policy.name for cell in cells)])
    return sorted(
        cells,
        key=lambda cell: (
            models.index(cell.model),
            known.index(cell.task),
            presets.index(cell.policy.name),
            (
                cell.policy.t_token,
                cell.policy.t_pos,
                cell.policy.threshold,
                cell.policy.k,
                spell(cell.policy),
            ),
        ),
    )


def grader_of(cell: Cell, requested: str | None = None) -> str | None:
    """Return the name of the grader whose grades of a cell to use, as the store spells it.

    Args:
        cell: A cell of a run.
        requested: A grader, with or without its version. None: the task's own, else the only one there is. Of
            several versions of one grader the newest is used.

    Returns:
        The grader's name with its version; None if the cell has no grades.
    """
    available = cell.graders()
    if not available:
        return None
    name = requested or task_of(cell).grader
    matching = [grader for grader in available if grader == name or grader.split()[0] == name]
    if not matching and requested is None:
        matching = available
    if len({grader.split()[0] for grader in matching}) == 1:
        matching = [max(matching, key=_version)]
    if len(matching) != 1:
        raise UserError(
            f"{cell.path} was graded by {', '.join(map(repr, available))}; choose the grades to report with "
            f"--grader {cell.config.task}=NAME"
        )
    return matching[0]


def _version(grader: str) -> list[int]:
    """Return the numbers in a grader's version, for comparing `maths 9` with `maths 10`."""
    return [int(number) for number in re.findall(r"\d+", grader.partition(" ")[2])]
