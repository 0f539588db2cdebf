"""`twotemp tune`: find the policy and its parameters for a model, task, goal and budget."""

from __future__ import annotations

import logging
import shlex
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from twotemp import graders, tasks
from twotemp.cli import options
from twotemp.cli.console import next_command, output, progress, say, show_log
from twotemp.cli.workers import DrawingOptions, Workload
from twotemp.errors import UserError
from twotemp.evaluation import Plan, Progress
from twotemp.folders import write_json, write_text
from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.report import NO_FIGURES, figures, tuning_diversity
from twotemp.report import tuning as report
from twotemp.serialization import json_text
from twotemp.tuning import Goal, Tuned, TunedPortfolio, Tuner, expand
from twotemp.tuning.diversity import DiversityGoal, TunedDiversity, starting_policy, tune_diversity
from twotemp.tuning.tuner import validation

# Options of the race itself. All others describe the setting that was tuned, and the recommended `twotemp eval`
# repeats them (`next_command` adds the plug-ins).
RACE_OPTIONS = {
    *"at margin policies budget portfolio gradient questions subset data altered out as_json plugin".split()
}


def tune(
    context: typer.Context,
    out: options.Out,
    task: options.TaskOptions,
    loading: options.LoadingOptions,
    decoding: options.DecodingOptions,
    working: DrawingOptions,
    at: Annotated[
        str,
        "The goal: pass@16, pass@NFE=200 (pass@k for 200 NFE per question), or diversity@8 (no verdicts).",
    ] = "pass@16",
    model: options.Model = "tiny",
    policies: Annotated[
        list[str],
        "The candidates. A name is tried over T_token, T_pos, lambda and K; parameters that are given are "
        "tried only at those values: tct:t_pos=0.1,threshold=0.6|0.8.",
    ] = ["ar,tlc,tct,tpp,fork"],  # noqa: B006
    budget: Annotated[float, typer.Option(min=1, help="NFE to spend in total, approximately.")] = 1_000_000,
    portfolio: Annotated[
        bool,
        "Choose how many samples each candidate draws, instead of one candidate for all samples.",
    ] = False,
    gradient: Annotated[
        bool,
        "Follow the gradient of pass@k in T_token, T_pos and lambda from one policy, instead of a race.",
    ] = False,
    margin: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --at diversity: how much lower the log-probability of a token may be than with the first of "
            "--policies, in nats.",
        ),
    ] = 0.1,
    questions: options.Questions = None,
    cache: options.Cache = None,
    as_json: options.Json = False,
) -> None:
    """Race policies and their parameters on validation problems, and recommend the best.

    All candidates start on a few problems. A candidate beaten by another that costs no more drops out, and the
    better half goes on to more problems.

    With --at diversity, no sample is graded: the most diverse policy is recommended whose samples the model finds
    nearly as likely as those of the first policy.

    --out receives all samples, tuned.yaml, frontier.md and frontier.png. A race that was stopped continues when the
    same command is given again.

    [bold]Examples[/bold]
      twotemp tune --task countdown-3 --at pass@16 --policies tlc,tct,fork --budget 300000 --out runs/tune
      twotemp tune --task countdown-3 --at pass@16 --portfolio --policies lc,tlc,ct,tct,eb --out runs/portfolio
      twotemp tune --task countdown-3 --at pass@16 --gradient --policies tct --budget 30000 --out runs/gradient
      twotemp tune --task prompts --data prompts=FILE --at diversity --policies lc,tlc:t_pos=1 --out runs/diverse
      twotemp eval --task countdown-3 --policies ar,@runs/tune/tuned.yaml -n 16 --out runs/tuned
    """
    show_log(logging.WARNING)  # not the batch size, which differs from round to round
    if diverse := DiversityGoal.parse(at, margin):
        if portfolio or gradient:
            raise UserError("--at diversity compares single policies; leave --portfolio and --gradient out")
        specs = options.split_specs(",".join(policies))
        started = tuple(dict.fromkeys([starting_policy(specs[0]), *expand(specs)]))
        plan = task.plan(decoding, started, questions=questions, cache=cache, compile=loading.compile)
        samples = int(budget / (decoding.length or tasks.get(validation(plan).tasks[0].name).length))
        with (
            working.backend(Workload(model, loading, samples, decoding.batch_size, cache)) as (backend, _),
            progress(backend.name) as bar,
        ):

            def on_drawn(candidates: int, prompts: int, state: Progress) -> None:
                bar.update(state.samples, state.all_samples, f"{candidates} candidates on {prompts} prompts")

            result = tune_diversity(plan, diverse, backend, out, budget=budget, on_progress=on_drawn)
        _show_diversity(context, out, result, as_json)
        return
    if gradient:
        if portfolio or working.chosen or working.sglang or cache:
            raise UserError(
                "--gradient searches in this process, for one policy: leave --portfolio, --workers, --ray, --sglang "
                "and --cache out"
            )
        start = options.split_policies(",".join(policies))
        _search(
            context, out, task.plan(decoding, start, questions=questions), model, loading, at, budget, as_json
        )
        return
    goal, candidates = Goal.parse(at), expand(options.split_specs(",".join(policies)))
    plan = task.plan(decoding, candidates, questions=questions, cache=cache, compile=loading.compile)
    plan = validation(plan)  # reports a mistake before the model is loaded
    say(f"{len(candidates)} candidates for {goal}, {budget:,.0f} NFE")
    # A sample takes at most an NFE per token.
    samples = int(budget / (decoding.length or tasks.get(plan.tasks[0].name).length))
    with (
        working.backend(Workload(model, loading, samples, decoding.batch_size, cache)) as (backend, _),
        progress(backend.name) as bar,
    ):

        def on_progress(alive: int, seen: int, state: Progress) -> None:
            bar.update(state.samples, state.all_samples, f"{alive} candidates on {seen} questions")

        tuner = Tuner(plan, goal, backend, out, budget=budget, on_progress=on_progress)
        if portfolio:
            chosen = tuner.portfolio()
        else:
            tuned = tuner.race()
    if portfolio:
        write_text(out / "tuned.yaml", report.portfolio_yaml(chosen))
        write_json(out / report.STANDINGS, report.race_json(chosen))
        if as_json:
            typer.echo(json_text(report.portfolio_json(chosen)))
        say(report.portfolio_recommendation(chosen))
        command = next_command(f"eval {shlex.join(_test_command(context, out, chosen))} --out", Path("RUN"))
        say(f"{chosen.spent:,.0f} NFE spent; next, on test problems: {command}")
        return
    write_text(out / "tuned.yaml", report.tuned_yaml(tuned))
    write_json(out / report.STANDINGS, report.race_json(tuned))
    write_text(out / "frontier.md", f"{report.recommendation(tuned)}\n\n{report.markdown(tuned)}")
    if as_json:
        for row in report.as_json(tuned.standings):
            typer.echo(json_text(row))
    else:
        _show(tuned)
    say(report.recommendation(tuned))
    if figures.available():
        report.draw_frontier(
            tuned.standings, str(goal), f"{tuned.model}, {tuned.task.name}", out / "frontier"
        )
    else:
        say(NO_FIGURES)
    words = _test_command(context, out, tuned)
    overlap = "" if tuned.held_out else " (which include those used for tuning)"
    say(
        f"{tuned.spent:,.0f} NFE spent; the frontier: {out / 'frontier.md'}; next, on test problems{overlap}: "
        f"{next_command(f'eval {shlex.join(words)} --out', Path('RUN'))}"
    )


