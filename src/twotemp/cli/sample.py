"""`twotemp sample` and `twotemp policies`."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from functools import partial
from typing import Annotated, Any

import typer

from twotemp.cli.options import (
    BatchSize,
    Block,
    BlockSize,
    Cache,
    Compiled,
    Device,
    Dtype,
    MaskId,
    Model,
    Profile,
    Seed,
    Traced,
)
from twotemp.errors import UserError


def sample(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; `-` reads one a line from stdin.")
    ] = None,
    model: Model = "tiny",
    policy: Annotated[
        str, typer.Option(help="A name from `twotemp policies`, or tct:t_pos=0.1,threshold=0.6.")
    ] = "tct",
    t_token: Annotated[float | None, typer.Option(help="Temperature of what is written.")] = None,
    t_pos: Annotated[float | None, typer.Option(help="Temperature of where; `inf` is legal.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Confidence threshold lambda.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Positions a step.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Samples a prompt.")] = 1,
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
    device: Device = None,
    dtype: Dtype = None,
    mask_id: MaskId = None,
    block_size: BlockSize = None,
    compiled: Compiled = False,
    profile: Profile = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One sample a line on stdout, with its cache.")
    ] = False,
) -> None:
    """Draw samples and show how different they are.

    [bold]Examples[/bold]

      twotemp sample --policy tlc --t-pos 1 -n 8 "3 7 12 -> 33"

      twotemp sample --model GSAI-ML/LLaDA-8B-Instruct --device cuda --length 256 -n 8 "What is 7 * 8?"

      cat prompts.txt | twotemp sample --json - > samples.jsonl
    """
    texts = _prompts(prompts)
    import twotemp
    from twotemp.cli.console import people, progress, say_cache, show_log
    from twotemp.engine import Ledger
    from twotemp.policies import parse

    show_log()

    given = {"t_token": t_token, "t_pos": t_pos, "threshold": threshold, "k": k}
    chosen = parse(_with_options(policy, {key: v for key, v in given.items() if v is not None}))
    loaded = twotemp.load(
        model, mask_id=mask_id, block_size=block_size, device=device, dtype=dtype, compile=compiled
    )
    say_cache(loaded, cache)
    ledger = Ledger(loaded) if profile else None
    with progress() as bar:
        task = bar.add_task("sampling", total=len(texts) * n, note="")

        def advance(found: Any) -> None:
            bar.update(task, advance=1, note=f"{found.nfe} NFE")

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
        people.print(ledger.report(), highlight=False)
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


def _show(prompt: str, samples: list[Any]) -> None:
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


def policies(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """List every policy with its parameters, formula and source."""
    from twotemp.policies import PRESETS

    if as_json:
        rows = {
            name: {
                "parameters": {key: getattr(p.policy, key) for key in p.settable},
                "formula": p.formula,
                "source": p.source,
            }
            for name, p in PRESETS.items()
        }
        typer.echo(json.dumps(rows, indent=2).replace("Infinity", '"inf"'))
        return
    from rich.table import Table

    from twotemp.cli.console import output

    table = Table(title="policies", title_justify="left", show_lines=True)
    for column in ("name", "parameters (defaults)", "commits at each step", "source"):
        table.add_column(column, overflow="fold")
    for name, p in PRESETS.items():
        defaults = "\n".join(f"{key} = {getattr(p.policy, key)}" for key in (*p.parameters, "t_token"))
        table.add_row(f"[bold]{name}[/bold]", defaults, p.formula, p.source)
    output.print(table)
    output.print("every policy also takes top_k, top_p and eos = free | last | never", highlight=False)
