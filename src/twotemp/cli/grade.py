"""`twotemp grade` and `twotemp regrade`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from twotemp import graders, tasks
from twotemp.cli.console import next_command, progress, say
from twotemp.cli.options import Altered, DataFiles, per_task, task_files
from twotemp.errors import UserError
from twotemp.evaluation import regrade as regrade_run
from twotemp.graders.files import grade_file
from twotemp.store import Store


def regrade(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    grader: Annotated[
        list[str] | None, "A grader other than the task's, e.g. d1; with TASK=NAME only that task is graded."
    ] = None,
    data: DataFiles = None,
    altered: Altered = False,
    again: Annotated[bool, "Grade again what this grader has already graded."] = False,
) -> None:
    """Grade the stored samples of a run again, without drawing any.

    Use it after a grader changed or failed, or to compare graders.

    [bold]Examples[/bold]
      twotemp regrade runs/first
      twotemp regrade runs/llada --grader gsm8k=d1
    """
    stored = Store.open(run).cells()
    names = list(dict.fromkeys(cell.config.task for cell in stored))
    files, by_task = task_files(data, names), per_task("--grader", grader, names)
    cells = [cell.name for cell in stored if not by_task or cell.config.task in by_task]
    counts: dict[str, int] = {}
    with progress("grading") as bar:

        def show(cell: str, graded: int) -> None:
            counts[cell] = graded
            bar.update(sum(counts.values()), note=cell)

        graded = regrade_run(
            run, grader=by_task, cells=cells, data=files, allow_altered=altered, again=again, on_progress=show
        )
    cells_graded = f"{len(graded)} cell{'s' * (len(graded) != 1)}"
    say(
        f"graded {sum(graded.values())} samples in {cells_graded} of {run}; next: {next_command('report', run)}"
    )


def grade(
    generations: Annotated[Path, typer.Argument(help="JSONL: `id` or `index`, and `generation`.")],
    task: Annotated[str, "The task that the texts answer."],
    out: Annotated[Path, "JSONL to write, one verdict per row in the same order."],
    data: Annotated[Path | None, "A local data file."] = None,
    altered: Altered = False,
    grader: Annotated[str | None, "A grader other than the task's."] = None,
) -> None:
    """Grade a file of generated texts and print the accuracy.

    [bold]Example[/bold]
      twotemp grade answers.jsonl --task gsm8k --out verdicts.jsonl
    """
    if not generations.is_file():
        raise UserError(f"there is no file {generations}; give a JSONL file with `id` and `generation`")
    chosen = tasks.get(task)
    problems = chosen.problems(data=data, allow_altered=altered).problems
    with closing(graders.get(grader or chosen.grader)) as chosen_grader:
        counts = grade_file(problems, generations, out, chosen_grader)
    graded = sum(counts.values()) - counts["ungraded"]
    if not graded:
        raise UserError(f"{generations} has no row that could be graded ({counts['ungraded']} ungraded)")
    left_out = f", {counts['ungraded']} could not be graded and are left out" if counts["ungraded"] else ""
    typer.echo(
        f"accuracy {100 * counts['passed'] / graded:.2f} % ({counts['passed']} of {graded}; "
        f"{counts['timeout']} timed out{left_out}; grader {chosen_grader.name})"
    )
    say(f"verdicts: {out}, one JSON object per row of {generations}")
