"""`twotemp demo`: the paper's comparison on the embedded model, in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Counts, not a time limit, so that everybody gets the same numbers. Measured: see docs/LOG.md.
TASKS = ("countdown-3", "words-2", "programs-1")
POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")
SAMPLES = 64
QUESTIONS = 20


def demo(
    out: Annotated[Path, typer.Option(help="Where samples, tables and figures go.")] = Path("demo"),
    questions: Annotated[int, typer.Option(help="Questions of each task.")] = QUESTIONS,
) -> None:
    """Six policies on three embedded tasks: does tempering the position bring back diversity, and at what cost?"""
    from twotemp.cli.evaluate import run_plan
    from twotemp.cli.report import write_report
    from twotemp.evaluation import Plan, TaskChoice
    from twotemp.policies import parse
    from twotemp.report import read

    plan = Plan(
        tasks=tuple(TaskChoice(name) for name in TASKS),
        policies=tuple(parse(spec) for spec in POLICIES),
        n=SAMPLES,
        questions=questions,
    )
    run_plan(plan, out / "run", "tiny")
    write_report(read([out / "run"]), out)
