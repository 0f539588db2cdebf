"""Generate the reference pages from the code, as Markdown: commands, policies, tasks, graders, fields.

`docs/conf.py` writes them into docs/generated when the site is built; a test checks that they are complete.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from functools import cache, partial
from typing import Any

import typer

from twotemp import graders, tasks
from twotemp.cli import app
from twotemp.cli.commands import load_command
from twotemp.policies import PRESETS
from twotemp.records import PARAMETERS, Grade, Policy, Problem, Sample, Trace
from twotemp.tasks import ProblemSet, Task


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@cache
def command_line() -> Any:
    """Return the command line as typer parses it; `tests/report/test_site.py` parses the docs' commands with it."""
    group: Any = typer.main.get_command(app)
    group.commands = {name: load_command(name) for name in group.commands}
    return group


def commands() -> str:
    """Return the page of all commands with their arguments and options, in the groups of `--help`."""
    return "\n\n".join(_command(name, command) for name, command in command_line().commands.items())


def _command(name: str, command: Any) -> str:
    """Return the section of one command."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    panels: dict[str, list[Any]] = {"": []}
    for option in options:
        panels.setdefault(option.rich_help_panel or "", []).append(option)
    words = [_usage(p) for p in arguments] + [f"{o.opts[0]} {_kind(o)}" for o in options if o.required]
    parts = [
        f"## {name}",
        _help(command.help or ""),
        f"```text\ntwotemp {' '.join([name, *words, '[OPTIONS]'])}\n```",
    ]
    if arguments:
        parts.append(table(["argument", ""], ([f"`{_usage(p)}`", p.help or ""] for p in arguments)))
    for title, group in panels.items():
        if not group:
            continue
        rows = ([_names(o), o.help or "", _default(o)] for o in group)
        parts.append((f"**{title}**\n\n" if title else "") + table(["option", "", "default"], rows))
    return "\n\n".join(parts)


def _help(text: str) -> str:
    """Return a help text as Markdown, with typer's bold headings and indented examples converted."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            lines = lines if lines and lines[-1].startswith("    ") else [*lines, ""]
            lines.append("    " + line.strip())
        elif line or not (lines and lines[-1].startswith("    ")):
            lines.append(line.replace("[bold]", "**").replace("[/bold]", "**"))
    return "\n".join(lines)


def _usage(argument: Any) -> str:
    """Return an argument as the usage line shows it."""
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


def _names(option: Any) -> str:
    names = " ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"{names} {_kind(option)}".strip()


def _kind(option: Any) -> str:
    return "" if option.is_flag else option.name.upper()


def _default(option: Any) -> str:
    if option.required:
        return "required"
    unset = option.default in (None, False, (), []) or callable(option.default)
    values = option.default if isinstance(option.default, (list, tuple)) else [option.default]
    return "" if unset else " ".join(f"`{value}`" for value in values)


def policies() -> str:
    """Return the table of all policies with their parameters, formulas and sources."""
    rows = []
    for name, preset in PRESETS.items():
        values = [f"{key} = {getattr(preset.policy, key)}" for key in (*preset.parameters, "t_token")]
        rows.append([f"`{name}`", ", ".join(values), _escaped(preset.formula), _escaped(preset.source)])
    return table(["policy", "parameters", "commits at each step", "source"], rows)


def task_list() -> str:
    """Return the table of all tasks."""
    rows = (
        [f"`{name}`", task.description, task.grader, str(task.length), ", ".join(task.subsets)]
        for name, task in tasks.TASKS.items()
    )
    return table(["task", "asks", "grader", "tokens", "subsets"], rows)


def grader_list() -> str:
    """Return the table of all graders."""
    return table(["grader", "grades"], ([f"`{name}`", text] for name, text in graders.descriptions().items()))


def field_list(record: type) -> str:
    """Return the table of a record's fields, described by PARAMETERS for a policy and by comments otherwise."""
    return table(["field", "type", "default", ""], (_field(record, field) for field in fields(record)))


def _field(record: type, field: Field[Any]) -> list[str]:
    """Return the row of one field."""
    if record is Policy and field.name in PARAMETERS:
        parameter = PARAMETERS[field.name]
        values = ", ".join(f"`{value}`" for value in parameter.values)
        kind = values or f"{parameter.kind.__name__} {parameter.interval}".strip()
        meaning = parameter.text
    else:
        comment = re.search(rf"^    {field.name}: [^#\n]*#([^#\n]*)", inspect.getsource(record), flags=re.M)
        kind, meaning = f"`{field.type}`", comment[1].strip() if comment else ""
    default = "" if field.default is MISSING else f"`{field.default!r}`"
    return [f"`{field.name}`", kind, default, _escaped(meaning)]


def _escaped(text: str) -> str:
    """Escape the characters of a formula that Markdown would interpret."""
    return "".join("\\" + c if c in "*_<>[]^~" else c for c in text)


RECORDS = (Policy, Sample, Trace, Problem, ProblemSet, Task, Grade)
PAGES = {
    "commands": commands,
    "policies": policies,
    "tasks": task_list,
    "graders": grader_list,
    **{f"fields-{record.__name__}": partial(field_list, record) for record in RECORDS},
}
