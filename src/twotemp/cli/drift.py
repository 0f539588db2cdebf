"""`twotemp drift`: what a cache or quantized weights change, measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import DecodingOptions, Json, LoadingOptions, Model
from twotemp.serialization import json_text

if TYPE_CHECKING:
    from twotemp.records import Sample


def drift(
    loading: LoadingOptions,
    decoding: DecodingOptions,
    model: Model = "tiny",
    task: Annotated[str, typer.Option("--task", "--tasks", help="Whose problems to sample.")] = "words-3",
    policy: Annotated[str, typer.Option(help="As in `twotemp sample`.")] = "ct",
    cache: Annotated[
        str | None, typer.Option(help="prefix or dual (default: dual, unless --quantize is measured).")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="How many problems.")] = 20,
    as_json: Json = False,
) -> None:
    """Compare an approximate run's predictions and commits with the exact ones, at every state it visits.

    With --quantize the model is compared with itself unquantized; else its cache is measured. KL is over the steps
    that read the cache; the first step of a block computes it afresh and is exact. Changed commits are counted
    over all steps.

    [bold]Examples[/bold]

      twotemp drift --task words-3 --cache dual --policy ct:threshold=0.9

      twotemp drift --task words-3 --quantize int8
    """
    from dataclasses import replace

    from twotemp import tasks
    from twotemp.cli.console import output, progress, show_log
    from twotemp.engine.drift import drift as measure
    from twotemp.policies import parse
    from twotemp.sampling.prompts import ProblemRequest, problem_requests

    show_log()
    chosen, how = tasks.get(task), parse(policy)
    loaded = loading.load(model)
    exact = replace(loading, quantize=None).load(model) if loading.quantize else None
    cache = cache or (None if exact else "dual")
    samples = [ProblemRequest(problem, how) for problem in chosen.problems().problems[:questions]]
    length = decoding.length or chosen.length
    wanted = list(problem_requests(loaded, samples, length=length, block=decoding.block, seed=decoding.seed))
    with progress("comparing") as bar:
        done = 0

        def advance(_: Sample) -> None:
            nonlocal done
            done += 1
            bar.update(done, len(wanted))

        found = measure(
            loaded, wanted, cache, against=exact, batch_size=decoding.batch_size, on_sample=advance
        )
    if as_json:
        typer.echo(json_text(asdict(found)))
        return
    what = " and ".join(filter(None, (loading.quantize, cache and f"{cache} cache")))
    output.print(
        f"{what}, {policy}, {len(wanted)} samples of {task}: {found.predictions} approximate predictions\n"
        f"  KL(exact || approximate): mean {found.kl_mean:.4g}, median {found.kl_median:.4g}, "
        f"99 % {found.kl_p99:.4g}, max {found.kl_max:.4g} nats\n"
        f"  steps that commit something else: {100 * found.changed_steps:.1f} % of {found.steps}; "
        f"committed tokens that would differ: {100 * found.changed_tokens:.1f} %",
        highlight=False,
    )
