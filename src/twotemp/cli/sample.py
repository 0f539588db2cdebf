"""`twotemp sample`: draw samples and show how different they are."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from twotemp.cli import options
from twotemp.cli.console import output, progress, say, show_log
from twotemp.errors import UserError
from twotemp.policies import AnyPolicy, Portfolio, parse, parse_portfolio
from twotemp.records import Sample
from twotemp.serialization import json_text


def sample(
    prompts: Annotated[list[str], typer.Argument(help="Prompts; `-` reads one per line from stdin.")],
    loading: options.LoadingOptions,
    model: options.Model = "tiny",
    policy: Annotated[
        str,
        "A name from `twotemp policies`, tct:t_pos=0.1,threshold=0.6, or a portfolio: lc + tlc:t_pos=0.5.",
    ] = "tct",
    t_token: Annotated[float | None, "Token temperature; short for --policy NAME:t_token=…"] = None,
    t_pos: Annotated[
        float | None, "Position temperature, `inf` allowed; short for --policy NAME:t_pos=…"
    ] = None,
    threshold: Annotated[float | None, "Confidence threshold; short for --policy NAME:threshold=…"] = None,
    k: Annotated[
        int | None, typer.Option("--k", "-k", help="Positions per step; short for --policy NAME:k=…")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Samples per prompt.")] = 1,
    length: Annotated[
        str | None,
        "Tokens to generate (default: 32 to 256, depending on the context length); auto: until the text ends.",
    ] = None,
    block: options.Block = None,
    seed: options.Seed = 0,
    chat: options.Chat = None,
    stop: Annotated[list[str] | None, "End the text before this string; may be repeated."] = None,
    infill: Annotated[bool, "Fill the mask tokens inside the prompt instead of continuing it."] = False,
    eos_stop: Annotated[bool, "Stop a row at its first finished EOS."] = False,
    extend: Annotated[
        bool,
        "Add block after block until the text ends; an approximation unless the model was trained this way.",
    ] = False,
    trace: options.Traced = False,
    batch_size: options.BatchSize = None,
    cache: options.Cache = None,
    cuda_graphs: Annotated[
        bool, "With --batch-size: give every forward pass one shape and replay it (CUDA; never run on a GPU)."
    ] = False,
    profile: options.Profile = False,
    as_json: options.Json = False,
) -> None:
    """Draw samples and show how different they are.

    [bold]Examples[/bold]
      twotemp sample --policy tlc --t-pos 1 -n 8 --length 12 "20 10 15 -> 45"
      twotemp sample --model GSAI-ML/LLaDA-8B-Instruct --device cuda --length 256 -n 8 "What is 7 * 8?"
      twotemp sample --policy "lc + tlc:t_pos=0.5" -n 8 --length 12 "20 10 15 -> 45"
      cat prompts.txt | twotemp sample --json - > samples.jsonl
    """
    texts = _prompts(prompts)
    if infill and (length is not None or chat):
        raise UserError("--infill fills the mask tokens of plain text: leave --length and --chat out")
    if cuda_graphs and (not batch_size or cache):
        raise UserError("--cuda-graphs replays passes of one shape: give --batch-size, and leave --cache out")
    shortcuts = {"t_token": t_token, "t_pos": t_pos, "threshold": threshold, "k": k}
    chosen = _policy(policy, {name: value for name, value in shortcuts.items() if value is not None})
    # These need torch; `--help` and the errors above should not wait for its import.
    from twotemp.backends.local import LocalBackend
    from twotemp.engine import EngineOptions, Profiler
    from twotemp.engine.graphs import CudaGraphs
    from twotemp.engine.scheduler import columns_of
    from twotemp.sampling.requests import prompt_ids, prompt_names, prompt_requests

    show_log()
    loaded = loading.load_with(model, cache)
    profiler = Profiler(loaded) if profile else None
    rows = [prompt_ids(loaded, text, False if infill else chat) for text in texts]
    names = prompt_names(rows)
    wanted = prompt_requests(
        loaded,
        rows,
        chosen,
        n,
        0 if infill else _length(length),
        block,
        seed,
        ids=names,
        stop=stop or (),
        eos_stop=eos_stop,
        extend=extend,
        trace=trace,
    )
    shape = EngineOptions(batch_size=batch_size, cache=cache, observer=profiler)
    if cuda_graphs:
        requests = list(wanted)
        shape |= {"columns": max(columns_of(r, loaded) for r in requests), "graphs": CudaGraphs()}
        wanted = iter(requests)
    backend = LocalBackend(loaded, **shape)
    answers = {name: AnswerTable() for name in names}
    with progress("sampling") as bar:
        for done, drawn in enumerate(backend.sample(wanted), start=1):
            if as_json:
                used = cache or ("block" if loaded.block_size else None)
                typer.echo(json_text(drawn.to_dict() | {"cache": used}))
            else:
                answers[drawn.request].add(drawn)
            bar.update(done, len(texts) * n, f"{drawn.nfe} NFE")
    if profiler is not None:
        say(profiler.report())
    if as_json:
        say("samples: on stdout, one JSON object per line; `--trace` adds what `twotemp trace` replays")
        return
    for name, text in zip(names, texts):
        answers[name].show(text)
    say("next: --json prints the samples for programs; twotemp play compares policies in the browser")


def _prompts(arguments: list[str]) -> list[str]:
    if "-" in arguments and len(arguments) > 1:
        raise UserError("`-` reads all prompts from stdin: leave out `-` or the other prompts")
    texts = [line.rstrip("\n") for line in sys.stdin] if arguments == ["-"] else arguments
    if not texts:
        raise UserError("stdin holds no prompt; write one per line")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise UserError(f"prompt {number} is empty; leave it out")
    return texts


def _length(text: str | None) -> int | Literal["auto"] | None:
    """Return --length as a number, or unchanged if it is `auto` or None."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise UserError(f"--length is a number of tokens >= 1 or auto, not {text!r}")
    return int(text)


def _policy(spec: str, shortcuts: dict[str, Any]) -> AnyPolicy:
    """Parse a policy with the parameters of --t-token, --t-pos, --threshold and -k added."""
    if not shortcuts:
        return parse_portfolio(spec)
    if isinstance(parse_portfolio(spec), Portfolio):
        raise UserError(
            f"--policy {spec!r} has several policies: write each policy's parameters after its name"
        )
    name, _, parameters = spec.partition(":")
    spelled = {part.partition("=")[0].strip() for part in parameters.split(",")}
    for key in shortcuts:
        if key in spelled:
            option = "-k" if key == "k" else f"--{key.replace('_', '-')}"
            raise UserError(f"{key} is given twice, by --policy {spec} and by {option}: leave one out")
    parts = [parameters, *(f"{key}={value}" for key, value in shortcuts.items())]
    return parse(f"{name}:{','.join(filter(None, parts))}")


class AnswerTable:
    """The distinct answers to one prompt, their counts and their entropy."""

    def __init__(self) -> None:
        self.texts: Counter[str] = Counter()
        self.nfe = self.forwards = 0

    def add(self, sample: Sample) -> None:
        """Count a sample."""
        self.texts[sample.text] += 1
        self.nfe += sample.nfe
        self.forwards += sample.forwards

    def show(self, prompt: str) -> None:
        """Print the answers, their entropy and their mean cost."""
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
