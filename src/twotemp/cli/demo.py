"""`twotemp demo`: the paper's comparison on the embedded model, in a few minutes on two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twotemp.cli.workers import WorkerOptions

# Questions of each task: counts, not a time limit, so that everybody gets the same numbers. They are what fits into
# about four minutes on two cores. Of each kind of task the level at which 64 samples neither solve all nor none.
TASKS = {"countdown-4": 30, "words-2": 10, "programs-1": 20}
POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")
SAMPLES = 64


def demo(
    working: WorkerOptions,
    out: Annotated[Path, typer.Option(help="Where samples, tables and figures go.")] = Path("demo"),
) -> None:
    """Six policies on three embedded tasks: does tempering the position bring back diversity, and at what cost?

    Started again it continues, and shows the results at once when they are complete.
    """
    from twotemp.cli.console import say
    from twotemp.cli.evaluate import run_plan
    from twotemp.cli.options import LoadingOptions
    from twotemp.cli.report import write_report
    from twotemp.evaluation import Plan, TaskChoice
    from twotemp.policies import parse

    total = sum(TASKS.values()) * len(POLICIES) * SAMPLES
    say(
        f"{SAMPLES} samples per question with each of {len(POLICIES)} policies: {total:,} samples of the embedded "
        f"model, kept in {out / 'run'}"
    )
    plan = Plan(
        tasks=tuple(TaskChoice(name, questions=questions) for name, questions in TASKS.items()),
        policies=tuple(parse(spec) for spec in POLICIES),
        n=SAMPLES,
    )
    run_plan(plan, out / "run", "tiny", LoadingOptions(), working)
    write_report([out / "run"], out)
