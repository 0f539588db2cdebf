"""From folders to graded cells: what a folder is, what can be read of it, and what is missing or damaged."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twotemp import tasks
from twotemp.analysis.cells import Graded, unique
from twotemp.analysis.names import NAMES
from twotemp.errors import UserError
from twotemp.folders import expect, write_json
from twotemp.policies import PRESETS, spell
from twotemp.records import Policy
from twotemp.store import Cell, Store
from twotemp.tasks import ProblemSet, Task
from twotemp.tasks.imported import imported

DATA = "data.json"  # beside run.json: the local data files by task


@dataclass(frozen=True, eq=False)
class Survey:
    """The graded cells of some runs, and a line for everything that is missing or damaged."""

    cells: list[Graded]
    gaps: list[str]


def read(runs: Sequence[Path | str], grader: str | Mapping[str, str] | None = None) -> list[Graded]:
    """The cells of `survey`."""
    return survey(runs, grader).cells


def survey(runs: Sequence[Path | str], grader: str | Mapping[str, str] | None = None) -> Survey:
    """All cells of some runs that have grades; models in the order given, then tasks, then policies.

    grader: a name with or without its version, or such names by task. None is each task's own, or the only one there
    is.
    """
    cells: list[Graded] = []
    gaps: list[str] = []
    sources: dict[tuple[str, str, Policy], Path] = {}
    for run in runs:
        expect(Path(run), "evaluation")
        store = Store.open(run)
        damaged = store.damage()
        gaps += damaged.values()
        for cell in store.cells(without=damaged):
            wanted = grader.get(cell.config.task) if isinstance(grader, Mapping) else grader
            judge = grader_of(cell, wanted)
            if judge is None:
                gaps.append(f"{cell.path} has no grades: `twotemp regrade {run}`")
                continue
            try:
                one = Graded(cell.path, cell.config, judge, cell.table(judge))
            except UserError as error:
                gaps.append(str(error))
                continue
            if not one.questions:
                gaps.append(f"{cell.path} has no graded sample: `twotemp regrade {run}`")
                continue
            key = (one.model, one.task, one.policy)
            if key in sources:
                raise UserError(
                    f"{sources[key]} and {cell.path} both hold {one.model}, {one.task}, {spell(one.policy)}; "
                    "report them apart"
                )
            sources[key] = cell.path
            cells.append(one)
    if not cells:
        raise UserError(
            f"nothing to report: no graded sample in {', '.join(map(str, runs))}; start `twotemp eval` there, "
            "or `twotemp regrade` if it has samples" + "".join(f". {gap}" for gap in gaps)
        )
    return Survey(_ordered(cells), gaps + list(_incomplete(cells)))


def _incomplete(cells: Sequence[Graded]) -> Iterator[str]:
    """Cells with fewer questions than others of their task, fewer samples of some questions, or not all graded."""
    asked: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for one in cells:
        asked[one.model, one.task, one.config.data].update(one.questions)
    for one in cells:
        everything = len(asked[one.model, one.task, one.config.data])
        waiting, failed = one.table.pending, one.table.ungraded
        if len(one.questions) < everything:
            yield f"{one.path} has graded samples of {len(one.questions)} of {everything} questions"
        lost = one.samples * len(one.questions) - one.drawn - failed - waiting
        if lost > 0:
            yield f"{one.path} lacks {lost} samples of questions that should have {one.samples}"
        if waiting:
            yield f"{one.path} has {waiting} samples that are not graded yet: `twotemp regrade {one.path.parent}`"


def _ordered(cells: Sequence[Graded]) -> list[Graded]:
    models, names = unique(one.model for one in cells), unique(one.task for one in cells)
    known = unique([*tasks.TASKS, *names])
    presets = unique([*NAMES, *PRESETS, *(one.policy.name for one in cells)])  # the paper's six first
    return sorted(
        cells,
        key=lambda one: (
            models.index(one.model),
            known.index(one.task),
            presets.index(one.policy.name),
            (one.policy.t_token, one.policy.t_pos, one.policy.threshold, one.policy.k, spell(one.policy)),
        ),
    )


# --- questions about a cell -----------------------------------------------------------------------------------


def task_of(cell: Cell) -> Task:
    """The task of a cell: one that was imported with its samples, or one of ours."""
    return imported(cell.config.task, cell.path) or tasks.get(cell.config.task)


def grader_of(cell: Cell, wanted: str | None = None) -> str | None:
    """Return the grader of a cell whose verdicts to use, as the store names it, or None if the cell has no grades.

    That is the wanted one (with or without its version), else the task's own, else the only one there is. Of
    several versions of one grader the newest is used.
    """
    there = cell.graders()
    if not there:
        return None
    name = wanted or task_of(cell).grader
    fitting = [grader for grader in there if grader == name or grader.split()[0] == name]
    if not fitting and wanted is None:
        fitting = there
    if len({grader.split()[0] for grader in fitting}) == 1:
        fitting = [max(fitting, key=_version)]
    if len(fitting) != 1:
        raise UserError(
            f"{cell.path} was graded by {', '.join(map(repr, there))}; say which grades to report with "
            f"--grader {cell.config.task}=NAME"
        )
    return fitting[0]


def _version(grader: str) -> list[int]:
    """Return the numbers in a grader's version, for comparing `maths 9` with `maths 10`."""
    return [int(number) for number in re.findall(r"\d+", grader.partition(" ")[2])]


def remember_data(run: Path, files: Mapping[str, tuple[Path, bool]]) -> None:
    """Note which local files a run is drawn from (and whether others than the published rows were allowed), so that
    nobody has to name them again."""
    noted = _noted(run)
    now = {task: {"file": str(file.resolve()), "altered": altered} for task, (file, altered) in files.items()}
    if noted | now != noted:
        write_json(run / DATA, noted | now)


def _noted(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / DATA).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def problems_of(
    cell: Cell, data: Mapping[str, Path] | None = None, allow_altered: bool = False, *, hub: bool = True
) -> ProblemSet:
    """The problems a cell was drawn from; an error where today's data are others.

    data: local files by task, else those the run remembers. hub: whether what is at neither place may be fetched.
    """
    config, noted = cell.config, _noted(cell.path.parent)
    file = (data or {}).get(config.task)
    if file is None and config.task in noted:
        file, allow_altered = Path(noted[config.task]["file"]), noted[config.task]["altered"]
        if not file.is_file():
            raise UserError(
                f"{cell.path} was drawn from {file}, which is not there any more; say where it is: "
                f"--data {config.task}=FILE"
            )
    local = config.task not in tasks.BENCHMARKS or imported(config.task, cell.path) is not None
    if file is None and not hub and not local:
        raise UserError(f"the questions of {config.task} are not at hand: --data {config.task}=FILE")
    found = task_of(cell).problems(
        data=file,
        prompt=config.prompt or None,
        subset=config.subset,
        allow_altered=allow_altered and file is not None,
    )
    if found.digest != config.data:
        raise UserError(
            f"{cell.path} was drawn from other data than {found.source} ({config.data[:12]}…, not "
            f"{found.digest[:12]}…); give the file it was drawn from: --data {config.task}=FILE"
        )
    return found
