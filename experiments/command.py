"""Run `twotemp` commands from an experiment. A command that fails or is interrupted ends the experiment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

from twotemp import graders, tasks
from twotemp.analysis import GradedCell, read
from twotemp.cli import app
from twotemp.evaluation.comparison import ROWS
from twotemp.graders.workers import usable_cpus
from twotemp.policies import parse, spell

MANY_ROWS = ("--batch-size", str(ROWS))


def twotemp(*arguments: str) -> None:
    """Run a command in this process and exit if it fails.

    The command turns Ctrl-C into an exit code; without the exit here, an incomplete run would be taken for a result.
    """
    if code := app(list(arguments), standalone_mode=False):
        sys.exit(code)


def evaluated(
    out: Path,
    task: str,
    specs: Sequence[str],
    *options: str,
    n: int,
    questions: int,
    subset: str = "test",
    model: str = "tiny",
    seed: int = 0,
) -> list[GradedCell]:
    """Run `twotemp eval` and return the graded cells that were requested.

    Args:
        out: the run directory; samples that it already holds are not drawn again.
        task: the name of the task.
        specs: the policies, as spelled on the command line.
        *options: further options of `twotemp eval`.
        n: samples per question.
        questions: the number of questions, taken from the start of the subset.
        subset: the subset of the task's problems.
        model: the name of the model.
        seed: the seed of the samples.

    Returns:
        One cell per policy, without other cells or questions that the run directory may hold.
    """
    size = ["-n", str(n), "--questions", str(questions), "--subset", subset, "--seed", str(seed)]
    selection = ["--model", model, "--tasks", task, "--policies", ";".join(specs)]
    twotemp("eval", *selection, *size, *MANY_ROWS, *options, "--out", str(out))
    cells = (cell for cell in read([out], current_graders([task])) if cell.task == task)
    return select(cells, specs, questions)


def select(cells: Iterable[GradedCell], specs: Sequence[str], questions: int) -> list[GradedCell]:
    """Return the cells of these policies, reduced to the first `questions` problems of their subset.

    An earlier experiment in the same run directory may have used other policies or more questions.
    """
    wanted = {spell(parse(spec)) for spec in specs}
    selected = []
    for cell in cells:
        if spell(cell.policy) in wanted:
            problems = tasks.get(cell.task).problems(subset=cell.config.subset).problems[:questions]
            rows = {question: row for row, question in enumerate(cell.questions)}
            selected.append(cell.only([rows[problem.id] for problem in problems if problem.id in rows]))
    return selected


def current_graders(names: Iterable[str]) -> dict[str, str]:
    """Return the current grader of each task; a run directory may also hold grades of older versions."""
    versions = {}
    for name in names:
        with closing(graders.get(tasks.get(name).grader)) as grader:
            versions[name] = grader.name
    return versions


def side_by_side(commands: Iterable[Sequence[str]]) -> None:
    """Run `twotemp` commands, one process per core, so that their times can be compared."""
    free_cores: SimpleQueue[int] = SimpleQueue()
    for core in range(usable_cpus()):
        free_cores.put(core)

    def run_on_free_core(arguments: Sequence[str]) -> None:
        core = free_cores.get()
        try:
            subprocess.run([sys.executable, "-m", __name__, str(core), *arguments], check=True)
        finally:
            free_cores.put(core)

    with ThreadPoolExecutor(usable_cpus()) as threads:
        try:
            list(threads.map(run_on_free_core, commands))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def pin_to(core: int) -> None:
    """Pin this process to one core; call it before torch counts the cores. Only Linux can pin a process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


if __name__ == "__main__":
    pin_to(int(sys.argv[1]))
    twotemp(*sys.argv[2:])
