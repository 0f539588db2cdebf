"""`twotemp demo`: the paper's comparison on the embedded model, in a few minutes on two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twotemp.cli.workers import WorkerOptions

# Questions of each task: counts, not a time limit, so that everybody gets the same numbers. They are what fits into
# about four minutes on two cores.
QUESTIONS = {"countdown-4": 50, "words-3": 10, "programs-2": 30}
SAMPLES = 64


def demo(
    working: WorkerOptions,
    out: Annotated[Path, typer.Option(help="Where samples, tables and figures go.")] = Path("demo"),
) -> None:
    """Five policies on three embedded tasks: does tempering the position bring back diversity, and at what cost?

    The README's table on fewer questions, the first ones. Started again it continues, and shows the results at once
    when they are complete.
    """
    from twotemp.cli.console import say
    from twotemp.cli.evaluate import run_plan
    from twotemp.cli.options import LoadingOptions
    from twotemp.cli.report import write_report
    from twotemp.evaluation import comparison

    plans = [comparison.plan(task, questions=count, n=SAMPLES) for task, count in QUESTIONS.items()]
    total = SAMPLES * sum(len(plan.policies) * count for plan, count in zip(plans, QUESTIONS.values()))
    say(f"{total:,} samples of the embedded model, kept in {out / 'run'}")
    judges: dict[str, str] = {}
    for plan, (task, count) in zip(plans, QUESTIONS.items()):
        say(f"{task}: {count} questions, {SAMPLES} samples each by {len(plan.policies)} policies")
        rows = comparison.ROWS
        judges |= run_plan(plan, out / "run", "tiny", LoadingOptions(), working, batch_size=rows)
    write_report([out / "run"], out, grader=judges)
