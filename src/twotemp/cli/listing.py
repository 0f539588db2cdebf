"""`twotemp policies`, `tasks` and `graders`: lists of what is available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer
from rich.table import Table

from twotemp.cli.console import output, say
from twotemp.cli.options import Json
from twotemp.graders import descriptions
from twotemp.policies import PRESETS
from twotemp.serialization import json_text
from twotemp.tasks import TASKS


def policies(as_json: Json = False) -> None:
    """List every policy with its parameters, formula and source.

    [bold]Examples[/bold]
      twotemp policies
      twotemp policies --json
    """
    rows = {
        name: {
            "parameters": {key: getattr(preset.policy, key) for key in preset.settable},
            "formula": preset.formula,
            "source": preset.source,
            "experimental": preset.experimental,
        }
        for name, preset in PRESETS.items()
    }
    if as_json:
        typer.echo(json_text(rows, indent=2))
        return
    for experimental in (False, True):
        if experimental:
            typer.echo("\nexperimental: accepted everywhere, without a demonstrated gain")
        cells = []
        for name, preset in PRESETS.items():
            defaults = [f"{key} = {getattr(preset.policy, key)}" for key in (*preset.parameters, "t_token")]
            if preset.experimental == experimental:
                cells.append([name, "\n".join(defaults), preset.formula, preset.source])
        _show(["policy", "parameters (defaults)", "commits at each step", "source"], cells)
    typer.echo("every policy also takes repel, top_k, top_p and eos = free | last | never")
    say('next: twotemp sample --policy tct:t_pos=0.1,threshold=0.6 -n 8 --length 12 "20 10 15 -> 45"')


def tasks(as_json: Json = False) -> None:
    """List every task: what it asks, its grader, its prompts and subsets.

    [bold]Examples[/bold]
      twotemp tasks
      twotemp tasks --json
    """
    shown = ("description", "grader", "length", "prompts", "subsets")
    rows = {name: {field: getattr(task, field) for field in shown} for name, task in TASKS.items()}
    _print_rows(rows, ["task", "asks", "grader", "tokens", "prompts", "subsets"], as_json)
    say("next: twotemp eval --tasks NAME --out runs/NAME")


def graders(as_json: Json = False) -> None:
    """List every grader and what it accepts.

    [bold]Examples[/bold]
      twotemp graders
      twotemp graders --json
    """
    rows = {name: {"judges": text} for name, text in descriptions().items()}
    _print_rows(rows, ["grader", "judges"], as_json)
    say("next: twotemp regrade RUN --grader NAME")


def _print_rows(rows: Mapping[str, Mapping[str, object]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(rows, indent=2))
    else:
        _show(columns, [[name, *map(_text, row.values())] for name, row in rows.items()])


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for name, *cells in rows:
        table.add_row(f"[bold]{name}[/bold]", *cells)
    output.print(table)
