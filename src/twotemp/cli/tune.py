"""`twotemp tune`: which policy, and which numbers, for this model, task, goal and budget."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.evaluate import split_specs
from twotemp.cli.options import (
    Cache,
    DecodingOptions,
    Json,
    LoadingOptions,
    Model,
    Out,
    Questions,
    TaskOptions,
)
from twotemp.cli.workers import DrawingOptions, Job
from twotemp.plain import json_text

if TYPE_CHECKING:
    from twotemp.evaluation import Progress
    from twotemp.tuning import Tuned

# What the race was asked, in place of which `eval` has its own; then() adds the plug-ins.
OF_THE_RACE = {
    "at",
    "policies",
    "budget",
    "questions",
    "subset",
    "data",
    "altered",
    "out",
    "as_json",
    "plugin",
}


def tune(
    context: typer.Context,
    out: Out,
    asked: TaskOptions,
    loading: LoadingOptions,
    decoding: DecodingOptions,
    working: DrawingOptions,
    model: Model = "tiny",
    at: Annotated[
        str,
        typer.Option(help="What to be best at: pass@16, or pass@NFE=200 (what 200 NFE per question buy)."),
    ] = "pass@16",
    policies: Annotated[
        list[str],
        typer.Option(
            help="The candidates. A name is tried over T_token, T_pos, lambda and K; numbers that are named are "
            "tried only as given: tct:t_pos=0.1,threshold=0.6|0.8."
        ),
    ] = ["ar,tlc,tct,tpp,fork"],  # noqa: B006
    budget: Annotated[float, typer.Option(min=1, help="NFE to spend in all, about.")] = 1_000_000,
    questions: Questions = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Race policies and their numbers on validation problems, and say which to use.

    All start on a few problems. One that is beaten by another that costs no more leaves; the better half sees more.

    --out keeps all samples, tuned.yaml, frontier.md and frontier.png. Stopped and started again, it continues.

    [bold]Examples[/bold]

      twotemp tune --task countdown-3 --at pass@16 --policies tlc,tct,fork --budget 300000 --out runs/tune

      twotemp eval --task countdown-3 --policies ar,@runs/tune/tuned.yaml -n 16 --out runs/tuned
    """
    from twotemp import tasks
    from twotemp.cli.console import progress, say, show_log, then
    from twotemp.folders import write_text
    from twotemp.report import NO_FIGURES
    from twotemp.report.figures import available
    from twotemp.report.frontier import draw_frontier
    from twotemp.report.tuning import as_json as standings_json
    from twotemp.report.tuning import markdown, recommendation, tuned_yaml
    from twotemp.tuning import Goal, expand
    from twotemp.tuning import tune as run
    from twotemp.tuning.tuner import validation

    show_log(logging.WARNING)  # every round would say the batch size again
    goal, candidates = Goal.parse(at), expand(split_specs(",".join(policies)))
    plan = asked.plan(decoding, candidates, questions=questions, cache=cache, compile=loading.compile)
    plan = validation(plan)  # a mistake in it is said before a model is loaded
    say(f"{len(candidates)} candidates for {goal}, {budget:,.0f} NFE")
    # A sample takes at most an NFE per token.
    samples = int(budget / (decoding.length or tasks.get(plan.tasks[0].name).length))
    with (
        working.drawer(Job(model, loading, samples, decoding.batch_size, cache)) as (drawer, _),
        progress(drawer.name) as bar,
    ):

        def watch(alive: int, seen: int, state: Progress) -> None:
            bar.update(state.samples, state.all_samples, f"{alive} candidates on {seen} questions")

        tuned = run(plan, goal, drawer, out, budget=budget, watch=watch)
    write_text(out / "tuned.yaml", tuned_yaml(tuned))
    write_text(out / "frontier.md", f"{recommendation(tuned)}\n\n{markdown(tuned)}")
    if as_json:
        for row in standings_json(tuned.standings):
            typer.echo(json_text(row))
    else:
        _show(tuned)
    say(recommendation(tuned))
    if available():
        draw_frontier(tuned.standings, str(goal), f"{tuned.model}, {tuned.task.name}", out / "frontier")
    else:
        say(NO_FIGURES)
    words = [*_settings(context), "--policies", f"@{out / 'tuned.yaml'}"]
    if tuned.task.data is not None:  # these were to tune on; where those for a test are, only the user knows
        words += ["--data", "TEST_FILE"]
    say(
        f"{tuned.spent:,.0f} NFE spent; on test problems{'' if tuned.held_out else ', these among them'}: "
        f"{then(f'eval {shlex.join(words)} --out', Path('RUN'))}; the frontier: {out / 'frontier.md'}"
    )


def _settings(context: typer.Context) -> list[str]:
    """The options that were typed, but those of the race: the numbers are good for these."""
    words: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in OF_THE_RACE or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[option.name]
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, bool):
                words += option.opts[:1] if one else option.secondary_opts[:1]
            else:
                words += [option.opts[0], str(one)]
    return words


def _show(tuned: Tuned) -> None:
    """The finalists, and how many left on the way."""
    from rich.table import Table

    from twotemp.cli.console import output
    from twotemp.report.tuning import COLUMNS, table_row

    shown = Table()
    for column in COLUMNS:
        heading = column.format(goal=tuned.goal)
        shown.add_column(heading, justify="left" if column == "policy" else "right", overflow="fold")
    finalists = [one for one in tuned.standings if one.finalist]
    for standing in finalists:
        shown.add_row(*table_row(standing))
    output.print(shown)
    left = len(tuned.standings) - len(finalists)
    output.print(f"{left} candidates left the race in {len(tuned.rounds)} rounds", highlight=False)
