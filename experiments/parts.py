"""The parts of `make paper`: what each runs, how long it takes, and the blocks of the documents that it fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from experiments import (
    canvases,
    embedded,
    files,
    frontier,
    gradient,
    grpo,
    likelihood_estimators,
    order,
    portfolio_page,
    portfolios,
    schedules,
    search,
    study,
    theory,
    training,
    tuning,
    verifier,
    votes,
)
from experiments.command import evaluated
from twotemp.analysis import GradedCell
from twotemp.evaluation.comparison import BLOCKS_PER_ANSWER, block, policies
from twotemp.report import write

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class PartOptions:
    """Where a part keeps its runs, and how much it draws."""

    runs: Path
    questions: int
    samples: int  # per question; 0 for a part that has no such number
    # For a part that reuses what its earlier results found, and stores what it has so far:
    earlier: Sequence[dict[str, Any]] = ()  # for the same weights
    keep: Callable[[dict[str, Any]], None] = lambda found: None
    draw: bool = True


@dataclass(frozen=True)
class Part:
    """An experiment of `make paper` and the blocks of the documents that it fills."""

    about: str
    minutes: int  # on two idle cores, roughly
    run: Callable[[PartOptions], dict[str, Any]]
    blocks: Mapping[str, Callable[[dict[str, Any]], str]]
    settings: Any = None  # JSON: further settings that determine the result
    questions: int = 500
    samples: int | None = 64  # per question; None if the part chooses its own numbers
    models: Sequence[str] = ("tiny",)
    figures: Mapping[str, str] = field(default_factory=dict)  # file under runs -> file in docs/figures
    # Of a part of many long runs: the result of those that are complete.
    finished: Callable[[PartOptions], dict[str, Any]] | None = None


def drawn(options: PartOptions, part: str = "claims", subset: str = "test") -> list[GradedCell]:
    """Return the samples of the claims, drawing what is missing; several parts use the same ones."""
    size = {"questions": options.questions, "samples": options.samples}
    return embedded.draw(options.runs / part, subset=subset, **size)


def claims(options: PartOptions) -> dict[str, Any]:
    """Measure the paper's claims and write their report."""
    cells = drawn(options)
    write([cell for cell in cells if cell.task in embedded.TASKS], options.runs / "claims" / "report")
    return embedded.summary(cells, options.samples)


def again(options: PartOptions) -> dict[str, Any]:
    """Measure the claims on other problems."""
    return embedded.summary(drawn(options, "again", "test:7"), options.samples)


def selection(options: PartOptions) -> dict[str, Any]:
    """Measure Best@k with the verifier on the samples of the claims."""
    report = options.runs / "claims" / "selection"
    return verifier.summary(drawn(options), verifier.TRAINED, options.samples, report)


def scores(options: PartOptions) -> dict[str, Any]:
    """Compare the verifier with scores that need no training, on traced samples."""
    out, cells = options.runs / "verifier", []
    size = {"n": options.samples, "questions": options.questions}
    for task in embedded.TASKS:
        specs = [policies(task)[name] for name in verifier.CHOOSERS]
        cells += evaluated(out, task, specs, "--block", str(block(task)), "--trace", **size)
    return verifier.summary(cells, verifier.ALL, options.samples, out / "selection")


def file_part(
    name: str, minutes: int, about: str, models: Sequence[str] = ("tiny",), questions: int = 100
) -> Part:
    """Return the part that runs experiments/NAME.yaml.

    Args:
        name: the name of the file and of the part's block.
        minutes: the approximate time on two idle cores.
        about: what `--list` shows.
        models: the models whose weights the result depends on.
        questions: questions per task.
    """
    return Part(
        about,
        minutes,
        lambda options: files.run(name, options.runs / name, options.questions, options.samples),
        {name: files.render},
        yaml.safe_load((files.HERE / f"{name}.yaml").read_text("utf-8")),
        questions=questions,
        models=models,
    )