def _show_diversity(context: typer.Context, out: Path, tuned: TunedDiversity, as_json: bool) -> None:
    """Write the files of a result, and print its table and what to do next."""
    write_text(out / "tuned.yaml", tuning_diversity.tuned_yaml(tuned))
    write_json(out / report.STANDINGS, tuning_diversity.race_json(tuned))
    summary = tuning_diversity.recommendation(tuned)
    write_text(out / "frontier.md", f"{summary}\n\n{tuning_diversity.markdown(tuned)}")
    if as_json:
        for row in tuning_diversity.as_json(tuned):
            typer.echo(json_text(row))
    else:
        shown = Table(*tuning_diversity.COLUMNS)
        for standing in tuned.standings:
            shown.add_row(*tuning_diversity.table_row(standing))
        output.print(shown)
    say(summary)
    words = [
        *_tuned_settings(context),
        "--policies",
        f"@{out / 'tuned.yaml'}",
        "-n",
        str(tuned.goal.n),
        "--trace",
    ]
    command = next_command(f"eval {shlex.join(words)} --out", Path("RUN"))
    say(f"{tuned.spent:,.0f} NFE spent; next: {command}, and then twotemp report RUN --diversity")


def _search(
    context: typer.Context,
    out: Path,
    plan: Plan,
    model: str,
    loading: options.LoadingOptions,
    at: str,
    budget: float,
    as_json: bool,
) -> None:
    """Follow the gradient from the plan's one policy; write tuned.yaml and say what was found."""
    # Needs torch: mistakes in the options should be reported before it is imported.
    from twotemp.rl.policy_search import SearchSettings, SearchStep, search

    goal, plan = Goal.parse(at), validation(plan)
    (choice,) = plan.tasks
    if goal.k is None or len(plan.policies) != 1 or not isinstance(plan.policies[0], Policy):
        raise UserError(
            "--gradient is for pass@k and starts from one policy: --at pass@16 --policies tct:t_pos=0.1,threshold=0.6"
        )
    known = tasks.get(choice.name)
    settings = SearchSettings(
        plan.policies[0], goal.k, plan.length or known.length, plan.block, plan.seed, plan.chat
    )
    problems = choice.problems().problems[: plan.questions]
    with (
        closing(graders.get(choice.grader or known.grader)) as grader,
        progress(f"tune {choice.name}, % of the budget") as bar,
    ):

        def show(step: SearchStep) -> None:
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in step.numbers.items())
            bar.update(min(100, int(100 * step.spent / budget)), 100, f"step {step.step}: {numbers}")

        result = search(loading.load(model), problems, grader, settings, out, budget=budget, on_step=show)
    origin = f"{model}, {choice.name}: {goal}, by gradient from {spell(result.start)}"
    lines = [f"# {origin}", "policies:", f'  - "{spell(result.policy)}"', f"spent: {result.spent:.0f}  # NFE"]
    write_text(out / "tuned.yaml", "\n".join(lines) + "\n")
    if as_json:
        summary = {"policy": spell(result.policy), "start": spell(result.start), "goal": str(goal)}
        typer.echo(json_text({**summary, "steps": result.steps, "spent": result.spent}))
    words = [*_tuned_settings(context), "--policies", f"@{out / 'tuned.yaml'},{spell(result.start)}"]
    words += [] if choice.data is None else ["--data", "TEST_FILE"]
    command = next_command(f"eval {shlex.join(words)} -n {goal.k} --out", Path("RUN"))
    say(f"{result.steps} steps, {result.spent:,.0f} NFE spent; next, on test problems: {command}")
    say(f"Use {spell(result.policy)}")


