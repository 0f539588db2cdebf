"""Stored samples, looked at again: which problems they answer, whose grades they have, and grading them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from twotemp import graders, tasks
from twotemp.errors import UserError
from twotemp.evaluation.plan import TaskChoice
from twotemp.evaluation.work import CHUNK_SAMPLES, CellWork, LoadedTask, parts
from twotemp.store import Cell, Store
from twotemp.tasks import ProblemSet, Task
from twotemp.tasks.imported import imported


def regrade(
    run: Path | str,
    *,
    grader: str | None = None,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    again: bool = False,
    watch: Callable[[str, int], None] | None = None,
) -> dict[str, int]:
    """Grade the samples of a run that this grader has not judged, without drawing any; cell -> how many.

    grader: another than the task's own. data: local data files by task, the ones the run was drawn from.
    again: judge all samples once more.
    watch(cell, samples judged) is called as it goes.
    """
    judged: dict[str, int] = {}
    for cell in Store.open(run).cells():
        found, task = problems_of(cell, data, allow_altered), task_of(cell)
        judge = graders.get(grader or task.grader)
        judged[cell.name] = 0
        try:
            by_id = {problem.id: problem for problem in found.problems}
            loaded = LoadedTask(TaskChoice(task.name), task, by_id, found.digest, judge)
            with cell.writer() as writer:
                work = CellWork(loaded, cell, writer)
                for samples in parts(cell.samples() if again else cell.pending(judge.name), CHUNK_SAMPLES):
                    work.grade(samples)
                    judged[cell.name] += len(samples)
                    if watch is not None:
                        watch(cell.name, judged[cell.name])
        finally:
            judge.close()
    return judged


def task_of(cell: Cell) -> Task:
    """The task of a cell: one that was imported with its samples, or one of ours."""
    return imported(cell.config.task, cell.path) or tasks.get(cell.config.task)


def problems_of(
    cell: Cell, data: Mapping[str, Path] | None = None, allow_altered: bool = False
) -> ProblemSet:
    """The problems a cell was drawn from; an error where today's data are others."""
    config = cell.config
    file = (data or {}).get(config.task)
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


def grader_of(cell: Cell, wanted: str | None = None) -> str | None:
    """Whose grades of a cell to use, as the store names them: those wanted (with or without the version), else
    the task's own, else the only ones there are. None: the cell has no grades."""
    there = cell.graders()
    if not there:
        return None
    name = wanted or task_of(cell).grader
    fitting = [grader for grader in there if grader == name or grader.split()[0] == name]
    if not fitting and wanted is None:
        fitting = there
    if len(fitting) != 1:
        raise UserError(
            f"{cell.path} was graded by {', '.join(map(repr, there))}; say which grades to report with --grader"
        )
    return fitting[0]
