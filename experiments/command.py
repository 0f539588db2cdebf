"""`twotemp` inside an experiment: where the command is stopped or fails, so does the experiment."""

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
    """In this process. Ctrl-C is an exit code to it, and what was half drawn must not be taken for a result."""
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
    """`twotemp eval`, and what was asked for of what `out` then holds."""
    size = ["-n", str(n), "--questions", str(questions), "--subset", subset, "--seed", str(seed)]
    asked = ["--model", model, "--tasks", task, "--policies", ";".join(specs)]
    twotemp("eval", *asked, *size, *MANY_ROWS, *options, "--out", str(out))
    return only((one for one in read([out], current_graders([task])) if one.task == task), specs, questions)


def only(cells: Iterable[GradedCell], specs: Sequence[str], questions: int) -> list[GradedCell]:
    """Cells of these policies, with the first so many questions: an earlier run in the same folder may have asked for
    others, and for more."""
    asked = {spell(parse(spec)) for spec in specs}
    found = []
    for one in cells:
        if spell(one.policy) in asked:
            problems = tasks.get(one.task).problems(subset=one.config.subset).problems[:questions]
            place = {question: row for row, question in enumerate(one.questions)}
            found.append(one.only([place[problem.id] for problem in problems if problem.id in place]))
    return found


def current_graders(names: Iterable[str]) -> dict[str, str]:
    """Of each task: grades of older versions may lie beside those that were just given."""
    found = {}
    for name in names:
        with closing(graders.get(tasks.get(name).grader)) as grader:
            found[name] = grader.name
    return found


def side_by_side(commands: Iterable[Sequence[str]]) -> None:
    """One at a time on each core, in a process of its own: what they do in a second is comparable."""
    free: SimpleQueue[int] = SimpleQueue()
    for core in range(usable_cpus()):
        free.put(core)

    def alone(arguments: Sequence[str]) -> None:
        core = free.get()
        try:
            subprocess.run([sys.executable, "-m", __name__, str(core), *arguments], check=True)
        finally:
            free.put(core)

    with ThreadPoolExecutor(usable_cpus()) as threads:
        try:
            list(threads.map(alone, commands))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def stay_on(core: int) -> None:
    """Before torch counts the cores it may use. Elsewhere than on Linux a thread is not held to a core."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


if __name__ == "__main__":
    stay_on(int(sys.argv[1]))
    twotemp(*sys.argv[2:])
