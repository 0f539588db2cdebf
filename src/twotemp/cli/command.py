"""How a function becomes a subcommand: option groups are expanded, plug-ins loaded, Ctrl-C answered in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

Plugin = Annotated[
    list[str] | None,
    typer.Option(help="A Python file or module that adds tasks, graders or policies; may be repeated."),
]
STOPPED = 130  # what a shell says of a program ended by Ctrl-C


def command(function: Callable[..., None], *, continued: bool = False) -> Callable[..., None]:
    """The function as typer should see it. continued: started again it goes on with what is in --out.

    A parameter whose type is a dataclass is a group of options: its fields become options of the command, and the
    function is given an instance. So options that several commands share are defined once, with what they do.
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
    def run(plugin: list[str] | None, **given: Any) -> None:
        try:
            from twotemp.plugins import load_plugins

            load_plugins(plugin or ())
            built = {
                name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
                for name, kind in groups.items()
            }
            function(**given, **built)
        except KeyboardInterrupt:
            out = given.get("out") if continued else None
            kept = f"; what was finished is kept in {out}, and the same command continues" if out else ""
            typer.secho(f"stopped{kept}", fg="yellow", err=True)
            raise typer.Exit(STOPPED) from None

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: type) -> list[Parameter]:
    """The fields of a group as options, in a panel of the help with the group's first line as its title."""
    title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
    parameters = []
    for field in fields(group):
        kind = get_type_hints(group, include_extras=True)[field.name]
        said = kind.__metadata__[0]
        if isinstance(said, str):  # settings of a room that knows nothing of the command line
            flag = [f"--{field.name.replace('_', '-')}"] if kind.__origin__ is bool else []
            said = typer.Option(*flag, help=said)
        option = copy(said)
        option.rich_help_panel = title
        default = Parameter.empty if field.default is MISSING else field.default
        parameters.append(
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind.__origin__, option],
            )
        )
    return parameters
