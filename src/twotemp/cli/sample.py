"""`twotemp sample`: draw, and show how different the samples are."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.cli.options import (
    BatchSize,
    Block,
    Cache,
    Json,
    LoadingOptions,
    Model,
    Profile,
    Seed,
    Traced,
)
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.records import Sample


def sample(
    prompts: Annotated[list[str], typer.Argument(help="Prompts; `-` reads one per line from stdin.")],
    loading: LoadingOptions,
    model: Model = "tiny",
    policy: Annotated[
        str, typer.Option(help="A name from `twotemp policies`, or tct:t_pos=0.1,threshold=0.6.")
    ] = "tct",
    t_token: Annotated[float | None, typer.Option(help="Temperature of what is written.")] = None,
    t_pos: Annotated[float | None, typer.Option(help="Temperature of where; `inf` is legal.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Confidence threshold lambda.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Positions per step.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Samples per prompt.")] = 1,
    length: Annotated[int, typer.Option(help="Tokens to generate.")] = 32,
    block: Block = None,
    seed: Seed = 0,
    chat: Annotated[bool, typer.Option(help="Wrap the prompt in the chat template.")] = True,
    infill: Annotated[
        bool,
        typer.Option("--infill", help="Fill the mask tokens inside the prompt instead of continuing it."),
    ] = False,
    eos_stop: Annotated[
        bool, typer.Option("--eos-stop", help="Stop a row at its first finished EOS.")
    ] = False,
    trace: Traced = False,
    batch_size: BatchSize = None,
    cache: Cache = None,
    profile: Profile = False,
    as_json: Json = False,
) -> None:
    """Draw samples and show how different they are.

    [bold]Examples[/bold]

      twotemp sample --policy tlc --t-pos 1 -n 8 "3 7 12 -> 33"

      twotemp sample --model GSAI-ML/LLaDA-8B-Instruct --device cuda --length 256 -n 8 "What is 7 * 8?"

      cat prompts.txt | twotemp sample --json - > samples.jsonl
    """
    texts = _prompts(prompts)
    import twotemp
    from twotemp.cli.console import progress, say, say_cache, show_log
    from twotemp.engine import Ledger
    from twotemp.engine.runner import check_cache
    from twotemp.policies import parse

    show_log()
    given = {"t_token": t_token, "t_pos": t_pos, "threshold": threshold, "k": k}
    chosen = parse(_with_options(policy, {key: v for key, v in given.items() if v is not None}))
    loaded = loading.load(model)
    check_cache(loaded, cache)
    say_cache(loaded, cache)
    ledger = Ledger(loaded) if profile else None
    with progress("sampling") as bar:
        done = 0

        def advance(found: Sample) -> None:
            nonlocal done
            done += 1
            bar.update(done, len(texts) * n, f"{found.nfe} NFE")

        draw = (
            partial(twotemp.infill, n=n)
            if infill
            else partial(twotemp.sample, n=n, length=length, chat=chat, eos_stop=eos_stop)
        )
        found = draw(
            loaded,
            texts,
            chosen,
            block=block,
            seed=seed,
            trace=trace,
            batch_size=batch_size,
            cache=cache,
            on_sample=advance,
            ledger=ledger,
        )
    if ledger is not None:
        say(ledger.report())
    if as_json:
        used = cache or ("block" if loaded.block_size else None)
        for one in found:
            typer.echo(json.dumps(one.to_dict() | {"cache": used}))
    else:
        for number, text in enumerate(texts):
            _show(text, found[number * n : (number + 1) * n])


def _prompts(given: list[str] | None) -> list[str]:
    if not given:
        raise UserError('no prompt given; write it as an argument, e.g. twotemp sample "3 7 12 -> 33"')
    texts = [line.rstrip("\n") for line in sys.stdin] if given == ["-"] else given
    for text in texts:
        if not text.strip():
            raise UserError("a prompt is empty")
    return texts


def _with_options(spec: str, options: dict[str, Any]) -> str:
    """`tct` and {t_pos: 0.1} -> `tct:t_pos=0.1`; an option wins over the same parameter in the spec."""
    parts = [f"{key}={value}" for key, value in options.items()]
    return spec + ("," if ":" in spec else ":") + ",".join(parts) if parts else spec


def _show(prompt: str, samples: list[Sample]) -> None:
    """The distinct answers, how often each came, and how spread out they are."""
    from rich.table import Table

    from twotemp.cli.console import output

    texts = Counter(s.text if s.text is not None else " ".join(map(str, s.tokens)) for s in samples)
    total = len(samples)
    entropy = sum(c / total * math.log2(total / c) for c in texts.values())
    table = Table(title=prompt, title_justify="left", show_lines=False, expand=False)
    table.add_column("times", justify="right")
    table.add_column("answer", overflow="fold")
    for text, count in texts.most_common():
        table.add_row(str(count), text)
    output.print(table)
    nfe = sum(s.nfe for s in samples) / total
    forwards = sum(s.forwards for s in samples) / total
    output.print(
        f"{len(texts)} distinct of {total} ({entropy:.2f} of {math.log2(total) if total > 1 else 0:.2f} bits); "
        f"mean NFE {nfe:.1f}, forwards {forwards:.1f}\n",
        highlight=False,
    )
