"""`twotemp trace`: samples replayed on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.records import Grade, Sample
    from twotemp.store import Cell

    Graded = tuple[Sample, Grade | None]

MOST = 64  # samples of a source on one page


def trace(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Files from `twotemp sample --trace --json`, run folders, or one cell of a run."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("trace.html"),
    request: Annotated[str | None, typer.Option(help="Which question (default: the first).")] = None,
    each: Annotated[int, typer.Option(min=1, help="Samples of each policy that are open at first.")] = 2,
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

      twotemp sample --policy lc --length 12 --trace --json "20 10 15 -> 45" > lc.jsonl

      twotemp sample --policy tlc --length 12 --trace --json "20 10 15 -> 45" > tlc.jsonl

      twotemp trace lc.jsonl tlc.jsonl --model tiny --each 1
    """
    from twotemp.cli.console import say
    from twotemp.folders import write_text
    from twotemp.report.trace_page import FORK_ENTROPY, page

    groups: list[list[Graded]] = []
    for source in sources:
        found, its_model = _read_samples(source)
        groups += found
        model = model or its_model
    wanted = request or groups[0][0][0].request
    chosen = [one for group in groups for one in [g for g in group if g[0].request == wanted][:MOST]]
    if not chosen:
        known = dict.fromkeys(s.request for group in groups for s, _ in group)
        raise UserError(f"no sample of request {wanted!r}; there are {', '.join(list(known)[:8])}")
    html = page(
        [sample for sample, _ in chosen],
        _tokenizer(model) if model else None,
        title=f"{wanted}: {', '.join(dict.fromkeys(s.policy.name for s, _ in chosen))}",
        fork_entropy=FORK_ENTROPY if fork_entropy is None else fork_entropy,
        each=each,
        grades=[grade for _, grade in chosen],
    )
    write_text(out, html)
    say(f"page: {out} ({len(chosen)} samples); open it in a browser")


def _tokenizer(model: str) -> Any:
    from twotemp.models.checkpoint import read_tokenizer
    from twotemp.models.load import locate

    return read_tokenizer(locate(model))


def _read_samples(source: Path) -> tuple[list[list[Graded]], str | None]:
    """The samples of a JSONL file, or of each cell of a run with their grades, by question; and the run's model."""
    from twotemp.store import Store

    if not source.exists():
        raise UserError(
            f"{source} does not exist; give a file from `twotemp sample --trace --json`, or a run"
        )
    if source.is_file():
        return [[(sample, None) for sample in _read_lines(source)]], None
    if (source / "cell.json").exists():
        cells = [Store.open(source.parent)[source.name]]
    else:
        cells = Store.open(source).cells()
    groups = [group for cell in cells if (group := _graded(cell))]
    if not groups:
        raise UserError(f"{source} holds no samples yet")
    return groups, cells[0].config.model


def _graded(cell: Cell) -> list[Graded]:
    """A cell's samples by question; judged by its grader (of several, the first by name)."""
    grades = cell.grades(cell.graders()[0]) if cell.graders() else {}
    return [(s, grades.get(s.key)) for s in sorted(cell.samples(), key=lambda s: (s.request, s.index))]


def _read_lines(path: Path) -> list[Sample]:
    from twotemp.folders import disk_errors
    from twotemp.records import Sample

    samples = []
    with disk_errors(path, "read"):
        data = path.read_bytes()
    for number, line in enumerate(data.split(b"\n"), start=1):
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
