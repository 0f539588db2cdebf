"""`twotemp grpo`: post-training with rollouts of any policy."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.cli.options import Block, Model, Seed

if TYPE_CHECKING:
    from twotemp.records import Problem
    from twotemp.rl.evaluation import Checkup
    from twotemp.rl.telemetry import StepRecord

MODEL = "model"  # the trained model, in the run's folder


def grpo(
    out: Annotated[Path, typer.Option(help="The run's folder; an unfinished run there is continued.")],
    budget: Annotated[str, typer.Option(help="When to stop: 10m, 2h, 500steps, 1000000nfe, or 2h,500steps.")],
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
    groups: Annotated[int, typer.Option(help="Problems per step, over all workers.")] = 16,
    size: Annotated[int, typer.Option(help="Samples per problem.")] = 8,
    length: Annotated[int | None, typer.Option(help="Tokens of an answer (default: the task's).")] = None,
    block: Block = None,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together on a worker.")] = 128,
    likelihood: Annotated[
        str, typer.Option(help="d1, trajectory, deferral, fork, ar or elbo.")
    ] = "trajectory",
    draws: Annotated[int, typer.Option(help="Masks per row, for d1 and elbo.")] = 1,
    iterations: Annotated[int, typer.Option(help="Updates on the same rollouts (mu).")] = 1,
    micro_batch: Annotated[int, typer.Option(help="Partly masked rows in one training pass.")] = 1024,
    epsilon: Annotated[float, typer.Option(help="Clip of the probability ratio.")] = 0.5,
    beta: Annotated[float, typer.Option(help="Weight of the KL to the untrained model.")] = 0.0,
    scale_advantage: Annotated[
        bool, typer.Option("--scale-advantage", help="Divide advantages by the group's std.")
    ] = False,
    format_weight: Annotated[float, typer.Option(help="Reward for any answer the grader can find.")] = 0.0,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW; constant.")] = 5e-4,
    max_grad_norm: Annotated[float, typer.Option(help="Clip of the gradient's norm.")] = 1.0,
    lora_rank: Annotated[int, typer.Option(help="0 trains all weights.")] = 32,
    lora_alpha: Annotated[int, typer.Option(help="Scale of the adapters times their rank.")] = 64,
    tokens_per_forward: Annotated[
        float | None, typer.Option(help="Hold this speed by moving lambda (ct, tct).")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Training passes in bfloat16.")] = False,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = False,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Shard the weights over workers (FSDP2).")] = False,
    seed: Seed = 0,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 20,
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
        from twotemp.policies import parse
        from twotemp.rl import evaluation
        from twotemp.rl.checkpoint import export
        from twotemp.rl.parallel import accelerator
        from twotemp.rl.rollouts import Dataset
        from twotemp.rl.settings import GrpoSettings
        from twotemp.rl.trainer import train

        chosen = tasks.get(task)
        settings = GrpoSettings(
            parse(policy),
            length=chosen.length if length is None else length,
            block=block,
            groups=groups,
            size=size,
            batch_size=batch_size,
            likelihood=likelihood,
            draws=draws,
            iterations=iterations,
            micro_batch=micro_batch,
            epsilon=epsilon,
            beta=beta,
            scale_advantage=scale_advantage,
            format_weight=format_weight,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            bf16=bf16,
            gradient_checkpointing=gradient_checkpointing,
            fsdp=fsdp,
            tokens_per_forward=tokens_per_forward,
            seed=seed,
            save_every=save_every,
        )
        questions: tuple[Problem, ...] = ()
        if held_out:
            # A file that the user names need not be the published one.
            questions = chosen.problems(data=eval_data, allow_altered=eval_data is not None).problems[
                :held_out
            ]
        workers = accelerator(bf16=bf16, cpu=device == "cpu")

        def load(where: Any) -> Any:
            return twotemp.load(model, mask_id=mask_id, device=where)

        grader = graders.get(chosen.grader)
        try:
            with progress(f"grpo {task}, % of the budget") as bar:

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
                )
        finally:
            grader.close()
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
        raise typer.Exit(130)


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
    from twotemp.rl.evaluation import COMPARED, compare

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
