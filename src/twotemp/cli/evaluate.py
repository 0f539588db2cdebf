"""`twotemp eval`, `regrade`, `grade` and `run`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.cli.options import (
    Altered,
    BatchSize,
    Block,
    BlockSize,
    Cache,
    Compiled,
    Data,
    Device,
    Dtype,
    GraderName,
    Length,
    MaskId,
    Model,
    Profile,
    Prompt,
    Seed,
    Subset,
    Traced,
)
from twotemp.cli.report import show_table, summary, write_report
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.evaluation import Plan, Progress, TaskChoice
    from twotemp.models.base import Denoiser
    from twotemp.records import Policy

QUIET_SECONDS = 30.0  # between two lines of progress where stderr is not a terminal


def evaluate(
    out: Annotated[Path, typer.Option(help="The run's folder; one that exists is continued.")],
    tasks: Annotated[str, typer.Option(help="Names, separated by commas.")],
    policies: Annotated[
        list[str],
        typer.Option(
            help="Specs, separated by commas: a comma before name=value belongs to the spec before it."
        ),
    ] = ["ar,lc,random,tlc,ct,tct"],  # noqa: B006
    model: Model = "tiny",
    n: Annotated[int, typer.Option("-n", min=1, help="Samples a question.")] = 64,
    questions: Annotated[int | None, typer.Option(min=1, help="Only the first so many of each task.")] = None,
    length: Length = None,
    block: Block = None,
    seed: Seed = 0,
    data: Data = None,
    prompt: Prompt = None,
    subset: Subset = None,
    grader: GraderName = None,
    altered: Altered = False,
    cache: Cache = None,
    trace: Traced = False,
    shard: Annotated[
        str, typer.Option(help="Draw only part I of N, e.g. 2/8; all shards share --out.")
    ] = "1/1",
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = None,
    mask_id: MaskId = None,
    block_size: BlockSize = None,
    compiled: Compiled = False,
    profile: Profile = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a task and policy.")] = False,
) -> None:
    """Draw n samples a question with each policy, grade them, and store both.

    Stopped in any way and started again it continues; a larger -n draws only what is missing.

    [bold]Examples[/bold]

      twotemp eval --tasks countdown-3,words-2 --policies ar,lc,tlc:t_pos=1 -n 16 --questions 50 --out runs/first

      twotemp eval --model GSAI-ML/LLaDA-8B-Instruct --tasks gsm8k,humaneval \\
        --policies "ar,lc,random,tlc:t_pos=1,ct:threshold=0.6,tct:t_pos=0.1,threshold=0.6" --out runs/llada
    """
    from twotemp.evaluation import Plan

    names = tasks.split(",")
    plan = Plan(
        tasks=task_choices(names, data, prompt, subset, grader, altered),
        policies=split_policies(",".join(policies)),
        n=n,
        questions=questions,
        length=length,
        block=block,
        seed=seed,
        cache=cache,
        trace=trace,
    )
    opened = opener(model, device, dtype, mask_id, block_size, compiled)
    run_plan(plan, out, opened, shard=_shard(shard), batch_size=batch_size, profile=profile)
    from twotemp.analysis import read

    series = read([out])
    if as_json:
        for one in series:
            typer.echo(json.dumps(summary(one)))
    else:
        show_table(series)


def regrade(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    grader: Annotated[str | None, typer.Option(help="Another grader than the task's own, e.g. d1.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Local data files: TASK=FILE.")] = None,
    altered: Altered = False,
    again: Annotated[bool, typer.Option("--again", help="Judge also what this grader has judged.")] = False,
) -> None:
    """Grade stored samples without drawing any: after a grader changed, failed, or with another one."""
    from twotemp.cli.console import people, progress
    from twotemp.evaluation import regrade as judge

    files = task_files(data)
    with progress() as bar:
        tasks: dict[str, Any] = {}

        def watch(cell: str, judged: int) -> None:
            if cell not in tasks:
                tasks[cell] = bar.add_task(cell, total=None, note="")
            bar.update(tasks[cell], completed=judged)

        judged = judge(run, grader=grader, data=files, allow_altered=altered, again=again, watch=watch)
    people.print(f"{sum(judged.values())} samples graded in {len(judged)} cells", highlight=False)


def grade(
    generations: Annotated[Path, typer.Argument(help="JSONL: `id` or `index`, and `generation`.")],
    task: Annotated[str, typer.Option(help="The task these are answers to.")],
    out: Annotated[Path, typer.Option(help="JSONL to write, a verdict a row in the same order.")],
    data: Annotated[Path | None, typer.Option(help="A local data file.")] = None,
    altered: Altered = False,
    grader: Annotated[str | None, typer.Option(help="Another grader than the task's own.")] = None,
) -> None:
    """Grade text made elsewhere and print the accuracy."""
    from twotemp import graders, tasks
    from twotemp.graders.files import grade_file

    chosen = tasks.get(task)
    problems = chosen.problems(data=data, allow_altered=altered).problems
    judge = graders.get(grader or chosen.grader)
    try:
        counts = grade_file(problems, generations, out, judge)
    finally:
        judge.close()
    judged = sum(counts.values()) - counts["ungraded"]
    if not judged:
        raise UserError(f"{generations} has no row that could be graded ({counts['ungraded']} ungraded)")
    typer.echo(
        f"accuracy {100 * counts['passed'] / judged:.2f} % ({counts['passed']} of {judged}; "
        f"{counts['timeout']} timed out, {counts['ungraded']} ungraded and left out; grader {judge.name})"
    )


def run(
    experiment: Annotated[Path, typer.Argument(help="A file such as experiments/tlc.yaml.")],
    out: Annotated[Path | None, typer.Option(help="Where to (default: runs/NAME).")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Instead of the file's models.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Instead of the file's tasks.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Instead of the file's n.")] = None,
    questions: Annotated[int | None, typer.Option(min=1, help="Instead of the file's number.")] = None,
    data: Data = None,
    prompt: Prompt = None,
    subset: Subset = None,
    grader: GraderName = None,
    altered: Altered = False,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = None,
    mask_id: MaskId = None,
    block_size: BlockSize = None,
    compiled: Compiled = False,
    profile: Profile = False,
) -> None:
    """Run an experiment file: evaluate, then report. It continues what it finds in --out."""
    from twotemp import experiments
    from twotemp.report.style import model_name

    chosen = experiments.read(experiment)
    names = tasks.split(",") if tasks else list(chosen.tasks)
    plan = experiments.smaller(chosen, n, questions).plan(
        task_choices(names, data, prompt, subset, grader, altered)
    )
    folder = out or Path("runs") / experiment.stem
    runs = []
    for source in model or chosen.models:
        runs.append(folder / model_name(source))
        opened = opener(source, device, dtype, mask_id, block_size, compiled)
        run_plan(plan, runs[-1], opened, batch_size=batch_size, profile=profile)
    write_report(runs, folder / "report")


def opener(
    model: str,
    device: str | None = None,
    dtype: str | None = None,
    mask_id: int | None = None,
    block_size: int | None = None,
    compiled: bool = False,
) -> Callable[[], Denoiser]:
    """Loads the model when called: after everything that is quick to check was checked."""

    def load() -> Denoiser:
        from twotemp.models.load import load

        return load(
            model, device=device, dtype=dtype, mask_id=mask_id, block_size=block_size, compile=compiled
        )

    return load


def run_plan(
    plan: Plan,
    out: Path,
    load: Callable[[], Denoiser],
    *,
    shard: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    profile: bool = False,
) -> None:
    """Evaluate with live progress."""
    from twotemp.cli.console import people, say_cache
    from twotemp.engine import Ledger
    from twotemp.evaluation import Evaluation

    with Evaluation(plan, out, shard=shard) as evaluation:
        model = load()
        say_cache(model, plan.cache)
        ledger = Ledger(model) if profile else None
        with _watching(model.name) as watch:
            evaluation.run(model, batch_size=batch_size, watch=watch, ledger=ledger)
    if ledger is not None:
        people.print(ledger.report(), highlight=False)


@contextmanager
def _watching(title: str) -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left; below it questions, samples/s and running pass@1. Now and then a line in a log."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    from twotemp.cli.console import people

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("samples"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    task, below = bar.add_task(title, total=None), Text()
    start: list[float] = []  # time and samples at the first call, and when a line was last printed

    def watch(state: Progress) -> None:
        now = monotonic()
        if not start:
            start[:] = [now, state.samples, now]
        rate = (state.samples - start[1]) / max(now - start[0], 1e-9)
        rates = [f"{name} {100 * right / all_:.0f} %" for name, (right, all_) in state.passed.items() if all_]
        note = f"{state.questions}/{state.all_questions} questions, {rate:.1f} samples/s"
        note += f"; pass@1 {', '.join(rates)}" if rates else ""
        bar.update(task, total=state.all_samples, completed=state.samples)
        below.plain = note
        if not people.is_terminal and now - start[2] >= QUIET_SECONDS:
            start[2] = now
            people.print(f"{title}: {state.samples}/{state.all_samples} samples, {note}", highlight=False)

    with Live(Group(bar, below), console=people) if people.is_terminal else nullcontext():
        yield watch


def split_policies(text: str) -> tuple[Policy, ...]:
    """`ar,tct:t_pos=0.1,threshold=0.6,lc` -> three policies: a comma before name=value does not separate."""
    from twotemp.policies import parse

    return tuple(parse(spec) for spec in re.split(r"[;,](?!\s*\w+\s*=)", text) if spec.strip())


def task_files(data: Sequence[str] | None) -> dict[str, Path]:
    """`TASK=FILE` ... -> the file of each task."""
    files = {}
    for item in data or ():
        task, equals, file = item.partition("=")
        if not equals:
            raise UserError(f"--data {item}: say which task's file it is: --data TASK={item}")
        files[task] = Path(file)
    return files


def task_choices(
    names: Sequence[str],
    data: Sequence[str] | None,
    prompt: Sequence[str] | None,
    subset: Sequence[str] | None,
    grader: Sequence[str] | None,
    altered: bool = False,
) -> tuple[TaskChoice, ...]:
    from twotemp.evaluation import TaskChoice

    tasks = [name.strip() for name in names if name.strip()]
    files = _per_task("--data", data, tasks, shared=False)
    prompts = _per_task("--prompt", prompt, tasks)
    subsets = _per_task("--subset", subset, tasks)
    judges = _per_task("--grader", grader, tasks)
    return tuple(
        TaskChoice(
            name=task,
            data=Path(files[task]) if task in files else None,
            prompt=prompts.get(task),
            subset=subsets.get(task),
            grader=judges.get(task),
            allow_altered=altered and task in files,
        )
        for task in tasks
    )


def _per_task(
    option: str, values: Sequence[str] | None, tasks: Sequence[str], shared: bool = True
) -> Mapping[str, str]:
    """`NAME` is for all tasks (a file only for a single one), `TASK=NAME` for one of them."""
    chosen: dict[str, str] = {}
    for value in values or ():
        task, equals, name = value.partition("=")
        if equals and task in tasks:
            chosen[task] = name
        elif len(tasks) == 1 or (shared and not equals):
            chosen |= dict.fromkeys(tasks, value)
        else:
            raise UserError(f"{option} {value}: with several tasks say whose it is: {option} TASK={value}")
    return chosen


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise UserError(f"--shard {text}: write part I of N as I/N, e.g. 2/8")
    return int(match[1]), int(match[2])
