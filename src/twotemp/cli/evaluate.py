"""`twotemp eval`, `twotemp run` and `twotemp demo`: draw and grade samples."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from twotemp.analysis import read, with_portfolios
from twotemp.cli import options
from twotemp.cli.console import next_command, progress, say, show_log
from twotemp.cli.report import select_command, show_table, summary, write_report
from twotemp.cli.workers import DrawingOptions, WorkerOptions, Workload
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, Progress, comparison
from twotemp.evaluation.plan import read_experiment
from twotemp.evaluation.work import without_verdicts
from twotemp.report.style import model_name
from twotemp.serialization import json_text


def evaluate(
    out: options.Out,
    task: options.TaskOptions,
    loading: options.LoadingOptions,
    decoding: options.DecodingOptions,
    working: DrawingOptions,
    model: options.Model = "tiny",
    policies: Annotated[
        list[str],
        "Separated by commas: ar,tct:t_pos=0.1,threshold=0.6. @tuned.yaml stands for the policies in that file.",
    ] = ["ar,lc,random,tlc,ct,tct"],  # noqa: B006
    n: Annotated[int, typer.Option("-n", min=1, help="Samples per question.")] = 64,
    questions: options.Questions = None,
    cache: options.Cache = None,
    trace: options.Traced = False,
    shard: Annotated[str, "Draw only part I of N, e.g. 2/8; all shards share --out."] = "1/1",
    profile: options.Profile = False,
    dry_run: Annotated[bool, "Print forward passes, FLOPs and memory, and draw nothing."] = False,
    as_json: options.Json = False,
) -> None:
    """Draw n samples per question with each policy, grade them, and store both.

    A run that was stopped or killed continues when the same command is given again; a larger -n draws only what is
    missing.

    [bold]Examples[/bold]
      twotemp eval --tasks countdown-3,words-2 --policies ar,lc,tlc:t_pos=1 -n 16 --questions 50 --out runs/first
      twotemp eval --model GSAI-ML/LLaDA-8B-Instruct --tasks gsm8k,humaneval \\
        --policies "ar,lc,random,tlc:t_pos=1,ct:threshold=0.6,tct:t_pos=0.1,threshold=0.6" --out runs/llada
    """
    chosen = options.split_policies(",".join(policies))
    plan = task.plan(decoding, chosen, n=n, questions=questions, cache=cache, trace=trace)
    if dry_run:
        from twotemp.cli.dry_run import describe, estimates  # needs torch

        for row in estimates(plan, model, loading):
            typer.echo(json_text(row) if as_json else describe(row))
        say("an estimate: how many passes CT and TCT take depends on the model; next: leave --dry-run out")
        return
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
    if without_verdicts([out]):
        say(f"samples: {out}; how different they are: {next_command('report', out)}")
        return
    cells = with_portfolios(read([out], graders), [out])
    if as_json:
        for cell in cells:
            typer.echo(json_text(summary(cell)))
    else:
        show_table(cells)
    choose = select_command(out, {choice.name for choice in plan.tasks})
    say(
        f"samples and grades: {out}; tables and figures: {next_command('report', out)}; "
        f"choose one answer from many: {choose}"
    )


def run(
    experiment: Annotated[Path, typer.Argument(help="The experiment file, such as experiments/tlc.yaml.")],
    task: options.TaskOptions,
    loading: options.LoadingOptions,
    working: DrawingOptions,
    out: Annotated[Path | None, "The folder to write (default: runs/NAME)."] = None,
    model: Annotated[list[str] | None, "Use this model instead of the file's; may be repeated."] = None,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Samples per question, instead of the file's n.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, help="Questions per task, instead of the file's number.")
    ] = None,
    batch_size: options.BatchSize = None,
    profile: options.Profile = False,
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


# Questions of the demo: counts instead of a time limit, so that all machines produce the same numbers. They take
# about four minutes on two cores.
DEMO_QUESTIONS = {"countdown-4": 50, "words-3": 10, "programs-2": 30}
DEMO_SAMPLES = 64


def demo(
    working: WorkerOptions, out: Annotated[Path, "The folder for samples, tables and figures."] = Path("demo")
) -> None:
    """Compare five policies on three embedded tasks.

    Does tempering the position restore diversity, and what does it cost? This is the README's table on its first
    questions. The same command continues a demo that was stopped, and shows the results at once when it is complete.

    [bold]Example[/bold]
      twotemp demo --out demo
    """
    plans = [comparison.plan(task, questions=count, n=DEMO_SAMPLES) for task, count in DEMO_QUESTIONS.items()]
    total = DEMO_SAMPLES * sum(
        len(plan.policies) * count for plan, count in zip(plans, DEMO_QUESTIONS.values())
    )
    say(f"{total:,} samples of the embedded model, stored in {out / 'run'}")
    graders: dict[str, str] = {}
    for plan, (task, count) in zip(plans, DEMO_QUESTIONS.items()):
        say(f"{task}: {count} questions, {DEMO_SAMPLES} samples each with {len(plan.policies)} policies")
        rows = comparison.ROWS
        graders |= run_plan(plan, out / "run", "tiny", options.LoadingOptions(), working, batch_size=rows)
    write_report([out / "run"], out, grader=graders)


def run_plan(
    plan: Plan,
    out: Path,
    model: str,
    loading: options.LoadingOptions,
    working: WorkerOptions,
    *,
    shard: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    profile: bool = False,
) -> dict[str, str]:
    """Draw and grade the samples of a plan that its run folder does not have yet, showing progress.

    Args:
        plan: Tasks, policies and counts.
        out: The run's folder.
        model: The model's name, folder or hub id.
        loading: How to load it.
        working: Which processes draw.
        shard: The part of the questions to draw, and the number of parts.
        batch_size: Rows decoded together; None: as many as fit.
        profile: Print where the time went.

    Returns:
        The name of the grader of each task.
    """
    show_log()
    with Evaluation(replace(plan, compile=loading.compile), out, shard=shard) as evaluation:
        workload = Workload(model, loading, evaluation.samples, batch_size, plan.cache, profile=profile)
        with working.backend(workload) as (backend, profiler), progress(backend.name) as bar:

            def on_progress(state: Progress) -> None:
                bar.update(state.samples, state.all_samples, _note(state))

            evaluation.run_with(backend, on_progress=on_progress)
    if profiler is not None:
        say(profiler.report())
    return evaluation.grader_names


def _note(state: Progress) -> str:
    """Return the number of finished questions and the running pass@1 of each policy."""
    rates = [
        f"{name} {100 * right / graded:.0f} %" for name, (right, graded) in state.passed.items() if graded
    ]
    pass1 = f"; pass@1 {', '.join(rates)}" if rates else ""
    return f"{state.questions}/{state.all_questions} questions{pass1}"
