"""`twotemp eval`, `regrade`, `grade` and `run`."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import (
    Altered,
    BatchSize,
    Cache,
    DataFiles,
    DecodingOptions,
    Json,
    LoadingOptions,
    Model,
    Out,
    Profile,
    Questions,
    TaskOptions,
    Traced,
    per_task,
    task_files,
)
from twotemp.cli.report import show_table, summary, write_report
from twotemp.cli.workers import DrawingOptions, Job, WorkerOptions
from twotemp.errors import UserError
from twotemp.plain import json_text

if TYPE_CHECKING:
    from twotemp.evaluation import Plan, Progress
    from twotemp.records import Policy


def evaluate(
    out: Out,
    asked: TaskOptions,
    loading: LoadingOptions,
    decoding: DecodingOptions,
    working: DrawingOptions,
    model: Model = "tiny",
    policies: Annotated[
        list[str],
        typer.Option(
            help="Separated by commas: ar,tct:t_pos=0.1,threshold=0.6,@tuned.yaml (those of a file)."
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

    Stopped in any way and started again it continues; a larger -n draws only what is missing.

    [bold]Examples[/bold]

      twotemp eval --tasks countdown-3,words-2 --policies ar,lc,tlc:t_pos=1 -n 16 --questions 50 --out runs/first

      twotemp eval --model GSAI-ML/LLaDA-8B-Instruct --tasks gsm8k,humaneval \\
        --policies "ar,lc,random,tlc:t_pos=1,ct:threshold=0.6,tct:t_pos=0.1,threshold=0.6" --out runs/llada
    """
    from twotemp.analysis import read
    from twotemp.cli.console import say, then
    from twotemp.tasks import SOURCES

    chosen = split_policies(",".join(policies))
    plan = asked.plan(decoding, chosen, n=n, questions=questions, cache=cache, trace=trace)
    part, rows = _shard(shard), decoding.batch_size
    judges = run_plan(plan, out, model, loading, working, shard=part, batch_size=rows, profile=profile)
    cells = read([out], judges)
    if as_json:
        for cell in cells:
            typer.echo(json_text(summary(cell)))
    else:
        show_table(cells)
    tables, choice = then("report", out), then("select", out)
    if not {task.name for task in plan.tasks} <= {*SOURCES}:
        choice += " --by majority,oracle"  # the embedded verifier knows only the embedded tasks
    say(f"samples and grades: {out}; tables and figures: {tables}; one answer: {choice}")


def regrade(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    grader: Annotated[
        list[str] | None,
        typer.Option(
            help="Another grader than the task's own, e.g. d1; TASK=NAME: only that task is graded."
        ),
    ] = None,
    data: DataFiles = None,
    altered: Altered = False,
    again: Annotated[bool, typer.Option("--again", help="Judge also what this grader has judged.")] = False,
) -> None:
    """Grade stored samples without drawing any: after a grader changed, failed, or with another one."""
    from twotemp.cli.console import progress, say, then
    from twotemp.evaluation import regrade as judge
    from twotemp.store import Store

    cells = Store.open(run).cells()
    tasks = list(dict.fromkeys(cell.config.task for cell in cells))
    files, chosen = task_files(data, tasks), per_task("--grader", grader, tasks)
    names = [cell.name for cell in cells if not chosen or cell.config.task in chosen]
    counts: dict[str, int] = {}
    with progress("grading") as bar:

        def watch(cell: str, judged: int) -> None:
            counts[cell] = judged
            bar.update(sum(counts.values()), note=cell)

        judged = judge(
            run, grader=chosen, cells=names, data=files, allow_altered=altered, again=again, watch=watch
        )
    say(f"{sum(judged.values())} samples graded in {len(judged)} cells; see them with: {then('report', run)}")


