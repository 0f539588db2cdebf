"""`twotemp grpo`: post-training with rollouts of any policy."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

import twotemp
from twotemp import graders, tasks
from twotemp.backends import Backend
from twotemp.backends.process import ProcessTransport
from twotemp.cli.commands import STOPPED
from twotemp.cli.console import ProgressBar, output, progress, say
from twotemp.cli.options import Chat, LoadingOptions, Model, Seed
from twotemp.cli.workers import WorkerOptions, Workload, devices, threads_per_worker
from twotemp.errors import UserError, unknown
from twotemp.folders import replacing
from twotemp.folders.files import TEMPORARY
from twotemp.graders.rewards import parse_rewards
from twotemp.models.load import stored_parameters
from twotemp.policies import parse_portfolio, spell
from twotemp.records import Problem
from twotemp.report.grpo import COMPARED, compare
from twotemp.rl import results
from twotemp.rl.checkpoint import export
from twotemp.rl.knobs import with_learned
from twotemp.rl.parallel import accelerator
from twotemp.rl.results import GreedyEvaluation, StepRecord
from twotemp.rl.rollouts import Dataset, RolloutBackend, RolloutLoader
from twotemp.rl.settings import (
    LARGE,
    RECIPES,
    Budget,
    GrpoSettings,
    LearningSettings,
    RolloutSettings,
    read_recipe,
)
from twotemp.rl.trainer import OnStep, train

MODEL = "model"  # the folder of the trained model, in the run's folder
UNIT = 64  # samples of an evaluation that a worker draws together; an evaluation has some hundreds


@dataclass(frozen=True)
class TrainingWorkerOptions(WorkerOptions):
    """Choosing the workers for evaluations and rollouts."""

    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that draw the evaluations (default: the training process)."),
    ] = None
    rollout_workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that draw the rollouts, each with a copy of the model (default: none)."
        ),
    ] = None


@dataclass(frozen=True)
class RolloutWorkload(Workload):
    """The rollouts of a training."""

    settings: GrpoSettings = field(kw_only=True)

    def loader(self, gpus: int = 0) -> RolloutLoader:
        """Return the loader with which a worker makes its copy of the trained model."""
        return RolloutLoader(**vars(super().loader(gpus)), settings=self.settings)


def _set_defaults(context: typer.Context, recipe: str | None) -> str | None:
    """Replace the defaults by the options of a recipe. Called before other options are read."""
    if recipe is not None:
        options = read_recipe(recipe)
        known = {parameter.name: parameter for parameter in context.command.params}
        for name in options:
            if name not in known:
                raise unknown(f"option of `twotemp grpo` in {recipe}", name, known)
        context.default_map = {**(context.default_map or {}), **options}
    return recipe


def grpo(
    context: typer.Context,
    out: Annotated[Path, "The run's folder; an unfinished run is continued."],
    budget: Annotated[str, "When to stop: 10m, 2h, 500steps, 1000000nfe, or 2h,500steps."],
    rollouts: RolloutSettings,
    learning: LearningSettings,
    working: TrainingWorkerOptions,
    loading: LoadingOptions,
    task: Annotated[str, typer.Option("--task", "--tasks", help="The task to learn.")] = "countdown-3",
    model: Model = "tiny",
    policy: Annotated[
        str, "The policy of the rollouts: a name from `twotemp policies`, or tct:t_pos=0.1."
    ] = "tct",
    data: Annotated[
        Path | None, "Training problems in the task's format (generated tasks need none)."
    ] = None,
    prompt: Annotated[str | None, "The prompt template of the training problems (`twotemp tasks`)."] = None,
    subset: Annotated[str | None, "The training problems of a task that has several sets."] = None,
    grader: Annotated[str | None, "A grader other than the task's (`twotemp graders`)."] = None,
    chat: Chat = None,
    reward: Annotated[
        list[str] | None,
        "NAME=WEIGHT of a reward (default: correct=1); may be repeated. Others: answered, d1-answer, d1-integer, "
        "d1-strict-format, d1-soft-format, d1-xml-count, d1-tags.",
    ] = None,
    eval_data: Annotated[Path | None, "A file of held-out problems, if the task has none."] = None,
    eval_prompt: Annotated[
        str | None, "The prompt template of the held-out problems (default: that of --prompt)."
    ] = None,
    held_out: Annotated[
        int,
        typer.Option(min=0, help="Largest number of problems in the greedy evaluation; 0 for no evaluation."),
    ] = 200,
    length: Annotated[int | None, "Tokens of an answer (default: the task's length)."] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            is_eager=True,
            callback=_set_defaults,
            help="Values for options that are not given: tiny, d1 or a file such as recipes/grpo/tiny.yaml (default: "
            "d1 for models of 1 billion parameters or more).",
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        "Send the numbers of every step to tensorboard (OUT/logs) or wandb; may be repeated.",
    ] = None,
    seed: Seed = 0,
) -> None:
    """Train a model with GRPO, evaluate it greedily before and after, and save it.

    Ctrl-C stops after the current step; the same command continues.

    [bold]Examples[/bold]
      twotemp grpo --model tiny --task countdown-3 --policy tct --budget 10m --out runs/tct
      twotemp grpo --recipe recipes/grpo/tiny.yaml --budget 10m --out runs/tiny
      torchrun --nproc-per-node 4 --no-python twotemp grpo --model tiny --task countdown-3 --budget 2h --out runs/four
    """
    limit = Budget.parse(budget)
    if loading.device not in (None, "cpu"):
        raise UserError(
            f"--device {loading.device}: give cpu, or leave it out to let accelerate take a GPU if there is one"
        )
    if loading.device_map:
        raise UserError(
            "--device-map is for sampling only: to shard the weights, start with torchrun and --fsdp"
        )
    rewards = parse_rewards(reward) if reward else None
    chosen = tasks.get(task)
    options = {**vars(rollouts), **vars(learning)}
    settings = GrpoSettings(
        parse_portfolio(policy),
        length=chosen.length if length is None else length,
        seed=seed,
        **{**options, **_by_size(recipe, model, loading.revision), **_given(options, context)},
    )
    held_out_problems = _held_out(chosen, eval_data, held_out, eval_prompt or prompt)
    run = TrainingRun(out, model, loading)
    with _stop_requests() as stop_requested:
        processes = accelerator(
            bf16=settings.bf16, cpu=loading.device == "cpu", trackers=track or (), folder=out / "logs"
        )
        if processes.num_processes > 1 and working.chosen:
            raise UserError("torchrun's processes share the evaluations: leave --workers and --ray out")
        with (
            closing(graders.get(grader or chosen.grader)) as chosen_grader,
            progress(f"grpo {task}, % of the budget") as bar,
        ):
            state = train(
                run.load(processes.device),
                Dataset(chosen, chosen_grader, data, held_out_problems, prompt, subset, chat),
                settings,
                limit,
                out,
                accelerator=processes,
                rewards=rewards,
                loading=run.identity(),
                on_step=_on_step(bar, processes, settings, out.name)
                if processes.is_main_process
                else _ignore_step,
                stop=stop_requested,
                evaluating=partial(run.workers, working, settings.batch_size) if working.chosen else None,
                drawing=partial(run.rollouts, working.rollout_workers, settings)
                if working.rollout_workers
                else None,
            )
        if processes.is_main_process:
            if limit.used(state.seconds, state.nfe, state.step) < 1:
                say(f"stopped after step {state.step}; it is kept in {out}, and the same command continues")
            else:
                run.save_model()
                _show_result(results.read_evaluations(out), state.step, out)
            if state.knobs:
                say(f"learned: {spell(with_learned(settings.policy.for_sample(0), state.knobs))}")
        processes.end_training()
    if stop_requested():
        raise typer.Exit(STOPPED)


@dataclass(frozen=True)
class TrainingRun:
    """The folder of a training run, and the model that it starts from."""

    out: Path
    model: str
    loading: LoadingOptions

    def load(self, device: torch.device | str) -> Any:
        """Load the model as it was before the training."""
        return twotemp.load(self.model, **{**self.loading.options(), "device": device})

    def identity(self) -> dict[str, Any]:
        """Return the given loading options that change results."""
        options = self.loading.options()
        return {name: value for name, value in options.items() if value and name != "device"}

    def export(self, folder: Path) -> Path:
        """Write the model of the last checkpoint."""
        return export(self.model, self.out, folder, **self.loading.text_options())

    @contextmanager
    def workers(self, working: TrainingWorkerOptions, batch_size: int | None) -> Iterator[Backend]:
        """Yield a backend of workers with the weights of the last checkpoint."""
        with TemporaryDirectory(prefix=TEMPORARY, dir=self.out) as folder:
            saved = self.export(Path(folder) / MODEL)
            workload = Workload(
                str(saved),
                LoadingOptions(device=self.loading.device, dtype=self.loading.dtype),
                0,
                batch_size,
                unit=UNIT,
            )
            with working.backend(workload) as (backend, _):
                yield backend

    def rollouts(self, count: int, settings: GrpoSettings) -> AbstractContextManager[RolloutBackend]:
        """Return the workers that draw the rollouts; each of them gets an equal share of a step's samples."""
        rows = settings.groups * settings.size
        workload = RolloutWorkload(
            self.model,
            self.loading,
            rows,
            settings.batch_size,
            settings.cache,
            unit=ceil(rows / count),
            settings=settings,
        )
        _, gpus = devices(self.loading.device)
        threads = threads_per_worker(self.model, count)
        return workload.pool(ProcessTransport(workload.loader(gpus), threads=threads), count)

    def save_model(self) -> None:
        """Write the trained model into the run's folder."""
        with replacing(self.out / MODEL) as fresh:
            self.export(fresh)
            # An older one is removed only once the new one is complete.
            shutil.rmtree(self.out / MODEL, ignore_errors=True)


