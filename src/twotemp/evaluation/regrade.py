"""Grade stored samples again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

from twotemp import graders
from twotemp.evaluation.data import problems_of, task_of
from twotemp.evaluation.plan import TaskChoice
from twotemp.evaluation.work import CellWork, LoadedTask, batched
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
    """Grade the samples of a run that a grader has not graded yet, without drawing any.

    Args:
        run: The run directory.
        grader: A grader other than the tasks' own, or graders by task.
        cells: The names of the cells to grade; default: all.
        data: Local data files by task, the ones that the run was drawn from.
        allow_altered: Accept files in `data` whose rows differ from the published ones.
        again: Grade all samples, whether graded before or not.
        watch: Called with (cell, samples graded so far).

    Returns:
        The number of samples graded in each cell.
    """
    graded: dict[str, int] = {}
    for cell in Store.open(run).cells():
        if cells is not None and cell.name not in cells:
            continue
        problems, task = problems_of(cell, data, allow_altered), task_of(cell)
        requested = grader.get(task.name) if isinstance(grader, Mapping) else grader
        graded[cell.name] = 0
        with closing(graders.get(requested or task.grader)) as chosen, cell.writer() as writer:
            by_id = {problem.id: problem for problem in problems.problems}
            loaded = LoadedTask(TaskChoice(task.name), task, by_id, problems.digest, chosen)
            work = CellWork(loaded, cell, writer)
            for samples in batched(cell.samples() if again else cell.pending(chosen.name), CHUNK):
                work.grade(samples)
                graded[cell.name] += len(samples)
                if watch is not None:
                    watch(cell.name, graded[cell.name])
    return graded