def grade(
    generations: Annotated[Path, typer.Argument(help="JSONL: `id` or `index`, and `generation`.")],
    task: Annotated[str, typer.Option(help="The task these are answers to.")],
    out: Annotated[Path, typer.Option(help="JSONL to write, one verdict per row in the same order.")],
    data: Annotated[Path | None, typer.Option(help="A local data file.")] = None,
    altered: Altered = False,
    grader: Annotated[str | None, typer.Option(help="Another grader than the task's own.")] = None,
) -> None:
    """Grade text made elsewhere and print the accuracy."""
    from twotemp import graders, tasks
    from twotemp.cli.console import say
    from twotemp.graders.files import grade_file

    if not generations.is_file():
        raise UserError(f"there is no file {generations}; give a JSONL file with `id` and `generation`")
    chosen = tasks.get(task)
    problems = chosen.problems(data=data, allow_altered=altered).problems
    with closing(graders.get(grader or chosen.grader)) as judge:
        counts = grade_file(problems, generations, out, judge)
    judged = sum(counts.values()) - counts["ungraded"]
    if not judged:
        raise UserError(f"{generations} has no row that could be graded ({counts['ungraded']} ungraded)")
    say(f"verdicts: {out}")
    typer.echo(
        f"accuracy {100 * counts['passed'] / judged:.2f} % ({counts['passed']} of {judged}; "
        f"{counts['timeout']} timed out, {counts['ungraded']} ungraded and left out; grader {judge.name})"
    )


def run(
    experiment: Annotated[Path, typer.Argument(help="A file such as experiments/tlc.yaml.")],
    asked: TaskOptions,
    loading: LoadingOptions,
    working: DrawingOptions,
    out: Annotated[Path | None, typer.Option(help="Where to (default: runs/NAME).")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Instead of the file's models; may be repeated.")
    ] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Instead of the file's n.")] = None,
    questions: Annotated[int | None, typer.Option(min=1, help="Instead of the file's number.")] = None,
    batch_size: BatchSize = None,
    profile: Profile = False,
) -> None:
    """Run an experiment file: evaluate, then report. It continues what it finds in --out.

    [bold]Example[/bold]

      twotemp run experiments/tlc.yaml --questions 20 -n 16 --out runs/tlc
    """
    from twotemp.evaluation import experiments
    from twotemp.report.names import model_name

    chosen = experiments.read(experiment)
    chosen = replace(chosen, n=n or chosen.n, questions=questions or chosen.questions)
    plan = replace(chosen.plan(asked.choices(chosen.tasks)), chat=asked.chat)
    folder = out or Path("runs") / experiment.stem
    runs: list[Path] = []
    judges: dict[str, str] = {}
    for one in model or chosen.models:
        runs.append(folder / model_name(one))
        judges |= run_plan(plan, runs[-1], one, loading, working, batch_size=batch_size, profile=profile)
    write_report(runs, folder / "report", grader=judges)


def run_plan(
    plan: Plan,
    out: Path,
    model: str,
    loading: LoadingOptions,
    working: WorkerOptions,
    *,
    shard: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    profile: bool = False,
) -> dict[str, str]:
    """Evaluate with live progress; who graded each task."""
    from twotemp.cli.console import progress, say, show_log
    from twotemp.evaluation import Evaluation

    show_log()
    with (
        Evaluation(replace(plan, compile=loading.compile), out, shard=shard) as evaluation,
        working.drawer(Job(model, loading, evaluation.samples, batch_size, plan.cache, profile=profile)) as (
            drawer,
            ledger,
        ),
        progress(drawer.name) as bar,
    ):

        def watch(state: Progress) -> None:
            bar.update(state.samples, state.all_samples, _note(state))

        evaluation.run_with(drawer, watch=watch)
    if ledger is not None:
        say(ledger.report())
    return evaluation.grader_names


def _note(state: Progress) -> str:
    """Questions done, and the running pass@1 of each policy."""
    rates = [f"{name} {100 * right / all_:.0f} %" for name, (right, all_) in state.passed.items() if all_]
    pass1 = f"; pass@1 {', '.join(rates)}" if rates else ""
    return f"{state.questions}/{state.all_questions} questions{pass1}"


def split_policies(text: str) -> tuple[Policy, ...]:
    """`ar,tct:t_pos=0.1,threshold=0.6,@tuned.yaml` -> two policies, and those that `twotemp tune` recommended."""
    from twotemp.evaluation.experiments import policies_in
    from twotemp.policies import parse

    specs: list[str] = []
    for spec in split_specs(text):
        specs += policies_in(spec[1:]) if spec.startswith("@") else [spec]
    return tuple(parse(spec) for spec in specs)


def split_specs(text: str) -> list[str]:
    """A comma before name=value does not separate."""
    return [spec.strip() for spec in re.split(r"[;,](?!\s*\w+\s*=)", text) if spec.strip()]


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise UserError(f"--shard {text}: write part I of N as I/N, e.g. 2/8")
    return int(match[1]), int(match[2])
