"""`twotemp forks` and `twotemp trace`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.cli.evaluate import task_choices
from twotemp.cli.options import (
    BatchSize,
    Block,
    Data,
    Device,
    GraderName,
    Length,
    Model,
    Prompt,
    Seed,
    Subset,
)
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.evaluation import Evaluation, Plan, TaskChoice
    from twotemp.forks.probe import Settings, Study
    from twotemp.models.base import Denoiser
    from twotemp.records import Sample
    from twotemp.store import Store


def forks(
    out: Annotated[Path, typer.Option(help="The run's folder; one that exists is continued.")],
    tasks: Annotated[str, typer.Option("--tasks", "--task", help="Names, separated by commas.")],
    model: Model = "tiny",
    questions: Annotated[
        int, typer.Option(min=1, help="Prompts completed per task, chosen at random (by --seed).")
    ] = 100,
    n: Annotated[int, typer.Option("-n", min=1, help="Completions a prompt.")] = 1,
    quantile: Annotated[
        float, typer.Option(help="Positions above this quantile of entropy are forks.")
    ] = 0.99,
    alternatives: Annotated[int, typer.Option(help="Likeliest tokens tried at each fork.")] = 5,
    t_token: Annotated[float, typer.Option(help="Token temperature of completions and restarts.")] = 0.8,
    length: Length = None,
    block: Block = None,
    seed: Seed = 0,
    data: Data = None,
    prompt: Prompt = None,
    subset: Subset = None,
    grader: GraderName = None,
    batch_size: BatchSize = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a task on stdout.")] = False,
) -> None:
    """Find fork tokens and measure what low-confidence remasking does to them (the paper's appendix C.5).

    Completes prompts from left to right, takes the most uncertain positions as forks, restarts each with LC to see
    its entropy fall as anchors are revealed, and counts the different answers its likeliest tokens lead to.
    Stopped in any way and started again it continues.

    [bold]Examples[/bold]

      twotemp forks --tasks countdown-3,words-2 --out runs/forks

      twotemp forks --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --device cuda --out runs/forks-gsm8k
    """
    from twotemp.cli.console import output, people
    from twotemp.evaluation import Evaluation, Plan
    from twotemp.forks.probe import Settings
    from twotemp.report import forks as report

    settings = Settings(quantile, alternatives, t_token, block, seed)
    plan = Plan(
        tasks=tuple(
            replace(choice, shuffled=seed)
            for choice in task_choices(tasks.split(","), data, prompt, subset, grader)
        ),
        policies=(settings.completion,),
        n=n,
        questions=questions,
        length=length,
        block=block,
        seed=seed,
        trace=True,
    )
    with Evaluation(plan, out) as evaluation:
        from twotemp.models.load import load

        loaded = load(model, device=device)
        store = _complete(evaluation, loaded, batch_size)
    studies = [_study(store, choice, plan, loaded, settings, batch_size) for choice in plan.tasks]
    facts = (
        f"{loaded.name}: {questions} prompts a task, {n} left-to-right completion{'s' * (n > 1)} each at T_token = "
        f"{t_token:g}; forks are the positions above the {100 * quantile:g} % quantile of predictive entropy; "
        f"{alternatives} alternatives a fork; block {block or loaded.block_size or 32}, counted from the fork on."
    )
    written = report.text(studies, facts)
    folder = out / "report"
    figures = report.draw(studies, folder)
    images = "\n".join(f"![{figure.name}]({figure.path.name})\n\n{figure.caption}\n" for figure in figures)
    (folder / "forks.md").write_text(f"{written}\n{images}")
    if as_json:
        for study in studies:
            typer.echo(json.dumps(report.numbers(study)))
    else:
        output.print(written, highlight=False, markup=False)
    people.print(f"report: {folder / 'forks.md'}", highlight=False)


def _complete(evaluation: Evaluation, model: Denoiser, batch_size: int | None) -> Store:
    from twotemp.cli.console import progress

    with progress() as bar:
        task = bar.add_task("completing prompts", total=None, note="")
        return evaluation.run(
            model,
            batch_size=batch_size,
            watch=lambda state: bar.update(task, total=state.all_samples, completed=state.samples),
        )


def _study(
    store: Store, choice: TaskChoice, plan: Plan, model: Denoiser, settings: Settings, batch_size: int | None
) -> Study:
    from twotemp import graders
    from twotemp import tasks as known
    from twotemp.cli.console import progress
    from twotemp.forks.probe import study

    task = known.get(choice.name)
    problems = {problem.id: problem for problem in choice.problems().problems[: plan.questions]}
    (cell,) = (
        c for c in store.cells() if c.config.task == choice.name and c.config.policy == settings.completion
    )
    samples = [s for s in cell.samples() if s.request in problems and s.index < plan.n]
    judge = graders.get(choice.grader or task.grader)
    try:
        with progress() as bar:
            row = bar.add_task(f"forks of {choice.name}", total=None, note="")
            return study(
                model,
                choice.name,
                samples,
                problems,
                judge,
                settings,
                store.path / "forks" / choice.name,
                batch_size=batch_size,
                watch=lambda done, total: bar.update(row, total=total, completed=done),
            )
    finally:
        judge.close()


def trace(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Files from `twotemp sample --trace --json`, run folders, or one cell of a run."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("trace.html"),
    request: Annotated[str | None, typer.Option(help="Which question (default: the first).")] = None,
    each: Annotated[int, typer.Option(min=1, help="Samples shown of each file or cell.")] = 2,
    model: Annotated[
        str | None, typer.Option(help="Whose tokenizer writes the tokens (default: the run's; else ids).")
    ] = None,
    fork_entropy: Annotated[
        float | None, typer.Option(help="Nats at commit from which on a token is marked (default: log 2).")
    ] = None,
) -> None:
    """Write a page that replays samples: every token coloured by the step at which it was committed.

    The page is one file and asks the network for nothing. Several sources stand side by side on one clock.

    [bold]Examples[/bold]

      twotemp sample --policy lc --trace --json "3 7 12 -> 33" > lc.jsonl

      twotemp sample --policy tlc --trace --json "3 7 12 -> 33" > tlc.jsonl

      twotemp trace lc.jsonl tlc.jsonl --model tiny --each 1
    """
    from twotemp.cli.console import people
    from twotemp.report.trace_page import FORK_ENTROPY, page

    groups: list[list[Sample]] = []
    for source in sources:
        found, its_model = _read_samples(source)
        groups += found
        model = model or its_model
    wanted = request or groups[0][0].request
    chosen = [s for group in groups for s in [s for s in group if s.request == wanted][:each]]
    if not chosen:
        known = dict.fromkeys(s.request for group in groups for s in group)
        raise UserError(f"no sample of request {wanted!r}; there are {', '.join(list(known)[:8])}")
    html = page(
        chosen,
        _tokenizer(model) if model else None,
        title=f"{wanted}: {', '.join(dict.fromkeys(s.policy.name for s in chosen))}",
        fork_entropy=FORK_ENTROPY if fork_entropy is None else fork_entropy,
    )
    try:
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another --out") from None
    people.print(f"page: {out} ({len(chosen)} samples)", highlight=False)


def _tokenizer(model: str) -> Any:
    from twotemp.models.checkpoint import read_tokenizer
    from twotemp.models.load import locate

    return read_tokenizer(locate(model))


def _read_samples(source: Path) -> tuple[list[list[Sample]], str | None]:
    """The samples of a JSONL file, or of each cell of a run, by question; and the run's model."""
    from twotemp.store import Store

    if not source.exists():
        raise UserError(
            f"{source} does not exist; give a file from `twotemp sample --trace --json`, or a run"
        )
    if source.is_file():
        return [_read_lines(source)], None
    if (source / "cell.json").exists():
        cells = [Store.open(source.parent)[source.name]]
    else:
        cells = Store.open(source).cells()
    groups = [sorted(cell.samples(), key=lambda s: (s.request, s.index)) for cell in cells]
    groups = [group for group in groups if group]
    if not groups:
        raise UserError(f"{source} holds no samples yet")
    return groups, cells[0].config.model


def _read_lines(path: Path) -> list[Sample]:
    from twotemp.records import Sample

    samples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            row.pop("cache", None)  # of the command, not of the sample
            samples.append(Sample.from_dict(row))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number} is not a sample ({error}); write the file with `twotemp sample --json`"
            ) from None
    if not samples:
        raise UserError(f"{path} is empty")
    return samples
