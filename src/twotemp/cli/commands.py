"""The table of subcommands, and the group that imports a command's module only when that command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from twotemp.cli.command import Command, command
from twotemp.errors import UserError

RICH: Literal["rich"] = "rich"  # the markup of all help texts
FORWARDING = {"allow_extra_args": True, "ignore_unknown_options": True}


class CommandEntry(NamedTuple):
    """Where a command is defined, and its line in `twotemp --help`."""

    target: str  # module:function, below twotemp.cli
    summary: str  # the first line of the function's docstring, as a test checks
    resumable: bool = False  # the same command continues with what --out holds
    extra: str | None = None  # what `pip install 'twotemp[EXTRA]'` adds for it
    forwarding: bool = (
        False  # another program's command line, which parses all options itself, including --help
    )


COMMANDS = {
    "sample": CommandEntry("sample:sample", "Draw samples and show how different they are."),
    "policies": CommandEntry(
        "listing:policies", "List every policy with its parameters, formula and source."
    ),
    "tasks": CommandEntry(
        "listing:tasks", "List every task: what it asks, its grader, its prompts and subsets."
    ),
    "graders": CommandEntry("listing:graders", "List every grader and what it accepts."),
    "eval": CommandEntry(
        "evaluate:evaluate",
        "Draw n samples per question with each policy, grade them, and store both.",
        resumable=True,
    ),
    "run": CommandEntry("evaluate:run", "Run an experiment file: evaluate, then report.", resumable=True),
    "regrade": CommandEntry("grade:regrade", "Grade the stored samples of a run again, without drawing any."),
    "grade": CommandEntry("grade:grade", "Grade a file of generated texts and print the accuracy."),
    "tune": CommandEntry(
        "tune:tune",
        "Race policies and their parameters on validation problems, and recommend the best.",
        resumable=True,
    ),
    "report": CommandEntry("report:report", "Write tables (Markdown, CSV, LaTeX) and the paper's figures."),
    "export": CommandEntry(
        "report:export", "Write all samples of a run with their grades to one Parquet file."
    ),
    "select": CommandEntry(
        "select:select", "Choose one answer from k samples and report Best@k and Best@NFE."
    ),
    "import": CommandEntry(
        "imports:import_results", "Import samples drawn inside another harness into a run."
    ),
    "demo": CommandEntry("demo:demo", "Compare five policies on three embedded tasks.", resumable=True),
    "grpo": CommandEntry(
        "grpo:grpo",
        "Train a model with GRPO, evaluate it greedily before and after, and save it.",
        resumable=True,
        extra="train",
    ),
    "forks": CommandEntry(
        "forks:forks",
        "Find fork tokens and measure what low-confidence remasking does to them.",
        resumable=True,
    ),
    "trace": CommandEntry("trace:trace", "Write an HTML page that replays samples step by step."),
    "drift": CommandEntry("drift:drift", "Measure what a cache or quantized weights change."),
    "doctor": CommandEntry(
        "doctor:doctor", "Check torch, device, sandbox and extras, and name the fix for a problem."
    ),
    "serve": CommandEntry("serve:serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "play": CommandEntry(
        "serve:play", "Compare two policies in the browser: the canvas, the order, the answers."
    ),
    "lm-eval": CommandEntry(
        "lm_eval:lm_eval", "Run lm-evaluation-harness with `--model twotemp` registered.", forwarding=True
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


def load_command(name: str) -> Any:
    """Return the command with its options and full help, importing its module."""
    entry = COMMANDS[name]
    module, _, attribute = entry.target.partition(":")
    try:
        function = getattr(import_module(f"twotemp.cli.{module}"), attribute)
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
        app.command(name, cls=Command)(command(function, resumable=entry.resumable))
    return typer.main.get_command(app)
