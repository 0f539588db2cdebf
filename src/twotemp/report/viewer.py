"""The run viewer: one HTML page about a run, whatever its kind.

The overview of every kind of run is a list of blocks (sentences, charts, tables), which the page draws without
knowing what they are about. Runs with samples also have questions (`run_data`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twotemp.analysis import (
    Choice,
    GradedCell,
    RunSurvey,
    findings,
    k_grid,
    stored_choices,
    survey,
    unique,
    with_portfolios,
)
from twotemp.errors import UserError, reading
from twotemp.folders import expect, read_json, write_text
from twotemp.policies import parse, spell
from twotemp.report import grpo, sentence
from twotemp.report.blocks import Part, charts, curve, curve_chart, sentences, table
from twotemp.report.pages import compose
from twotemp.report.reasons import reason_table
from twotemp.report.run_data import LARGEST, RunData, collect, collect_rollouts, colors, policy_name
from twotemp.report.style import dataset, line, model_name
from twotemp.report.tuning import STANDINGS


@dataclass(frozen=True)
class View:
    """What a page shows."""

    title: str
    kind: str
    blocks: list[Part]
    run: RunData | None = None
    gaps: list[str] = field(default_factory=list)

    def overview(self, **more: Any) -> dict[str, Any]:
        """Return all but the chunks as JSON data."""
        data = {"title": self.title, "kind": self.kind, "blocks": self.blocks, "gaps": self.gaps, **more}
        if self.run is not None:
            data |= {
                name: value for name, value in vars(self.run).items() if name not in ("chunks", "reasons")
            }
        return data

    def html(self) -> str:
        """Return the page as one file."""
        chunks = [] if self.run is None else self.run.chunks
        return compose("viewer", self.overview(), chunks, source="viewer_file.js")


def view(
    runs: Sequence[Path],
    grader: str | Mapping[str, str] | None = None,
    *,
    tokenizer: Callable[[], Any] | None = None,
    choices: Sequence[Choice] | None = None,
    surveyed: RunSurvey | None = None,
    largest: int = LARGEST,
) -> View:
    """Read runs of one kind.

    Args:
        runs: The folders of the runs.
        grader: The grader whose verdicts are used, or one for each task.
        tokenizer: Loads what decodes the tokens of traces; None: they are shown as their ids.
        choices: Best@k; None: what the runs hold (`stored_choices`).
        surveyed: The cells, if they were read already.
        largest: Bytes of samples in the page, about.
    """
    kinds = {expect(run, "evaluation", "grpo") for run in runs}
    if len(kinds) > 1:
        raise UserError("view runs of `twotemp grpo` and of `twotemp eval` separately")
    title = ", ".join(run.resolve().name for run in runs)
    if kinds == {"grpo"}:
        trained = [grpo.read(run) for run in runs]
        rollouts = collect_rollouts(runs, _grpo_policies(trained), largest)
        return View(title, "grpo", _grpo_blocks(trained), rollouts)
    surveyed = surveyed or survey(runs, grader)
    race = [block for run in runs for block in _race_blocks(run)]
    studies = [block for run in runs for block in _fork_blocks(run)]
    data = collect(surveyed.cells, tokenizer, largest)
    blocks = [
        *race,
        *studies,
        *_evaluation_blocks(
            with_portfolios(surveyed.cells, runs),
            _stored_choices(surveyed.cells, runs) if choices is None else choices,
            dict(zip(surveyed.cells, data.reasons)),
        ),
    ]
    kind = "tune" if race else "forks" if studies else "evaluation"
    return View(title, kind, blocks, data, surveyed.gaps)


def write(path: Path, shown: View) -> Path:
    """Write the page and return its path."""
    write_text(path, shown.html())
    return path


def _stored_choices(cells: Sequence[GradedCell], runs: Sequence[Path]) -> list[Choice]:
    try:
        return [choice for choice in stored_choices(cells, runs) if not choice.cell.ordered]
    except UserError:  # answers cannot be compared without the data of their task
        return []


def _evaluation_blocks(
    cells: Sequence[GradedCell], choices: Sequence[Choice], reasons: Mapping[GradedCell, Counter[str]]
) -> list[Part]:
    conclusions = [sentence(finding) for finding in findings(cells)]
    blocks: list[Part] = [sentences("What it shows", conclusions)] if conclusions else []
    models = [cell.model for cell in cells]
    for key in unique((cell.model, cell.task) for cell in cells):
        group = [cell for cell in cells if (cell.model, cell.task) == key]
        name = dataset(*key, models)
        curves = []
        if max(cell.samples for cell in group) > 1:
            curves = [_pass_chart(group), _budget_chart(group)]
            for selector in unique(choice.selector for choice in choices):
                shown = [c for c in choices if c.selector == selector and (c.cell.model, c.cell.task) == key]
                curves += [_best_chart(selector, shown)] if shown else []
        blocks += [charts(name, curves)] if curves else []
        blocks.append(_pass_table(name, group))
        blocks += reason_table(name, [cell for cell in group if reasons.get(cell)], reasons)
    return [*blocks, _settings_table([cell for cell in cells if not cell.ordered])]


def _cell_series(cell: GradedCell, color: str, x: Any, estimate: Any) -> Part:
    return curve(policy_name(cell.policy), color, x, estimate.mean, estimate.low, estimate.high)


def _pass_chart(group: Sequence[GradedCell]) -> Part:
    series = [
        _cell_series(c, color, range(1, c.samples + 1), c.curve) for c, color in zip(group, colors(group))
    ]
    return curve_chart("pass@k", "k", series, log=True, percent=True)


def _budget_chart(group: Sequence[GradedCell]) -> Part:
    series = [
        _cell_series(c, color, c.costs("nfe", range(1, c.samples + 1)), c.curve)
        for c, color in zip(group, colors(group))
    ]
    return curve_chart("pass@NFE", "NFE per question", series, log=True, percent=True)


def _best_chart(selector: str, choices: Sequence[Choice]) -> Part:
    shades = colors([choice.cell for choice in choices])
    series = [_cell_series(c.cell, color, c.ks, c.estimate) for c, color in zip(choices, shades)]
    return curve_chart(f"Best@k, {selector}", "k", series, log=True, percent=True)


def _pass_table(name: str, group: Sequence[GradedCell]) -> Part:
    ks = k_grid(group)
    rows = []
    for cell in group:
        rates = [_rate(cell, k) for k in ks]
        costs = [round(cell.cost("nfe"), 1), round(cell.cost("forwards"), 1)]
        rows.append([policy_name(cell.policy), *costs, len(cell.questions), cell.table.ungraded, *rates])
    columns = ["policy", "NFE", "forwards", "questions", "ungraded", *(f"k = {k}" for k in ks)]
    title = f"{name}: pass@k in % with 95 % intervals"
    return table(title, columns, rows)


def _rate(cell: GradedCell, k: int) -> Part:
    """Return pass@k as an entry of a table; -1 sorts a k that the cell does not reach below all others."""
    if k > cell.samples:
        return {"text": "–", "value": -1}
    mean, low, high = (float(100 * getattr(cell.curve, end)[k - 1]) for end in ("mean", "low", "high"))
    return {"text": f"{mean:.1f}" + ("" if np.isnan(low) else f" ({low:.0f}–{high:.0f})"), "value": mean}


def _settings_table(cells: Sequence[GradedCell]) -> Part:
    def row(cell: GradedCell) -> dict[str, Any]:
        config = cell.config
        return {
            "policy": policy_name(cell.policy),
            "task": config.task,
            "model": config.model,
            "weights": config.fingerprint[:16],
            "data": config.data[:16],
            "prompt": config.prompt,
            "length": config.length,
            "block": config.block or "default",
            "seed": config.seed,
            "options": ", ".join(f"{key}={value}" for key, value in config.options.items() if value),
            "grader": cell.grader,
            "twotemp": config.version,
        }

    rows = [row(cell) for cell in cells]
    return table("Settings and provenance", list(rows[0]), [list(row.values()) for row in rows])


def _race_blocks(run: Path) -> list[Part]:
    """Return the race of `twotemp tune`: the recommendation, the frontier and the candidates."""
    path = run / STANDINGS
    if not path.exists():
        return []
    with reading(path, "it is damaged; remove it"):
        race = read_json(path)
        series = []
        for entry in race["standings"]:
            name, cost, mean = entry["candidate"], entry["cost"], entry["mean"]
            low, high = ([np.nan if end is None else end] for end in (entry["low"], entry["high"]))
            color = line(parse(name))["color"] if entry["finalist"] else "#999999"
            series.append(curve(name, color, [cost], [mean], low, high, points=True))
        chart = curve_chart(
            f"{race['goal']} against cost", "NFE per question", series, log=True, percent=True
        )
        return [
            sentences("Recommendation", [race["recommendation"]]),
            *([charts("The frontier", [chart])] if series else []),
            table("The race", race["columns"], race["rows"]),
        ]


def _fork_blocks(run: Path) -> list[Part]:
    """Return what `twotemp forks` measured."""
    folders = sorted((run / "forks").glob("*/run.json"))
    if not folders:
        return []
    from twotemp.forks.study import stored  # needs torch
    from twotemp.report.forks import blocks

    return [block for path in folders for block in blocks(stored(path.parent))]


_STEPS = {
    "reward": "mean reward of a group",
    "reward_std": "spread of the reward within a group (std)",
    "zero_std": "share of groups without signal",
    "distinct": "different answers in a group",
    "kl": "KL to the untrained model",
    "entropy": "entropy at commit (nats)",
    "confidence": "confidence at commit",
    "nfe": "NFE of a sample",
    "tokens_per_forward": "tokens per forward pass",
    "loss": "loss",
    "grad_norm": "norm of the gradient",
}
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def _grpo_policies(runs: Sequence[grpo.GrpoRun]) -> list[Part]:
    models = [run.model for run in runs]
    return [
        {
            "name": name,
            "spec": spell(run.policy),
            "color": _COLORS[n % len(_COLORS)],
            "set": dataset(run.model, run.task, models),
        }
        for n, (run, name) in enumerate(zip(runs, grpo.names(runs, plain=True)))
    ]


def _grpo_blocks(runs: Sequence[grpo.GrpoRun]) -> list[Part]:
    names = grpo.names(runs, plain=True)
    steps = []
    for column, title in _STEPS.items():
        series = [
            curve(name, _COLORS[n % len(_COLORS)], run.column("step"), run.column(column))
            for n, (run, name) in enumerate(zip(runs, names))
        ]
        if any(value is not None for shown in series for value in shown["y"]):
            steps.append(curve_chart(title, "step", series))
    evaluations = []
    for n, (run, name) in enumerate(zip(runs, names)):
        for evaluation in run.evaluations:
            points = [(p.nfe, p.accuracy, p.low, p.high) for p in evaluation.points]
            color = "#7F7F7F" if evaluation.step == 0 else _COLORS[n % len(_COLORS)]
            evaluations.append(curve(f"{name}, step {evaluation.step}", color, *zip(*points), points=True))
    blocks: list[Part] = [charts("Training", steps)]
    if evaluations:
        chart = curve_chart(
            "Greedy accuracy on held-out problems", "NFE per sample", evaluations, percent=True
        )
        blocks.insert(0, charts("Evaluations", [chart]))
    facts = [
        [name, model_name(run.model), run.task, len(run.records), run.records[-1].total_nfe]
        for run, name in zip(runs, names)
    ]
    columns = ["rollouts", "model", "task", "steps", "NFE of all rollouts"]
    return [*blocks, table("Runs", columns, facts)]
