"""`twotemp forks`: the fork-token study."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import DecodingOptions, Json, LoadingOptions, Model, Out, TaskOptions
from twotemp.cli.workers import Job, WorkerOptions
from twotemp.serialization import json_text

if TYPE_CHECKING:
    from twotemp.backends import Backend
    from twotemp.evaluation import Evaluation, Plan, TaskChoice
    from twotemp.forks.probe import Settings, Study
    from twotemp.models.base import LanguageModel
    from twotemp.store import Store


def forks(
    out: Out,
    asked: TaskOptions,
    loading: LoadingOptions,
    decoding: DecodingOptions,
    working: WorkerOptions,
    model: Model = "tiny",
    questions: Annotated[
        int, typer.Option(min=1, help="Prompts completed per task, chosen at random (by --seed).")
    ] = 100,
    n: Annotated[int, typer.Option("-n", min=1, help="Completions per prompt.")] = 1,
    quantile: Annotated[
        float, typer.Option(help="Positions above this quantile of entropy are forks.")
    ] = 0.99,
    alternatives: Annotated[int, typer.Option(help="Likeliest tokens tried at each fork.")] = 5,
    t_token: Annotated[float, typer.Option(help="Token temperature of completions and restarts.")] = 0.8,
    as_json: Json = False,
) -> None:
    """Find fork tokens and measure what low-confidence remasking does to them (the paper's appendix C.5).

    Completes prompts from left to right, takes the most uncertain positions as forks, restarts each with LC to see
    its entropy fall as anchors are revealed, and counts the different answers its likeliest tokens lead to.
    Stopped in any way and started again it continues.

    [bold]Examples[/bold]

      twotemp forks --tasks countdown-3,words-2 --out runs/forks

      twotemp forks --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --device cuda --out runs/forks-gsm8k
    """
    from rich.markdown import Markdown

    from twotemp.backends.local import LocalBackend
    from twotemp.cli.console import output, say, show_log
    from twotemp.evaluation import Evaluation
    from twotemp.folders import make_folder, write_text
    from twotemp.forks.probe import CHUNK, Settings
    from twotemp.report import NO_FIGURES
    from twotemp.report import forks as report
    from twotemp.report.figures import available

    show_log()
    settings = Settings(quantile, alternatives, t_token, decoding.block, decoding.seed)
    only, compiled = [settings.completion], loading.compile
    plan = asked.plan(decoding, only, n=n, questions=questions, trace=True, compile=compiled)
    plan = replace(plan, tasks=tuple(replace(task, shuffled=decoding.seed) for task in plan.tasks))
    with Evaluation(plan, out) as evaluation:
        job = Job(model, loading, evaluation.samples, decoding.batch_size, unit=CHUNK)
        with working.backend(job) as (backend, _):
            # Workers draw; what the model predicts at a fork is looked up here.
            loaded = backend.text if isinstance(backend, LocalBackend) else loading.load(model)
            store = _complete(evaluation, backend)
            studies = [_study(store, choice, plan, loaded, backend, settings) for choice in plan.tasks]
    facts = (
        f"{loaded.name}: {questions} prompts per task, {n} left-to-right completion{'s' * (n > 1)} each at T_token = "
        f"{t_token:g}; forks are the positions above the {100 * quantile:g} % quantile of predictive entropy; "
        f"{alternatives} alternatives per fork; block {decoding.block or loaded.block_size or 32}, counted from the "
        "fork on."
    )
    written = report.text(studies, facts)
    folder = out / "report"
    make_folder(folder)
    figures = report.draw(studies, folder) if available() else []
    images = "\n".join(f"![{figure.name}]({figure.path.name})\n\n{figure.caption}\n" for figure in figures)
    write_text(folder / "forks.md", f"{written}\n{images or NO_FIGURES}")
    if as_json:
        for study in studies:
            typer.echo(json_text(report.numbers(study)))
    else:
        output.print(Markdown(written))
    say(f"report: {folder / 'forks.md'}")
    if not figures:
        say(NO_FIGURES)


def _complete(evaluation: Evaluation, backend: Backend) -> Store:
    from twotemp.cli.console import progress

    with progress("completing prompts") as bar:
        return evaluation.run_with(backend, watch=lambda state: bar.update(state.samples, state.all_samples))


def _study(
    store: Store,
    choice: TaskChoice,
    plan: Plan,
    model: LanguageModel,
    backend: Backend,
    settings: Settings,
) -> Study:
    from twotemp import graders
    from twotemp import tasks as known
    from twotemp.cli.console import progress
    from twotemp.forks.probe import CHUNK, study

    task = known.get(choice.name)
    problems = {problem.id: problem for problem in choice.problems().problems[: plan.questions]}
    (cell,) = (
        c for c in store.cells() if c.config.task == choice.name and c.config.policy == settings.completion
    )
    samples = [s for s in cell.samples() if s.request in problems and s.index < plan.n]
    judge = graders.get(choice.grader or task.grader)
    try:
        with progress(f"forks of {choice.name}") as bar:
            return study(
                model,
                choice.name,
                samples,
                problems,
                judge,
                settings,
                store.path / "forks" / choice.name,
                backend=backend,
                together=CHUNK * backend.workers,
                watch=bar.update,
            )
    finally:
        judge.close()
