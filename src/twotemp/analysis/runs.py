"""Read run directories into graded cells, and list what is missing or damaged."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twotemp import tasks
from twotemp.analysis.cells import GradedCell, unique
from twotemp.errors import UserError
from twotemp.evaluation.data import task_of
from twotemp.policies import PRESETS, spell
from twotemp.records import Policy
from twotemp.store import Cell, Store

PAPER_POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")  # listed first, in this order


@dataclass(frozen=True, eq=False)
class RunSurvey:
    """The graded cells of some runs, and a sentence for everything that is missing or damaged."""

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
            yield f"{cell.path} lacks {missing} samples of questions that should have {cell.samples}"
        if pending:
            yield (
                f"{cell.path} has {pending} samples that are not graded yet: `twotemp regrade {cell.path.parent}`"
            )


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