CLAIMS = {
    "policies": {task: policies(task) for task in embedded.TASKS},
    "blocks": BLOCKS_PER_ANSWER,
    "easier": [embedded.EASIER, embedded.EASIER_SAMPLES],
}
GRPO = grpo.ComparisonSize(seconds=180, nfe=250_000, seeds=3, held_out=500)
ORDER = order.OrderSize(nfe=40_000, seeds=3, held_out=500)
PARTS: dict[str, Part] = {
    "training": Part(
        "how the shipped weights were trained, from their logs",
        0,
        lambda options: training.summary(ROOT / "recipes"),
        {"training": training.render},
        samples=None,
        models=("tiny", "tiny-ar", "tiny-uniform"),
    ),
    "theory": Part(
        "the exact numbers in docs/forks.md and docs/theory.md",
        1,
        lambda options: theory.measure(),
        {"planted": theory.render_fork, "sweep": theory.sweep, "monotonicity": theory.monotonicity},
        samples=None,
        models=(),
    ),
    "likelihoods": Part(
        "likelihood estimators on table models",
        1,
        lambda options: likelihood_estimators.measure(),
        {
            "likelihoods": likelihood_estimators.render_strings,
            "trajectories": likelihood_estimators.render_trajectories,
        },
        samples=None,
        models=(),
    ),
    "claims": Part(
        "the paper's claims: five policies on three tasks",
        100,
        claims,
        {"readme": embedded.readme, "measured": embedded.measured, "claims": embedded.claims},
        CLAIMS,
        figures={f"claims/report/{name}.png": f"{name}.png" for name in ("pass_at_k", "pass_at_nfe")},
    ),
    "again": Part(
        "the claims on 500 other problems",
        100,
        again,
        {"measured-again": embedded.measured, "again": embedded.claims},
        CLAIMS,
    ),
    "selection": Part(
        "choosing one answer from many, on the samples of `claims`",
        25,
        selection,
        {"selection": verifier.render_best, "selection-findings": verifier.findings},
        {**CLAIMS, "selectors": verifier.TRAINED},
        models=("tiny", "verifier"),
        figures={
            "claims/selection/best-words-3.png": "selection-best.png",
            "claims/selection/entropy.png": "selection-entropy.png",
        },
    ),
    "verifier": Part(
        "the verifier against scores that need no training",
        10,
        scores,
        {"verifier": verifier.render_auc, "verifier-best": verifier.render_best},
        {**CLAIMS, "selectors": verifier.ALL},
        questions=100,
        models=("tiny", "verifier"),
    ),
    "forks": Part(
        "the fork study",
        3,
        lambda options: study.run(options.runs / "forks", options.questions),
        {"forks": study.render},
        questions=100,
        samples=None,
    ),
    "models": file_part(
        "models", 8, "tiny and tiny-ar: different amounts of diffusion training", ("tiny", "tiny-ar")
    ),
    "t_pos": file_part("t_pos", 12, "position temperatures"),
    "t_token": file_part("t_token", 9, "token temperatures", questions=60),
    "frontier": Part(
        "every method with tuned parameters, and some that have not been published",
        60,
        lambda options: frontier.run(options.runs / "frontier", options.questions, options.samples, seeds=3),
        {
            "frontier": frontier.render,
            "frontier-statements": frontier.statements,
            "frontier-ahead": frontier.ahead,
        },
        [frontier.TASKS, frontier.METHODS, frontier.GOAL],
        questions=frontier.QUESTIONS,
    ),
    "canvases": Part(
        "tiny-uniform: tempered acceptance without a mask",
        30,
        lambda options: canvases.run(options.runs / "canvases", options.questions, options.samples),
        {"canvases": canvases.render, "canvases-claims": canvases.statements},
        [canvases.TASKS, canvases.METHODS, canvases.VALIDATION, canvases.EQUAL],
        questions=100,
        samples=32,
        models=(canvases.MODEL, canvases.MASKED),
    ),
    "portfolios": Part(
        "ladders and portfolios of policies on unseen problems",
        240,
        lambda options: portfolios.run(
            options.runs / "portfolios", options.questions, options.earlier, options.keep, options.draw
        ),
        {
            "portfolio-answer": portfolio_page.answer,
            "portfolio-missing": portfolio_page.missing,
            "portfolio-holding": portfolio_page.holding,
            "portfolio-statements": portfolio_page.statements,
            "portfolio-ladders": portfolio_page.ladders,
            "portfolio-tuned": portfolio_page.portfolios,
            "portfolio-rates": portfolio_page.powered,
        },
        [portfolios.TRIED, portfolios.VALIDATION, portfolios.TESTS, portfolios.SAMPLES],
        questions=400,
        samples=None,
    ),
    "schedules": Part(
        "T_pos that falls within a block",
        20,
        lambda options: schedules.run(options.questions),
        {"schedules": schedules.render},
        [schedules.TASKS, schedules.SPECS, [*schedules.SCHEDULES], schedules.VALIDATION],
        questions=150,
        samples=None,
    ),
    "search": Part(
        "SMC and diverse beams against independent samples at equal NFE",
        20,
        lambda options: search.run(options.questions),
        {"search": search.render},
        [
            *(search.TASKS, search.LC, search.TLC, search.ROWS, search.VALIDATION),
            {name: [*settings] for name, settings in search.SEARCHES.items()},
        ],
        questions=150,
        samples=None,
    ),
    "votes": Part(
        "votes of a mixture of policies, weighted by their accuracy",
        10,
        lambda options: votes.run(options.runs / "votes", options.questions),
        {"votes": votes.render},
        [votes.TASKS, votes.MIXTURES, [*votes.WEIGHTS], votes.SAMPLES, votes.VALIDATION],
        questions=150,
        samples=None,
    ),
    "tuning": Part(
        "`twotemp tune` against a full grid",
        40,
        lambda options: tuning.run(options.runs / "tuning", tuning.TASKS, 3, 100, options.questions),
        {"tuning": tuning.render},
        [
            tuning.TASKS,
            tuning.POLICIES,
            tuning.K,
            tuning.SHARE,
            tuning.RIVALS,
            tuning.TESTED,
            tuning.TEST_SEED,
        ],
        questions=300,
        samples=None,
    ),
    "grpo": Part(
        "GRPO at equal time and equal NFE; needs an idle machine, because it compares times",
        60,
        lambda options: grpo.run(options.runs / "grpo", replace(GRPO, held_out=options.questions)),
        {"grpo": grpo.render, "grpo-short": grpo.short},
        [grpo.TASK, grpo.ROLLOUTS, grpo.LIKELIHOODS, asdict(GRPO)],
        questions=GRPO.held_out,
        samples=None,
        figures={"grpo/report/grpo.png": "grpo.png"},
    ),
    "gradient": Part(
        "`twotemp tune --gradient` against its race at equal NFE",
        20,
        lambda options: gradient.run(
            *(options.runs / "gradient", gradient.TASKS, 3, options.questions),
            earlier=options.earlier,
            keep=options.keep,
        ),
        {"gradient": gradient.render},
        [
            *(gradient.TASKS, gradient.START, gradient.GRID, gradient.BUDGET, gradient.QUESTIONS),
            *(gradient.TESTED, tuning.K, tuning.TEST_SEED),
        ],
        questions=200,
        samples=None,
        finished=lambda options: gradient.run(
            *(options.runs / "gradient", gradient.TASKS, 3, options.questions),
            finished=True,
            earlier=options.earlier,
        ),
    ),
    "order": Part(
        "likelihoods and objectives for GRPO at equal NFE",
        200,
        lambda options: order.run(
            *(options.runs / "order", replace(ORDER, held_out=options.questions)),
            options.earlier,
            options.keep,
        ),
        {"order": order.render},
        [order.TRAININGS, order.SEEDS, asdict(ORDER)],
        questions=ORDER.held_out,
        samples=None,
        finished=lambda options: order.finished(
            options.runs / "order", replace(ORDER, held_out=options.questions), options.earlier
        ),
    ),
}
BLOCKS = {
    block_name: (name, make) for name, part in PARTS.items() for block_name, make in part.blocks.items()
}
