"""`twotemp grpo`: post-training with rollouts of any policy."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.cli.command import STOPPED
from twotemp.cli.options import LoadingOptions, Model, Seed
from twotemp.cli.workers import Job, WorkerOptions
from twotemp.rl.settings import GrpoSettings, LearningSettings, RolloutSettings

if TYPE_CHECKING:
    from twotemp.backends import Backend
    from twotemp.records import Problem
    from twotemp.rl.evaluation import Checkup
    from twotemp.rl.telemetry import StepRecord

MODEL = "model"  # the trained model, in the run's folder
UNIT = 64  # samples of an evaluation that a worker draws together; there are some hundreds


@dataclass(frozen=True)
class CheckingOptions(WorkerOptions):
    """Who draws the evaluations (rollouts are drawn where the training is)."""

    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that draw the evaluations (default: none, the training does)."),
    ] = None


def grpo(
    out: Annotated[Path, typer.Option(help="The run's folder; an unfinished run there is continued.")],
    budget: Annotated[str, typer.Option(help="When to stop: 10m, 2h, 500steps, 1000000nfe, or 2h,500steps.")],
    rollouts: RolloutSettings,
    learning: LearningSettings,
    checking: CheckingOptions,
    task: Annotated[
        str, typer.Option("--task", "--tasks", help="Which problems to learn from.")
    ] = "countdown-3",
    model: Model = "tiny",
    policy: Annotated[
        str, typer.Option(help="How rollouts are drawn: a name from `twotemp policies`, or tct:t_pos=0.1.")
    ] = "tct",
    data: Annotated[
        Path | None, typer.Option(help="Training problems in the task's format (generated tasks need none).")
    ] = None,
    eval_data: Annotated[
        Path | None, typer.Option(help="Held-out problems, where the task does not find its own.")
    ] = None,
    held_out: Annotated[
        int, typer.Option(min=0, help="Problems of the greedy evaluation, at most; 0 for none.")
    ] = 200,
    length: Annotated[int | None, typer.Option(help="Tokens of an answer (default: the task's).")] = None,
    seed: Seed = 0,
    device: Annotated[str | None, typer.Option(help="cpu; unset: what accelerate finds.")] = None,
    mask_id: Annotated[
        int | None, typer.Option(help="Mask token id, if the checkpoint does not say.")
    ] = None,
) -> None:
    """Train a model by GRPO, evaluate it greedily before and after, and save it.

    Ctrl-C ends after the step that is running; the same command continues. Several workers:
    torchrun --nproc-per-node 4 --no-python twotemp grpo …

    [bold]Example[/bold]

      twotemp grpo --model tiny --task countdown-3 --policy tct --budget 10m --out runs/tct
    """
    from twotemp.errors import UserError
    from twotemp.rl.budget import Budget

    limit = Budget.parse(budget)
    if device not in (None, "cpu"):
        raise UserError(
            f"--device {device}: give cpu, or leave it out and accelerate takes a GPU where there is one"
        )
    with _stopping() as asked_to_stop:
        import twotemp
        from twotemp import graders, tasks
        from twotemp.cli.console import progress, say
        from twotemp.folders import replacing
        from twotemp.folders.files import TEMPORARY
        from twotemp.policies import parse
        from twotemp.rl import evaluation
        from twotemp.rl.checkpoint import export
        from twotemp.rl.parallel import accelerator
        from twotemp.rl.rollouts import Dataset
        from twotemp.rl.trainer import train

        chosen = tasks.get(task)
        settings = GrpoSettings(
            parse(policy),
            length=chosen.length if length is None else length,
            seed=seed,
            **vars(rollouts),
            **vars(learning),
        )
        questions: tuple[Problem, ...] = ()
        if held_out:
            # A file that the user names need not be the published one.
            every = chosen.problems(data=eval_data, allow_altered=eval_data is not None)
            questions = every.problems[:held_out]
        workers = accelerator(bf16=learning.bf16, cpu=device == "cpu")

        if workers.num_processes > 1 and checking.chosen:
            raise UserError("torchrun's processes share the evaluations out: leave --workers and --ray out")

        def load(where: Any) -> Any:
            return twotemp.load(model, mask_id=mask_id, device=where)

        @contextmanager
        def other_backend() -> Iterator[Backend]:
            """Yield workers with the weights of the last checkpoint."""
            with TemporaryDirectory(prefix=TEMPORARY, dir=out) as folder:
                saved = export(load("cpu"), out, Path(folder) / MODEL)
                job = Job(str(saved), LoadingOptions(device=device), 0, rollouts.batch_size, unit=UNIT)
                with checking.backend(job) as (backend, _):
                    yield backend

        with closing(graders.get(chosen.grader)) as grader, progress(f"grpo {task}, % of the budget") as bar:

            def advance(r: StepRecord, used: float) -> None:
                note = f"step {r.step}: reward {r.reward:.2f} ± {r.reward_std:.2f}, {r.nfe:.1f} NFE"
                if workers.is_main_process:
                    bar.update(min(100, round(100 * used)), 100, note)

            state = train(
                load(workers.device),
                Dataset(chosen, grader, data, questions),
                settings,
                limit,
                out,
                accelerator=workers,
                on_step=advance,
                stop=asked_to_stop,
                evaluating=other_backend if checking.chosen else None,
            )
        if workers.is_main_process:
            if limit.used(state.seconds, state.nfe, state.step) < 1:
                say(f"stopped after step {state.step}; {out} keeps it, and the same command continues")
            else:
                with replacing(out / MODEL) as fresh:
                    export(load("cpu"), out, fresh)
                    # The older one makes way only once the new one is whole.
                    shutil.rmtree(out / MODEL, ignore_errors=True)
                _show(evaluation.read(out), state.step, out)
        workers.end_training()
    if asked_to_stop():
        raise typer.Exit(STOPPED)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks to stop after the step that is running; the second interrupts it."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _show(evaluations: list[Checkup], steps: int, out: Path) -> None:
    """Accuracy and NFE before and after, with the interval of the difference."""
    from rich.table import Table

    from twotemp.cli.console import output, say
    from twotemp.report.grpo import COMPARED, compare

    trained = out / MODEL
    output.print(f"{steps} steps; the trained model is {trained}", highlight=False, soft_wrap=True)
    if len(evaluations) < 2:
        return
    table = Table(title="greedy confidence thresholding on held-out problems", title_justify="left")
    for column in COMPARED:
        table.add_column(column, justify="right")
    for row in compare(evaluations[0], evaluations[-1]):
        table.add_row(*row)
    output.print(table)
    say(f"figures: twotemp report {out}; sample from it: twotemp sample --model {trained} …")
