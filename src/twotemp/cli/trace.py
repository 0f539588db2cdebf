"""`twotemp trace`: samples replayed on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.records import Sample


def trace(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Files from `twotemp sample --trace --json`, run folders, or one cell of a run."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("trace.html"),
    request: Annotated[str | None, typer.Option(help="Which question (default: the first).")] = None,
    each: Annotated[int, typer.Option(min=1, help="Samples shown of each file or cell.")] = 2,
    model: Annotated[
        str | None, typer.Option(help="Whose tokenizer writes the tokens (default: the run's; else ids).")
    ] = None,
    fork_entropy: Annotated[
        float | None, typer.Option(help="Nats at commit from which on a token is marked (default: log 2).")
    ] = None,
) -> None:
    """Write a page that replays samples: every token coloured by the step at which it was committed.

    The page is one file and asks the network for nothing. Several sources stand side by side on one clock.

    [bold]Examples[/bold]

      twotemp sample --policy lc --trace --json "3 7 12 -> 33" > lc.jsonl

      twotemp sample --policy tlc --trace --json "3 7 12 -> 33" > tlc.jsonl

      twotemp trace lc.jsonl tlc.jsonl --model tiny --each 1
    """
    from twotemp.cli.console import say
    from twotemp.report.trace_page import FORK_ENTROPY, page

    groups: list[list[Sample]] = []
    for source in sources:
        found, its_model = _read_samples(source)
        groups += found
        model = model or its_model
    wanted = request or groups[0][0].request
    chosen = [s for group in groups for s in [s for s in group if s.request == wanted][:each]]
    if not chosen:
        known = dict.fromkeys(s.request for group in groups for s in group)
        raise UserError(f"no sample of request {wanted!r}; there are {', '.join(list(known)[:8])}")
    html = page(
        chosen,
        _tokenizer(model) if model else None,
        title=f"{wanted}: {', '.join(dict.fromkeys(s.policy.name for s in chosen))}",
        fork_entropy=FORK_ENTROPY if fork_entropy is None else fork_entropy,
    )
    try:
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another --out") from None
    say(f"page: {out} ({len(chosen)} samples); open it in a browser")


def _tokenizer(model: str) -> Any:
    from twotemp.models.checkpoint import read_tokenizer
    from twotemp.models.load import locate

    return read_tokenizer(locate(model))


def _read_samples(source: Path) -> tuple[list[list[Sample]], str | None]:
    """The samples of a JSONL file, or of each cell of a run, by question; and the run's model."""
    from twotemp.store import Store

    if not source.exists():
        raise UserError(
            f"{source} does not exist; give a file from `twotemp sample --trace --json`, or a run"
        )
    if source.is_file():
        return [_read_lines(source)], None
    if (source / "cell.json").exists():
        cells = [Store.open(source.parent)[source.name]]
    else:
        cells = Store.open(source).cells()
    groups = [sorted(cell.samples(), key=lambda s: (s.request, s.index)) for cell in cells]
    groups = [group for group in groups if group]
    if not groups:
        raise UserError(f"{source} holds no samples yet")
    return groups, cells[0].config.model


def _read_lines(path: Path) -> list[Sample]:
    from twotemp.records import Sample

    samples = []
    # Not splitlines: it also breaks at characters that may stand inside a JSON string.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row.pop("cache", None)  # of the command, not of the sample
            samples.append(Sample.from_dict(row))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number} is not a sample ({error}); write the file with `twotemp sample --json`"
            ) from None
    if not samples:
        raise UserError(f"{path} is empty")
    return samples
