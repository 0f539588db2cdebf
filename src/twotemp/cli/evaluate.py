"""`twotemp eval` and `twotemp run`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from twotemp.analysis import read
from twotemp.cli.console import next_command, say
from twotemp.cli.loading import LoadingOptions
from twotemp.cli.options import (
    BatchSize,
    Cache,
    DecodingOptions,
    Json,
    Model,
    Out,
    Profile,
    Questions,
    TaskOptions,
    Traced,
    split_policies,
)
from twotemp.cli.results import select_command, show_table, summary, write_report
from twotemp.cli.running import run_plan
from twotemp.cli.workers import DrawingOptions
from twotemp.errors import UserError
from twotemp.evaluation.plan import read_experiment
from twotemp.report.style import model_name
from twotemp.serialization import json_text


def evaluate(
    out: Out,
    task: TaskOptions,
    loading: LoadingOptions,
    decoding: DecodingOptions,
    working: DrawingOptions,
    model: Model = "tiny",
    policies: Annotated[
        list[str],
        typer.Option(
            help="Separated by commas: ar,tct:t_pos=0.1,threshold=0.6,@tuned.yaml (the policies in a file)."
        ),
    ] = ["ar,lc,random,tlc,ct,tct"],  # noqa: B006
    n: Annotated[int, typer.Option("-n", min=1, help="Samples per question.")] = 64,
    questions: Questions = None,
    cache: Cache = None,
    trace: Traced = False,
    shard: Annotated[
        str, typer.Option(help="Draw only part I of N, e.g. 2/8; all shards share --out.")
    ] = "1/1",
    profile: Profile = False,
    as_json: Json = False,
) -> None:
    """Draw n samples per question with each policy, grade them, and store both.

    A run that was stopped or killed continues when the same command is given again; a larger -n draws only what is
    missing.

    [bold]Examples[/bold]

      twotemp eval --tasks countdown-3,words-2 --policies ar,lc,tlc:t_pos=1 -n 16 --questions 50 --out runs/first

      twotemp eval --model GSAI-ML/LLaDA-8B-Instruct --tasks gsm8k,humaneval \\
        --policies "ar,lc,random,tlc:t_pos=1,ct:threshold=0.6,tct:t_pos=0.1,threshold=0.6" --out runs/llada
    """
    plan = task.plan(
        decoding, split_policies(",".join(policies)), n=n, questions=questions, cache=cache, trace=trace
    )
    graders = run_plan(
        plan,
        out,
        model,
        loading,
        working,
        shard=_shard(shard),
        batch_size=decoding.batch_size,
        profile=profile,
    )
    cells = read([out], graders)
    if as_json:
        for cell in cells:
            typer.echo(json_text(summary(cell)))
    else:
        show_table(cells)
    choose = select_command(out, {choice.name for choice in plan.tasks})
    say(
        f"samples and grades: {out}; tables and figures: {next_command('report', out)}; "
        f"choose one answer of many: {choose}"
    )


def run(
    experiment: Annotated[Path, typer.Argument(help="A file such as experiments/tlc.yaml.")],
    task: TaskOptions,
    loading: LoadingOptions,
    working: DrawingOptions,
    out: Annotated[Path | None, typer.Option(help="The folder to write (default: runs/NAME).")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Used instead of the file's models; may be repeated.")
    ] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Used instead of the file's n.")] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, help="Used instead of the file's number of questions.")
    ] = None,
    batch_size: BatchSize = None,
    profile: Profile = False,
) -> None:
    """Run an experiment file: evaluate, then report.

    A run that was stopped continues with what --out holds.

    [bold]Example[/bold]

      twotemp run experiments/tlc.yaml --questions 20 -n 16 --out runs/tlc
    """
    chosen = read_experiment(experiment)
    chosen = replace(chosen, n=n or chosen.n, questions=questions or chosen.questions)
    plan = replace(chosen.plan(task.choices(chosen.tasks)), chat=task.chat)
    folder = out or Path("runs") / experiment.stem
    runs: list[Path] = []
    graders: dict[str, str] = {}
    for name in model or chosen.models:
        runs.append(folder / model_name(name))
        graders |= run_plan(plan, runs[-1], name, loading, working, batch_size=batch_size, profile=profile)
    write_report(runs, folder / "report", grader=graders)


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise UserError(f"--shard {text}: write part I of N as I/N, e.g. 2/8")
    return int(match[1]), int(match[2])
