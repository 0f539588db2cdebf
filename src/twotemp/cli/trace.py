"""`twotemp trace`: replay samples on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from twotemp.cli.console import say
from twotemp.errors import UserError, counted
from twotemp.folders import disk_errors, write_text
from twotemp.records import Grade, Sample
from twotemp.report.trace_page import FORK_ENTROPY, page
from twotemp.store import Cell, Store

GradedSample = tuple[Sample, Grade | None]
MOST_SAMPLES = 64  # samples of a source on one page, at most


def trace(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Files from `twotemp sample --trace --json`, run folders, or one cell of a run."),
    ],
    out: Annotated[Path, "The HTML page to write."] = Path("trace.html"),
    request: Annotated[str | None, "The id of the question (default: the first)."] = None,
    each: Annotated[int, typer.Option(min=1, help="How many samples of each policy are open at first.")] = 2,
    model: Annotated[
        str | None,
        "The model whose tokenizer decodes the tokens; may be a hub id (default: the run's model, if it is on "
        "this machine; otherwise token ids are shown).",
    ] = None,
    fork_entropy: Annotated[
        float | None, "Mark tokens with at least this entropy, in nats, when committed (default: log 2)."
    ] = None,
) -> None:
    """Write an HTML page that replays samples step by step.

    Every token is colored by the step at which it was committed. The page is one file that loads nothing from the
    network; several sources are shown side by side on one clock.

    [bold]Examples[/bold]
      twotemp sample --policy lc --length 12 --trace --json "20 10 15 -> 45" > lc.jsonl
      twotemp sample --policy tlc --length 12 --trace --json "20 10 15 -> 45" > tlc.jsonl
      twotemp trace lc.jsonl tlc.jsonl --model tiny --each 1
    """
    groups: list[list[GradedSample]] = []
    stored: str | None = None
    for source in sources:
        more, run_model = _read_samples(source)
        groups += more
        stored = stored or run_model
    wanted = request or groups[0][0][0].request
    chosen = [
        pair
        for group in groups
        for pair in [pair for pair in group if pair[0].request == wanted][:MOST_SAMPLES]
    ]
    if not chosen:
        known = dict.fromkeys(s.request for group in groups for s, _ in group)
        raise UserError(
            f"no sample of request {wanted!r}; choose --request from {', '.join(list(known)[:8])}"
        )
    html = page(
        [sample for sample, _ in chosen],
        tokenizer_of(model, stored),
        title=f"{wanted}: {', '.join(dict.fromkeys(s.policy.name for s, _ in chosen))}",
        fork_entropy=FORK_ENTROPY if fork_entropy is None else fork_entropy,
        each=each,
        grades=[grade for _, grade in chosen],
    )
    write_text(out, html)
    say(f"page: {out} ({counted(len(chosen), 'sample')}); next: open it in a browser")


def tokenizer_of(named: str | None, stored: str | None) -> Any | None:
    """Return the tokenizer of the model that --model names, else of the one that the run names, if it is local.

    Only a hub id that the user names is fetched from the hub, and only its small files: a run's folder may come from
    elsewhere.
    """
    if not (named or stored):
        return None
    # These need torch and transformers, which pages without a tokenizer should not wait for.
    from twotemp.models.checkpoint import read_tokenizer
    from twotemp.models.load import locate

    try:
        return read_tokenizer(locate(named or stored or "", weights=False, local_files_only=named is None))
    except UserError as error:
        if named:
            raise
        say(f"the page shows token ids ({error}); --model names a tokenizer")
        return None


def _read_samples(source: Path) -> tuple[list[list[GradedSample]], str | None]:
    """Return the samples of a JSONL file, or of each cell of a run with their grades, and the run's model."""
    if not source.exists():
        raise UserError(
            f"{source} does not exist; give a file from `twotemp sample --trace --json`, or a run's folder"
        )
    if source.is_file():
        return [[(sample, None) for sample in _read_lines(source)]], None
    if (source / "cell.json").exists():
        cells = [Store.open(source.parent)[source.name]]
    else:
        cells = Store.open(source).cells()
    groups = [group for cell in cells if (group := _graded(cell))]
    if not groups:
        raise UserError(
            f"{source} holds no samples yet; draw some with `twotemp eval --trace --out {source}`"
        )
    return groups, cells[0].config.model


def _graded(cell: Cell) -> list[GradedSample]:
    """Return a cell's samples, sorted by question, with the grades of its grader (the first by name)."""
    grades = cell.grades(cell.graders()[0]) if cell.graders() else {}
    return [(s, grades.get(s.key)) for s in sorted(cell.samples(), key=lambda s: (s.request, s.index))]


def _read_lines(path: Path) -> list[Sample]:
    """Return the samples in a file of `twotemp sample --json`."""
    samples = []
    with disk_errors(path, "read"):
        data = path.read_bytes()
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row.pop("cache", None)  # the command adds it to the sample
            samples.append(Sample.from_dict(row))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number} is not a sample ({error}); write the file with `twotemp sample --json`"
            ) from None
    if not samples:
        raise UserError(f"{path} is empty; write it with `twotemp sample --json`")
    return samples
