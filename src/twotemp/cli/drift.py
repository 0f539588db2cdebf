"""`twotemp drift`: what an approximate cache changes, measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from twotemp.cli.options import BatchSize, Block, BlockSize, Device, Dtype, Length, MaskId, Model, Seed


def drift(
    model: Model = "tiny",
    task: Annotated[str, typer.Option(help="Whose problems to sample.")] = "words-3",
    policy: Annotated[str, typer.Option(help="As in `twotemp sample`.")] = "ct",
    cache: Annotated[str, typer.Option(help="prefix or dual.")] = "dual",
    questions: Annotated[int, typer.Option(min=1, help="How many problems.")] = 20,
    length: Length = None,
    block: Block = None,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = None,
    mask_id: MaskId = None,
    block_size: BlockSize = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Compare a cached run's predictions and commits with the exact ones, at every state it visits.

    KL is over the steps that read the cache; the first step of a block computes it afresh and is exact. Changed
    commits are counted over all steps.

    [bold]Example[/bold]

      twotemp drift --task words-3 --cache dual --policy ct:threshold=0.9
    """
    from twotemp import tasks
    from twotemp.cli.console import output, progress
    from twotemp.engine.drift import drift as measure
    from twotemp.models.load import load
    from twotemp.policies import parse
    from twotemp.sampling import make_requests

    chosen = tasks.get(task)
    loaded = load(model, device=device, dtype=dtype, mask_id=mask_id, block_size=block_size)
    prompts = [problem.prompt for problem in chosen.problems().problems[:questions]]
    requests = make_requests(loaded, prompts, parse(policy), 1, length or chosen.length, block, seed)
    with progress() as bar:
        watched = bar.add_task("comparing", total=len(requests), note="")
        found = measure(
            loaded,
            requests,
            cache,
            batch_size=batch_size,
            on_sample=lambda _: bar.advance(watched),
        )
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    output.print(
        f"{cache} cache, {policy}, {len(requests)} samples of {task}: {found.predictions} predictions that read it\n"
        f"  KL(exact || cached): mean {found.kl_mean:.4g}, median {found.kl_median:.4g}, "
        f"99 % {found.kl_p99:.4g}, max {found.kl_max:.4g} nats\n"
        f"  steps that commit something else: {100 * found.changed_steps:.1f} % of {found.steps}; "
        f"committed tokens that would differ: {100 * found.changed_tokens:.1f} %",
        highlight=False,
    )