def _test_command(context: typer.Context, out: Path, tuned: Tuned | TunedPortfolio) -> list[str]:
    """Return the words of the command that measures the result on test problems."""
    words = [*_tuned_settings(context), "--policies", f"@{out / 'tuned.yaml'}"]
    # The file that was used for tuning is known; only the user knows the one for the test.
    return words if tuned.task.data is None else [*words, "--data", "TEST_FILE"]


def _tuned_settings(context: typer.Context) -> list[str]:
    """Return the options that the user typed, without those of the race, as words of a command line."""
    words: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in RACE_OPTIONS and source is not None and source.name == "COMMANDLINE":
            value = context.params[option.name]
            for item in value if isinstance(value, list | tuple) else (value,):
                words += _spelled(option, item)
    return words


def _spelled(option: Any, value: object) -> list[str]:
    """Return one value of an option as it is typed."""
    if isinstance(value, bool):
        return list(option.opts[:1] if value else option.secondary_opts[:1])
    return [option.opts[0], str(value)]


def _show(tuned: Tuned) -> None:
    """Print the finalists, and how many candidates dropped out."""
    shown = Table()
    for column in report.COLUMNS:
        heading = column.format(goal=tuned.goal)
        shown.add_column(heading, justify="left" if column == "policy" else "right", overflow="fold")
    finalists = [standing for standing in tuned.standings if standing.finalist]
    for standing in finalists:
        shown.add_row(*report.table_row(standing))
    output.print(shown)
    dropped = len(tuned.standings) - len(finalists)
    output.print(f"{dropped} candidates dropped out in {len(tuned.rounds)} rounds", highlight=False)
