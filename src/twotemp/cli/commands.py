"""The program `twotemp`: the table of its subcommands, each of which is imported only when it is used."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, Any, Literal, NamedTuple, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from twotemp import __version__
from twotemp.errors import UserError
from twotemp.plugins import load_plugins

PLUGIN = Annotated[
    list[str] | None,
    "A Python file or module that adds tasks, graders, policies or rewards; may be repeated.",
]
RICH: Literal["rich"] = "rich"  # the markup of all help texts
STOPPED = 130  # the exit code that shells use for a program ended by Ctrl-C
FORWARDING = {"allow_extra_args": True, "ignore_unknown_options": True}


class CommandEntry(NamedTuple):
    """Where a command is defined, and its line in `twotemp --help`."""

    module: str  # below twotemp.cli
    summary: str  # the first line of the function's docstring, as a test checks
    function: str | None = None  # default: the name of the command
    resumable: bool = False  # the same command continues with what --out holds
    extra: str | None = None  # what `pip install 'twotemp[EXTRA]'` adds for it
    forwarding: bool = False  # to another program, which parses all options itself, including --help


COMMANDS = {
    "sample": CommandEntry("sample", "Draw samples and show how different they are."),
    "policies": CommandEntry("listing", "List every policy with its parameters, formula and source."),
    "tasks": CommandEntry("listing", "List every task: what it asks, its grader, its prompts and subsets."),
    "graders": CommandEntry("listing", "List every grader and what it accepts."),
    "eval": CommandEntry(
        "evaluate",
        "Draw n samples per question with each policy, grade them, and store both.",
        function="evaluate",
        resumable=True,
    ),
    "run": CommandEntry("evaluate", "Run an experiment file: evaluate, then report.", resumable=True),
    "regrade": CommandEntry("grade", "Grade the stored samples of a run again, without drawing any."),
    "grade": CommandEntry("grade", "Grade a file of generated texts and print the accuracy."),
    "tune": CommandEntry(
        "tune",
        "Race policies and their parameters on validation problems, and recommend the best.",
        resumable=True,
    ),
    "report": CommandEntry("report", "Write tables (Markdown, CSV, LaTeX) and the paper's figures."),
    "view": CommandEntry("report", "Look at a run in the browser: curves, questions, answers, samples."),
    "export": CommandEntry("report", "Write all samples of a run with their grades to one Parquet file."),
    "select": CommandEntry("report", "Choose one answer from k samples and report Best@k and Best@NFE."),
    "import": CommandEntry(
        "harnesses", "Import samples drawn inside another harness into a run.", function="import_results"
    ),
    "demo": CommandEntry("evaluate", "Compare five policies on three embedded tasks.", resumable=True),
    "grpo": CommandEntry(
        "grpo",
        "Train a model with GRPO, evaluate it greedily before and after, and save it.",
        resumable=True,
        extra="train",
    ),
    "forks": CommandEntry(
        "forks", "Find fork tokens and measure what low-confidence remasking does to them.", resumable=True
    ),
    "trace": CommandEntry("trace", "Write an HTML page that replays samples step by step."),
    "drift": CommandEntry("drift", "Measure what a cache or quantized weights change."),
    "doctor": CommandEntry(
        "doctor", "Check torch, device, sandbox and extras, and name the fix for a problem."
    ),
    "serve": CommandEntry("serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "play": CommandEntry("serve", "Compare two policies in the browser: the canvas, the order, the answers."),
    "lm-eval": CommandEntry(
        "harnesses",
        "Run lm-evaluation-harness with `--model twotemp` registered.",
        "lm_eval",
        forwarding=True,
    ),
}


class LazyGroup(TyperGroup):
    """The group of all commands: `--help` lists them from the table, running one imports its module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.summary, rich_markup_mode=RICH))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest


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


def load_command(name: str) -> Any:
    """Return the command with its options and full help, importing its module."""
    entry = COMMANDS[name]
    try:
        function = getattr(import_module(f"twotemp.cli.{entry.module}"), entry.function or name)
    except ModuleNotFoundError as error:
        if entry.extra is None:
            raise
        raise UserError(
            f"`twotemp {name}` needs {error.name}; pip install 'twotemp[{entry.extra}]'"
        ) from None
    app = typer.Typer(add_completion=False, rich_markup_mode=RICH)
    if entry.forwarding:
        app.command(name, context_settings=FORWARDING, add_help_option=False)(function)
    else:
        # A paragraph of the docstring becomes one line, which the terminal wraps; an indented line is an example.
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", cleandoc(function.__doc__))
        text = re.sub(r"\n(?=  \S)", "\n\n", text)
        app.command(name, cls=Command, help=text)(_runnable(function, entry.resumable))
    return typer.main.get_command(app)


def _runnable(function: Callable[..., None], resumable: bool) -> Callable[..., None]:
    """Return a command's function with the signature that typer should see, and an answer to Ctrl-C.

    A parameter whose type is a dataclass is a group of options: its fields become options of the command, and the
    function receives an instance. Options that several commands share are thus defined once, with their behavior.
    """
    groups: dict[str, type] = {}
    parameters: list[Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in signature(function).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            title = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
            kinds = get_type_hints(kind, include_extras=True)
            parameters += [_option(f.name, kinds[f.name], f.default, panel=title) for f in fields(kind)]
        else:
            parameters.append(_option(name, kind, parameter.default))
    parameters.append(_option("plugin", PLUGIN, None))

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


def _option(name: str, kind: Any, default: Any, panel: str | None = None) -> Parameter:
    """Return a parameter of a command as typer reads it.

    Args:
        name: The parameter's name.
        kind: Its type. An annotation that is a text is the help of an ordinary option; a boolean one is a flag
            without a `--no-` form.
        default: What it is unless it is given.
        panel: The title of its panel in `--help`.
    """
    if get_origin(kind) is Annotated:
        option = copy(kind.__metadata__[0])
        if isinstance(option, str):
            flags = [f"--{name.replace('_', '-')}"] if kind.__origin__ is bool else []
            option = typer.Option(*flags, help=option)
        option.rich_help_panel = panel
        kind = Annotated[kind.__origin__, option]
    default = Parameter.empty if default is MISSING else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


app = typer.Typer(
    name="twotemp",
    cls=LazyGroup,
    help="Simple, efficient and diverse sampling from masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=RICH,
    pretty_exceptions_enable=False,
)
# What these loggers say while torchao is imported (extensions for other GPUs, deprecations) concerns its developers.
_NOISY_LOGGERS = ("torchao", "torch.utils._pytree")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; an error that the user can fix is printed as one message, without a traceback."""
    # Before torch is imported: its threads, when they wait, spin for some microseconds only, then sleep. Beside
    # another busy program torch's own choice makes the embedded model several times slower (docs/log.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        app()
    except UserError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
