"""Compare GRPO runs: the paper's three panels, and a table of what each run did with its budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twotemp.analysis import unique
from twotemp.errors import UserError, reading
from twotemp.folders import disk_errors
from twotemp.policies import AnyPolicy, policy_from_dict
from twotemp.report import style
from twotemp.report.figures import SavedFigure, available, grid, legend, save, styled
from twotemp.report.style import label as policy_label
from twotemp.report.style import model_name, task_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from twotemp.rl.results import GreedyEvaluation, StepRecord

WINDOW = 0.05  # of the steps: what the training curves are averaged over
UNTRAINED = "#7F7F7F"
DONE = (
    "task",
    "rollouts",
    "steps",
    "minutes",
    "NFE of all rollouts",
    "NFE per rollout",
    "reward, first → last tenth",
    "std in a group",
    "groups without signal",
    "confidence, first → last tenth",
)
COMPARED = ("lambda", "accuracy before", "after", "gain [95 %]", "NFE before → after")
CAPTION = (
    "Left: training reward, right of it its standard deviation within a group, both as running means over 5 % "
    "of the steps; dashed lines mark the steps completed within the budget. Right: accuracy on held-out problems "
    "under greedy confidence thresholding, one point for each lambda, with 95 % intervals; before "
    "training as the first run of each model measured it."
)


@dataclass(frozen=True, eq=False)
class GrpoRun:
    """The settings, steps and evaluations that a run directory holds."""

    name: str  # of its directory
    model: str
    task: str
    policy: AnyPolicy
    records: tuple[StepRecord, ...]
    evaluations: tuple[GreedyEvaluation, ...]
    iterations: int = 1  # updates of a step

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one number of every step."""
        return np.array([getattr(record, name) for record in self.records], dtype=np.float64)


def read(folder: Path) -> GrpoRun:
    """Read a run of `twotemp grpo`."""
    from twotemp.folders import expect, read_run
    from twotemp.folders.identity import FILE
    from twotemp.rl import results

    expect(folder, "grpo")
    described = read_run(folder) or {}
    records = tuple(results.read_steps(folder))
    if not records:
        raise UserError(f"{folder} has not finished a step yet; wait for the first one")
    with reading(folder / FILE, results.DAMAGED):
        settings = described["settings"]
        return GrpoRun(
            folder.resolve().name,
            str(described["model"]),
            str(described["task"]),
            policy_from_dict(settings["policy"]),
            records,
            tuple(results.read_evaluations(folder)),
            int(settings.get("iterations", 1)),
        )


def write(folders: Sequence[Path], out: Path, *, updates: bool = False) -> tuple[Path, SavedFigure | None]:
    """Write grpo.md and the figure.

    Args:
        folders: the runs.
        out: where to write.
        updates: the x-axis counts updates (inner steps) instead of steps.

    Returns:
        The page, and the figure (None without matplotlib).
    """
    runs = [read(folder) for folder in folders]
    page, drawn = out / "grpo.md", None
    parts = ["# GRPO with different rollouts\n", table(runs)]
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if available():
            drawn = draw(runs, out, updates)
            parts += [f"![{drawn.name}]({drawn.path.name})\n", drawn.caption + "\n"]
        page.write_text("\n".join(parts), "utf-8")
    return page, drawn


def draw(runs: Sequence[GrpoRun], folder: Path, updates: bool = False) -> SavedFigure:
    """Draw reward and within-group std against steps or updates, and accuracy against NFE; a row per task."""
    tasks = unique(run.task for run in runs)
    with styled():
        figure, axes = grid(len(tasks), 3)
        for row, task in enumerate(tasks):
            group = [run for run in runs if run.task == task]
            _training(axes[row, 0], group, "reward", "group mean reward", updates)
            _training(axes[row, 1], group, "reward_std", "group std of the reward", updates)
            _frontier(axes[row, 2], group)
            axes[row, 0].set_title(task_name(task), loc="left")
        legend(figure)
        return save(folder, "grpo", figure, CAPTION)


def _training(axis: Axes, runs: Sequence[GrpoRun], name: str, label: str, updates: bool) -> None:
    for run, title, line in zip(runs, names(runs), _lines(runs)):
        values = run.column(name)
        steps = run.column("step") * (run.iterations if updates else 1)
        axis.plot(steps, values, color=line["color"], alpha=0.15, linewidth=0.5)
        axis.plot(steps, running_mean(values), label=title, **{**line, "marker": None})
        axis.axvline(steps[-1], color=line["color"], linestyle="--", linewidth=1)
    axis.set(xlabel="update" if updates else "step", ylabel=label)


