"""`twotemp sample`: draw, and show how different the samples are."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.cli.options import (
    BatchSize,
    Block,
    Cache,
    Chat,
    Json,
    LoadingOptions,
    Model,
    Profile,
    Seed,
    Traced,
)
from twotemp.errors import UserError
from twotemp.serialization import json_text

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
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to generate (default: by the model's context, 32 to 256)."),
    ] = None,
    block: Block = None,
    seed: Seed = 0,
    chat: Chat = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string before which the text ends; may be repeated.")
    ] = None,
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

      twotemp sample --policy tlc --t-pos 1 -n 8 --length 12 "20 10 15 -> 45"

      twotemp sample --model GSAI-ML/LLaDA-8B-Instruct --device cuda --length 256 -n 8 "What is 7 * 8?"

      cat prompts.txt | twotemp sample --json - > samples.jsonl
    """
    texts = _prompts(prompts)
    if infill and (length is not None or chat):
        raise UserError("--infill fills the mask tokens of plain text: leave --length and --chat out")
    from twotemp.backends.local import LocalBackend
    from twotemp.cli.console import progress, say, show_log
    from twotemp.engine import Ledger
    from twotemp.policies import parse
    from twotemp.sampling.prompts import prompt_ids, prompt_names, prompt_requests

    show_log()
    given = {"t_token": t_token, "t_pos": t_pos, "threshold": threshold, "k": k}
    chosen = parse(_with_options(policy, {key: v for key, v in given.items() if v is not None}))
    loaded = loading.load_with(model, cache)
    ledger = Ledger(loaded) if profile else None
    rows = [prompt_ids(loaded, text, False if infill else chat) for text in texts]
    names = prompt_names(rows)
    backend = LocalBackend(loaded, batch_size=batch_size, cache=cache, observer=ledger)
    requests = prompt_requests(
        loaded,
        rows,
        chosen,
        n,
        0 if infill else length,
        block,
        seed,
        ids=names,
        stop=stop or (),
        eos_stop=eos_stop,
        trace=trace,
    )
    answers = {name: Answers() for name in names}
    with progress("sampling") as bar:
        for done, one in enumerate(backend.sample(requests), start=1):
            if as_json:
                used = cache or ("block" if loaded.block_size else None)
                typer.echo(json_text(one.to_dict() | {"cache": used}))
            else:
                answers[one.request].add(one)
            bar.update(done, len(texts) * n, f"{one.nfe} NFE")
    if ledger is not None:
        say(ledger.report())
    if not as_json:
        for name, text in zip(names, texts):
            answers[name].show(text)


def _prompts(given: list[str] | None) -> list[str]:
    if not given:
        raise UserError('no prompt given; write it as an argument, e.g. twotemp sample "3 7 12 -> 33"')
    if "-" in given and len(given) > 1:
        raise UserError("`-` reads the prompts from stdin, which then are all: leave it or the others out")
    texts = [line.rstrip("\n") for line in sys.stdin] if given == ["-"] else given
    for text in texts:
        if not text.strip():
            raise UserError("a prompt is empty")
    return texts


def _with_options(spec: str, options: dict[str, Any]) -> str:
    """`tct` and {t_pos: 0.1} -> `tct:t_pos=0.1`; an option wins over the same parameter in the spec."""
    parts = [f"{key}={value}" for key, value in options.items()]
    return spec + ("," if ":" in spec else ":") + ",".join(parts) if parts else spec


class Answers:
    """The distinct answers to one prompt, how often each came, and how spread out they are."""

    def __init__(self) -> None:
        self.texts: Counter[str] = Counter()
        self.nfe = self.forwards = 0

    def add(self, sample: Sample) -> None:
        self.texts[sample.text] += 1
        self.nfe += sample.nfe
        self.forwards += sample.forwards

    def show(self, prompt: str) -> None:
        from rich.markup import escape
        from rich.table import Table

        from twotemp.cli.console import output

        total = self.texts.total()
        entropy = sum(c / total * math.log2(total / c) for c in self.texts.values())
        table = Table(title=escape(prompt), title_justify="left", show_lines=False, expand=False)
        table.add_column("times", justify="right")
        table.add_column("answer", overflow="fold")
        for text, count in self.texts.most_common():
            table.add_row(str(count), escape(text))
        output.print(table)
        output.print(
            f"{len(self.texts)} distinct of {total} ({entropy:.2f} of {math.log2(total):.2f} bits); "
            f"mean NFE {self.nfe / total:.1f}, forwards {self.forwards / total:.1f}\n",
            highlight=False,
        )
