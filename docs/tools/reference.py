"""Pages that are written by the code they describe, as Markdown: commands, policies, tasks, fields.

`docs/conf.py` writes them into docs/generated when the site is built; a test holds that nothing is left out.
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
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@cache
def command_line() -> Any:
    """Return the commands as typer parses them; `tests/test_site.py` checks the commands in the docs against them."""
    group: Any = typer.main.get_command(app)
    group.commands = {name: load_command(name) for name in group.commands}
    return group


def commands() -> str:
    """Every command with its arguments and options, in the groups of `--help`."""
    return "\n\n".join(_command(name, found) for name, found in command_line().commands.items())


def _command(name: str, found: Any) -> str:
    arguments = [p for p in found.params if p.param_type_name == "argument"]
    options = [p for p in found.params if p.param_type_name == "option" and not p.hidden]
    panels: dict[str, list[Any]] = {"": []}
    for option in options:
        panels.setdefault(option.rich_help_panel or "", []).append(option)
    words = [_written(p) for p in arguments] + [f"{o.opts[0]} {_kind(o)}" for o in options if o.required]
    parts = [
        f"## {name}",
        _help(found.help or ""),
        f"```text\ntwotemp {' '.join([name, *words, '[OPTIONS]'])}\n```",
    ]
    if arguments:
        parts.append(table(["argument", ""], ([f"`{_written(p)}`", p.help or ""] for p in arguments)))
    for title, group in panels.items():
        if not group:
            continue
        rows = ([_names(o), o.help or "", _default(o)] for o in group)
        parts.append((f"**{title}**\n\n" if title else "") + table(["option", "", "default"], rows))
    return "\n\n".join(parts)


def _help(text: str) -> str:
    """Help as Markdown: typer's bold heads, and examples, which are indented there."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            lines = lines if lines and lines[-1].startswith("    ") else [*lines, ""]
            lines.append("    " + line.strip())
        elif line or not (lines and lines[-1].startswith("    ")):
            lines.append(line.replace("[bold]", "**").replace("[/bold]", "**"))
    return "\n".join(lines)


def _written(argument: Any) -> str:
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
    """Every policy with its numbers, its formula and its source."""
    rows = []
    for name, preset in PRESETS.items():
        numbers = [f"{key} = {getattr(preset.policy, key)}" for key in (*preset.parameters, "t_token")]
        rows.append([f"`{name}`", ", ".join(numbers), _escaped(preset.formula), _escaped(preset.source)])
    return table(["policy", "numbers", "commits at each step", "source"], rows)


def task_list() -> str:
    rows = (
        [f"`{name}`", task.description, task.grader, str(task.length), ", ".join(task.subsets)]
        for name, task in tasks.TASKS.items()
    )
    return table(["task", "asks", "grader", "tokens", "subsets"], rows)


def grader_list() -> str:
    return table(["grader", "judges"], ([f"`{name}`", text] for name, text in graders.descriptions().items()))


def field_list(record: type) -> str:
    """The fields of a record: a policy's as they describe themselves, the others' as their comments do."""
    return table(["field", "type", "default", ""], (_field(record, one) for one in fields(record)))


def _field(record: type, one: Field[Any]) -> list[str]:
    if record is Policy and one.name in PARAMETERS:
        of = PARAMETERS[one.name]
        kind = ", ".join(f"`{value}`" for value in of.values) or f"{of.kind.__name__} {of.interval}".strip()
        meaning = of.text
    else:
        comment = re.search(rf"^    {one.name}: [^#\n]*#([^#\n]*)", inspect.getsource(record), flags=re.M)
        kind, meaning = f"`{one.type}`", comment[1].strip() if comment else ""
    return [f"`{one.name}`", kind, "" if one.default is MISSING else f"`{one.default!r}`", _escaped(meaning)]


def _escaped(text: str) -> str:
    """Formulas hold stars, underscores and angle brackets that are not meant as Markdown."""
    return "".join("\\" + c if c in "*_<>[]^~" else c for c in text)


RECORDS = (Policy, Sample, Trace, Problem, ProblemSet, Task, Grade)
PAGES = {
    "commands": commands,
    "policies": policies,
    "tasks": task_list,
    "graders": grader_list,
    **{f"fields-{record.__name__}": partial(field_list, record) for record in RECORDS},
}