def _frontier(axis: Axes, runs: Sequence[GrpoRun]) -> None:
    untrained = [run for run in runs if run.evaluations and run.evaluations[0].step == 0]
    before = {run.model: run.evaluations[0] for run in reversed(untrained)}  # of several runs, the first
    for model, marker in zip(before, "x+1234|_"):
        title = "before training" if len(before) == 1 else f"{model_name(model)} before training"
        _points(axis, before[model], title, {"color": UNTRAINED, "marker": marker})
    for run, title, line in zip(runs, names(runs), _lines(runs)):
        if run.evaluations and run.evaluations[-1].step:
            _points(axis, run.evaluations[-1], title, line)
    axis.set(xlabel="NFE per sample", ylabel="greedy accuracy (%)")


def _points(axis: Axes, evaluation: GreedyEvaluation, label: str, line: dict[str, Any]) -> None:
    accuracy = np.array([p.accuracy for p in evaluation.points])
    spread = [accuracy - [p.low for p in evaluation.points], [p.high for p in evaluation.points] - accuracy]
    axis.errorbar(
        [p.nfe for p in evaluation.points],
        100 * accuracy,
        100 * np.array(spread),
        label=label,
        capsize=2,
        **line,
    )


def names(runs: Sequence[GrpoRun], *, plain: bool = False) -> list[str]:
    """Return the policy label of each run, with the run's name if several runs of a task have the same policy."""
    labels = [policy_label(run.policy, plain=plain) for run in runs]
    count = Counter((run.task, label) for run, label in zip(runs, labels))
    return [
        f"{label}, {run.name}" if count[run.task, label] > 1 else label for run, label in zip(runs, labels)
    ]


def _lines(runs: Sequence[GrpoRun]) -> list[dict[str, Any]]:
    """Return the line style of each run, in shades if several runs have the same policy."""
    policies = [run.policy for run in runs]
    return [
        style.ramp(policy, policies[:index].count(policy), policies.count(policy))
        if policies.count(policy) > 1
        else style.line(policy)
        for index, policy in enumerate(policies)
    ]


def running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the last values up to each step (fewer at the start)."""
    width = max(1, round(WINDOW * len(values)))
    sums: NDArray[np.float64] = np.concatenate([[0.0], values.cumsum()])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (sums[ends] - sums[starts]) / (ends - starts)


def table(runs: Sequence[GrpoRun]) -> str:
    """Return a Markdown table: what each run completed, how diverse its rollouts were, and its held-out gain."""
    header = (*DONE, *COMPARED)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for run, title in zip(runs, names(runs, plain=True)):
        first, last = _ends(run.column("reward"))
        sure, surer = _ends(run.column("confidence"))
        cells = [
            task_name(run.task),
            title,
            str(len(run.records)),
            f"{run.records[-1].total_seconds / 60:.1f}",
            str(run.records[-1].total_nfe),
            f"{run.column('nfe').mean():.2f}",
            f"{first:.3f} → {last:.3f}",
            f"{run.column('reward_std').mean():.3f}",
            f"{100 * run.column('zero_std').mean():.0f} %",
            f"{sure:.3f} → {surer:.3f}",
        ]
        several = len(run.evaluations) > 1
        gained = compare(run.evaluations[0], run.evaluations[-1]) if several else [["–"] * len(COMPARED)]
        for number, at_threshold in enumerate(gained):
            lines.append(
                "| " + " | ".join([*(cells if number == 0 else [""] * len(cells)), *at_threshold]) + " |"
            )
    return "\n".join(lines) + "\n"


def compare(before: GreedyEvaluation, after: GreedyEvaluation) -> list[list[str]]:
    """Return the cells of the columns `COMPARED`, a row for each threshold."""
    from twotemp.rl.results import gains

    gain = gains(before, after)
    return [
        [
            f"{old.threshold:g}",
            _percent(old.accuracy, old.low, old.high, ""),
            _percent(new.accuracy, new.low, new.high, ""),
            _percent(gain.mean[i], gain.low[i], gain.high[i], "+"),
            f"{old.nfe:.2f} → {new.nfe:.2f}",
        ]
        for i, (old, new) in enumerate(zip(before.points, after.points))
    ]


def _percent(mean: float, low: float, high: float, sign: str) -> str:
    """Return a mean in percent with its interval, which is left out where there are too few questions for one."""
    span = "" if np.isnan(low) else f" [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
    return f"{100 * mean:{sign}.1f}{span}"


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the means over the first and the last tenth of the steps."""
    tenth = max(1, len(values) // 10)
    return float(values[:tenth].mean()), float(values[-tenth:].mean())
