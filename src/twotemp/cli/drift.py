"""`twotemp drift`: measure what a cache or quantized weights change."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import count
from typing import Annotated

import typer

from twotemp import tasks
from twotemp.cli.console import output, progress, say, show_log
from twotemp.cli.options import DecodingOptions, Json, LoadingOptions, Model
from twotemp.engine import observers as engine
from twotemp.policies import parse
from twotemp.sampling.requests import PlannedSample, problem_requests
from twotemp.serialization import json_text


def drift(
    loading: LoadingOptions,
    decoding: DecodingOptions,
    model: Model = "tiny",
    task: Annotated[str, typer.Option("--task", "--tasks", help="The task to sample.")] = "words-3",
    policy: Annotated[str, "As in `twotemp sample`."] = "ct",
    cache: Annotated[str | None, "prefix or dual (default: dual, or none with --quantize)."] = None,
    questions: Annotated[int, typer.Option(min=1, help="The number of problems.")] = 20,
    as_json: Json = False,
) -> None:
    """Measure what a cache or quantized weights change.

    Compares an approximate run's predictions and commits with the exact ones, at every state it visits. With
    --quantize the model is compared with itself unquantized; otherwise its cache is measured. KL is over the steps
    that read the cache; the first step of a block computes it afresh and is exact. Changed commits are counted
    over all steps.

    [bold]Examples[/bold]
      twotemp drift --task words-3 --cache dual --policy ct:threshold=0.9
      twotemp drift --task words-3 --quantize int8
    """
    show_log()
    chosen, parsed = tasks.get(task), parse(policy)
    loaded = loading.load(model)
    exact = replace(loading, quantize=None).load(model) if loading.quantize else None
    cache = cache or (None if exact else "dual")
    samples = [PlannedSample(problem, parsed) for problem in chosen.problems().problems[:questions]]
    length = decoding.length or chosen.length
    wanted = list(problem_requests(loaded, samples, length=length, block=decoding.block, seed=decoding.seed))
    with progress("comparing") as bar:
        number = count(1)
        result = engine.drift(
            loaded,
            wanted,
            cache,
            against=exact,
            batch_size=decoding.batch_size,
            on_sample=lambda _: bar.update(next(number), len(wanted)),
        )
    if as_json:
        typer.echo(json_text(asdict(result)))
        return
    what = " and ".join(filter(None, (loading.quantize, cache and f"{cache} cache")))
    output.print(
        f"{what}, {policy}, {len(wanted)} samples of {task}: {result.predictions} approximate predictions\n"
        f"  KL(exact || approximate): mean {result.kl_mean:.4g}, median {result.kl_median:.4g}, "
        f"99 % {result.kl_p99:.4g}, max {result.kl_max:.4g} nats\n"
        f"  steps that commit something else: {100 * result.changed_steps:.1f} % of {result.steps}; "
        f"committed tokens that would differ: {100 * result.changed_tokens:.1f} %",
        highlight=False,
    )
    options = [
        f"--cache {cache}" if cache else "",
        f"--quantize {loading.quantize}" if loading.quantize else "",
    ]
    say(
        f"next: measure the accuracy with it: twotemp eval --task {task} {' '.join(filter(None, options))} --out RUN"
    )