def _given(options: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """Return those of the options that the user gave."""
    sources = {name: context.get_parameter_source(name) for name in options}
    defaults = {name for name, source in sources.items() if source is None or source.name == "DEFAULT"}
    return {name: value for name, value in options.items() if name not in defaults}


def _by_size(recipe: str | None, model: str, revision: str | None) -> Mapping[str, Any]:
    """Return the settings for a model of this size if no recipe was chosen, and print which they are."""
    count = stored_parameters(model, revision)
    if count < LARGE:
        return {}
    chosen = recipe or "d1"
    say(f"{count / 1e9:.1f} billion parameters: settings of --recipe {chosen}")
    if chosen == "tiny":
        say("warning: these were chosen for a model of 0.8 million parameters; --recipe d1 is for large ones")
    return RECIPES["d1"] if recipe is None else {}


def _held_out(task: tasks.Task, data: Path | None, count: int, prompt: str | None) -> tuple[Problem, ...]:
    """Return the problems of the greedy evaluation; a file that the user names need not be the published one."""
    if not count:
        return ()
    return task.problems(data=data, prompt=prompt, allow_altered=data is not None).problems[:count]


def _show_step(bar: ProgressBar, record: StepRecord, used: float) -> None:
    """Show a finished step and the share of the budget that is used."""
    reward = f"reward {record.reward:.2f} ± {record.reward_std:.2f}"
    bar.update(min(100, round(100 * used)), 100, f"step {record.step}: {reward}, {record.nfe:.1f} NFE")


def _on_step(bar: ProgressBar, processes: Any, settings: GrpoSettings, name: str) -> OnStep:
    """Return the callback for every step: it shows the step and sends its numbers to the trackers, if any."""
    started = False

    def on_step(record: StepRecord, used: float) -> None:
        nonlocal started
        _show_step(bar, record, used)
        if processes.log_with:
            if not started:  # not earlier: an empty folder becomes a run first
                started = True
                scalars = (int, float, str, bool)
                config = {key: value for key, value in vars(settings).items() if isinstance(value, scalars)}
                processes.init_trackers(name, config=config)
            numbers = {key: value for key, value in asdict(record).items() if value is not None}
            numbers["updates"] = record.step * settings.iterations
            processes.log(numbers, step=record.step)

    return on_step


def _ignore_step(record: StepRecord, used: float) -> None:
    """Show nothing, because the main process shows the steps."""


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C asked to stop after the current step; a second one interrupts it."""
    requested = False

    def request(*_: object) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    before = signal.signal(signal.SIGINT, request)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, before)


def _show_result(evaluations: list[GreedyEvaluation], steps: int, out: Path) -> None:
    """Print accuracy and NFE before and after, with the interval of the difference."""
    trained = out / MODEL
    output.print(f"{steps} steps; the trained model is {trained}", highlight=False, soft_wrap=True)
    if len(evaluations) > 1:
        table = Table(title="greedy confidence thresholding on held-out problems", title_justify="left")
        for column in COMPARED:
            table.add_column(column, justify="right")
        for row in compare(evaluations[0], evaluations[-1]):
            table.add_row(*row)
        output.print(table)
    say(
        f"next: twotemp report {out} draws figures; twotemp sample --model {trained} … samples from the model"
    )
