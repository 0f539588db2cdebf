"""`twotemp policies`, `tasks` and `graders`: what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from twotemp.cli.options import Json
from twotemp.serialization import json_text


def policies(as_json: Json = False) -> None:
    """List every policy with its parameters, formula and source."""
    from twotemp.policies import PRESETS

    rows = {
        name: {
            "parameters": {key: getattr(p.policy, key) for key in p.settable},
            "formula": p.formula,
            "source": p.source,
            "experimental": p.experimental,
        }
        for name, p in PRESETS.items()
    }
    if as_json:
        typer.echo(json_text(rows, indent=2))
        return
    columns = ["policy", "parameters (defaults)", "commits at each step", "source"]
    for experimental in (False, True):
        shown = []
        for name, p in PRESETS.items():
            if p.experimental == experimental:
                defaults = "\n".join(
                    f"{key} = {getattr(p.policy, key)}" for key in (*p.parameters, "t_token")
                )
                shown.append([name, defaults, p.formula, p.source])
        if experimental:
            typer.echo("\nexperimental: accepted everywhere, without a demonstrated gain")
        _show(columns, shown)
    typer.echo("every policy also takes repel, top_k, top_p and eos = free | last | never")


def tasks(as_json: Json = False) -> None:
    """List every task: what it asks, who grades it, its prompts and subsets."""
    from twotemp.tasks import TASKS

    rows = {
        name: {
            "description": task.description,
            "grader": task.grader,
            "length": task.length,
            "prompts": list(task.prompts),
            "subsets": list(task.subsets),
        }
        for name, task in TASKS.items()
    }
    _tell(rows, ["task", "asks", "grader", "tokens", "prompts", "subsets"], as_json)


def graders(as_json: Json = False) -> None:
    """List every grader."""
    from twotemp.graders import descriptions

    _tell({name: {"judges": text} for name, text in descriptions().items()}, ["grader", "judges"], as_json)


def _tell(rows: Mapping[str, Mapping[str, object]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(rows, indent=2))
        return
    _show(columns, [[name, *map(_text, row.values())] for name, row in rows.items()])


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    from twotemp.cli.console import output

    table = Table(show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for name, *cells in rows:
        table.add_row(f"[bold]{name}[/bold]", *cells)
    output.print(table)
