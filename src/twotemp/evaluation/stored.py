"""Stored samples, graded anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

from twotemp import graders
from twotemp.analysis import problems_of, task_of
from twotemp.evaluation.plan import TaskChoice
from twotemp.evaluation.work import CellWork, LoadedTask, parts
from twotemp.sampling.prompts import CHUNK
from twotemp.store import Store


def regrade(
    run: Path | str,
    *,
    grader: str | Mapping[str, str] | None = None,
    cells: Collection[str] | None = None,
    data: Mapping[str, Path] | None = None,
    allow_altered: bool = False,
    again: bool = False,
    watch: Callable[[str, int], None] | None = None,
) -> dict[str, int]:
    """Grade the samples of a run that this grader has not judged, without drawing any; cell -> how many.

    grader: another than the task's own, or such graders by task. cells: only those of these names. data: local data
    files by task, the ones the run was drawn from. again: judge all samples once more.
    watch(cell, samples judged) is called as it goes.
    """
    judged: dict[str, int] = {}
    for cell in Store.open(run).cells():
        if cells is not None and cell.name not in cells:
            continue
        found, task = problems_of(cell, data, allow_altered), task_of(cell)
        wanted = grader.get(task.name) if isinstance(grader, Mapping) else grader
        judged[cell.name] = 0
        with closing(graders.get(wanted or task.grader)) as judge, cell.writer() as writer:
            by_id = {problem.id: problem for problem in found.problems}
            loaded = LoadedTask(TaskChoice(task.name), task, by_id, found.digest, judge)
            work = CellWork(loaded, cell, writer)
            for samples in parts(cell.samples() if again else cell.pending(judge.name), CHUNK):
                work.grade(samples)
                judged[cell.name] += len(samples)
                if watch is not None:
                    watch(cell.name, judged[cell.name])
    return judged
