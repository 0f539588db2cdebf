"""Turn a function into a subcommand: expand option groups, load plug-ins, answer Ctrl-C in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from twotemp.plugins import load_plugins

Plugin = Annotated[
    list[str] | None,
    typer.Option(help="A Python file or module that adds tasks, graders or policies; may be repeated."),
]
STOPPED = 130  # the exit code that shells use for a program ended by Ctrl-C


class Command(TyperCommand):
    """A subcommand that answers a missing argument with an example from its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            example = re.search(r"^ +(twotemp .*)$", self.help or "", flags=re.MULTILINE)
            if not error.message and example:  # a message is empty only where a parameter is missing
                error.message = f"Example: {example[1]}"
            raise


def command(function: Callable[..., None], *, resumable: bool = False) -> Callable[..., None]:
    """Return the function with the signature that typer should see.

    A parameter whose type is a dataclass is a group of options: its fields become options of the command, and the
    function receives an instance. Options that several commands share are thus defined once, with their behavior.

    Args:
        function: the body of the command; its docstring is the help text.
        resumable: the same command continues with what --out holds, which Ctrl-C then says.
    """
    groups: dict[str, type] = {}
    parameters: list[Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in signature(function).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind))
    parameters.append(Parameter("plugin", Parameter.KEYWORD_ONLY, default=None, annotation=Plugin))

    @wraps(function)
    def run(plugin: list[str] | None, **values: Any) -> None:
        try:
            load_plugins(plugin or ())
            options = {
                name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
                for name, kind in groups.items()
            }
            function(**values, **options)
        except KeyboardInterrupt:
            out = values.get("out") if resumable else None
            kept = f"; finished work is kept in {out}, and the same command continues" if out else ""
            typer.secho(f"stopped{kept}", fg="yellow", err=True)
            raise typer.Exit(STOPPED) from None

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: type) -> list[Parameter]:
    """Return a group's fields as options, in a help panel titled with the first line of the group's docstring."""
    title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
    parameters = []
    for field in fields(group):
        kind = get_type_hints(group, include_extras=True)[field.name]
        option = copy(kind.__metadata__[0])
        if isinstance(option, str):  # settings defined outside cli, which only carry their help text
            flag = [f"--{field.name.replace('_', '-')}"] if kind.__origin__ is bool else []
            option = typer.Option(*flag, help=option)
        option.rich_help_panel = title
        parameters.append(
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=Annotated[kind.__origin__, option],
            )
        )
    return parameters
