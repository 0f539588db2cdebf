"""`twotemp demo`: the paper's comparison on the embedded model, in a few minutes on two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twotemp.cli.console import say
from twotemp.cli.loading import LoadingOptions
from twotemp.cli.results import write_report
from twotemp.cli.running import run_plan
from twotemp.cli.workers import WorkerOptions
from twotemp.evaluation import comparison

# Questions of each task: counts instead of a time limit, so that all machines produce the same numbers. They take
# about four minutes on two cores.
QUESTIONS = {"countdown-4": 50, "words-3": 10, "programs-2": 30}
SAMPLES = 64


def demo(
    working: WorkerOptions,
    out: Annotated[Path, typer.Option(help="The folder for samples, tables and figures.")] = Path("demo"),
) -> None:
    """Compare five policies on three embedded tasks.

    Does tempering the position restore diversity, and what does it cost? This is the README's table on its first
    questions. The same command continues a demo that was stopped, and shows the results at once when it is complete.

    [bold]Example[/bold]

      twotemp demo --out demo
    """
    plans = [comparison.plan(task, questions=count, n=SAMPLES) for task, count in QUESTIONS.items()]
    total = SAMPLES * sum(len(plan.policies) * count for plan, count in zip(plans, QUESTIONS.values()))
    say(f"{total:,} samples of the embedded model, stored in {out / 'run'}")
    graders: dict[str, str] = {}
    for plan, (task, count) in zip(plans, QUESTIONS.items()):
        say(f"{task}: {count} questions, {SAMPLES} samples each with {len(plan.policies)} policies")
        rows = comparison.ROWS
        graders |= run_plan(plan, out / "run", "tiny", LoadingOptions(), working, batch_size=rows)
    write_report([out / "run"], out, grader=graders)
