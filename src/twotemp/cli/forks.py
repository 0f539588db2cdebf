"""`twotemp forks`: the fork-token study."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from twotemp import graders, tasks
from twotemp.backends import Backend
from twotemp.backends.local import LocalBackend
from twotemp.cli.console import output, progress, say, show_log
from twotemp.cli.options import DecodingOptions, Json, LoadingOptions, Model, Out, TaskOptions
from twotemp.cli.workers import WorkerOptions, Workload
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.folders import make_folder, write_text
from twotemp.forks.probe import Settings
from twotemp.forks.study import CHUNK, Study, study
from twotemp.models.base import LanguageModel
from twotemp.report import NO_FIGURES
from twotemp.report import forks as report
from twotemp.report.figures import available
from twotemp.serialization import json_text
from twotemp.store import Store


def forks(
    out: Out,
    task: TaskOptions,
    loading: LoadingOptions,
    decoding: DecodingOptions,
    working: WorkerOptions,
    model: Model = "tiny",
    questions: Annotated[
        int, typer.Option(min=1, help="Prompts completed per task, chosen at random with --seed.")
    ] = 100,
    n: Annotated[int, typer.Option("-n", min=1, help="Completions per prompt.")] = 1,
    quantile: Annotated[float, "Positions above this quantile of entropy count as forks."] = 0.99,
    alternatives: Annotated[int, "The number of likeliest tokens tried at each fork."] = 5,
    t_token: Annotated[float, "Token temperature of completions and restarts."] = 0.8,
    as_json: Json = False,
) -> None:
    """Find fork tokens and measure what low-confidence remasking does to them.

    This is the study of the paper's appendix C.5. It completes prompts from left to right, takes the most uncertain
    positions as forks, restarts each with LC to see its entropy fall as anchors are revealed, and counts the
    different answers its likeliest tokens lead to. A study that was stopped continues when the same command is
    given again.

    [bold]Examples[/bold]
      twotemp forks --tasks countdown-3,words-2 --out runs/forks
      twotemp forks --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --device cuda --out runs/forks-gsm8k
    """
    show_log()
    settings = Settings(quantile, alternatives, t_token, decoding.block, decoding.seed)
    only, compiled = [settings.completion], loading.compile
    plan = task.plan(decoding, only, n=n, questions=questions, trace=True, compile=compiled)
    plan = replace(plan, tasks=tuple(replace(choice, shuffled=decoding.seed) for choice in plan.tasks))
    with Evaluation(plan, out) as evaluation:
        workload = Workload(model, loading, evaluation.samples, decoding.batch_size, unit=CHUNK)
        with working.backend(workload) as (backend, _):
            # Workers draw; the model's predictions at a fork are computed in this process.
            loaded = backend.text if isinstance(backend, LocalBackend) else loading.load(model)
            store = _complete(evaluation, backend)
            studies = [_study(store, choice, plan, loaded, backend, settings) for choice in plan.tasks]
    setting = (
        f"{loaded.name}: {questions} prompts per task, {n} left-to-right completion{'s' * (n > 1)} each at T_token = "
        f"{t_token:g}; forks are the positions above the {100 * quantile:g} % quantile of predictive entropy; "
        f"{alternatives} alternatives per fork; block {decoding.block or loaded.block_size or 32}, counted from the "
        "fork on."
    )
    text = report.text(studies, setting)
    if as_json:
        for result in studies:
            typer.echo(json_text(report.numbers(result)))
    else:
        output.print(Markdown(text))
    say(f"next: open the report, {_write(studies, text, out / 'report')}")


def _write(studies: list[Study], text: str, folder: Path) -> Path:
    """Write the report with its figures; return its path."""
    make_folder(folder)
    figures = report.draw(studies, folder) if available() else []
    images = "\n".join(f"![{figure.name}]({figure.path.name})\n\n{figure.caption}\n" for figure in figures)
    path = folder / "forks.md"
    write_text(path, f"{text}\n{images or NO_FIGURES}")
    if not figures:
        say(NO_FIGURES)
    return path


def _complete(evaluation: Evaluation, backend: Backend) -> Store:
    with progress("completing prompts") as bar:
        return evaluation.run_with(
            backend, on_progress=lambda state: bar.update(state.samples, state.all_samples)
        )


def _study(
    store: Store, choice: TaskChoice, plan: Plan, model: LanguageModel, backend: Backend, settings: Settings
) -> Study:
    task = tasks.get(choice.name)
    problems = {problem.id: problem for problem in choice.problems().problems[: plan.questions]}
    config = (choice.name, settings.completion)
    (cell,) = (cell for cell in store.cells() if (cell.config.task, cell.config.policy) == config)
    samples = [s for s in cell.samples() if s.request in problems and s.index < plan.n]
    with (
        closing(graders.get(choice.grader or task.grader)) as grader,
        progress(f"forks of {choice.name}") as bar,
    ):
        return study(
            model,
            choice.name,
            samples,
            problems,
            grader,
            settings,
            store.path / "forks" / choice.name,
            backend=backend,
            together=CHUNK * backend.workers,
            on_progress=bar.update,
        )
