"""Draw the paper's figures that a run has data for. Matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from twotemp.analysis import GradedCell, k_grid, representatives, unique
from twotemp.errors import UserError
from twotemp.metrics import Estimate
from twotemp.records import Policy
from twotemp.report import style
from twotemp.report.style import dataset, family_labels, label, model_name, task_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Axis = Literal["k", "nfe", "seconds"]
AXES: dict[Axis, str] = {
    "k": "samples k",
    "nfe": "NFE (k × mean per sample)",
    "seconds": "seconds (k × mean per row)",
}
METRICS: dict[Axis, str] = {"k": "pass@k (%)", "nfe": "pass@NFE (%)", "seconds": "pass@wall-clock (%)"}
FORMATS = ("png", "pdf")
BAND = 0.13  # opacity


@dataclass(frozen=True)
class SavedFigure:
    """A figure on disk: `path` is the PNG; the PDF is next to it."""

    name: str
    path: Path
    caption: str


def available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(cells: Sequence[GradedCell], folder: Path) -> list[SavedFigure]:
    """Draw and save every figure that the cells have data for."""
    drawn = []
    with styled():
        for name, figure_of in FIGURES.items():
            result = figure_of(cells)
            if result is not None:
                drawn.append(save(folder, name, *result))
    return drawn


def save(folder: Path, name: str, figure: Figure, caption: str = "") -> SavedFigure:
    """Save a figure in all formats."""
    figure.draw_without_rendering()  # lays the panels out, once for all formats
    figure.set_layout_engine("none")
    for kind in FORMATS:
        figure.savefig(folder / f"{name}.{kind}")
    return SavedFigure(name, folder / f"{name}.png", caption)


CaptionedFigure: TypeAlias = "tuple[Figure, str] | None"


def pass_at_k(cells: Sequence[GradedCell]) -> CaptionedFigure:
    """Draw the fixed-budget policies: a row per model, a column per task (the paper's TLC figure)."""
    chosen = [cell for cell in representatives(cells) if _fixed_budget(cell)]
    if not _comparable(chosen):
        return None
    several = len({cell.model for cell in chosen}) > 1
    figure = _matrix(chosen, "model", "task", label_rows=several)
    return figure, f"Pass@k of policies that commit K tokens per step. {BANDS}"


def pass_at_nfe(cells: Sequence[GradedCell]) -> CaptionedFigure:
    """Draw the adaptive policies and AR: pass@k above pass@NFE, a column per task (the paper's TCT figure)."""
    return _adaptive(
        cells,
        ("k", "nfe"),
        "Pass@k (top) and pass@NFE (bottom): the same data, only the x axis changes. AR's NFE counts tokens before "
        f"EOS, the others' the steps until every position is written. {BANDS}",
    )


def wall_clock(cells: Sequence[GradedCell]) -> CaptionedFigure:
    """Draw pass@k, pass@NFE and pass@wall-clock of the adaptive policies and AR."""
    return _adaptive(
        cells,
        ("k", "nfe", "seconds"),
        "Pass@k, pass@NFE and pass@wall-clock. Seconds are those a row spent in its batch, so they compare "
        f"policies of one run on one machine. {BANDS}",
        across=True,
    )


def _adaptive(
    cells: Sequence[GradedCell], kinds: Sequence[Axis], caption: str, across: bool = False
) -> CaptionedFigure:
    """Draw a panel per task and x axis; `across`: the x axes run from left to right instead of downwards."""
    every = representatives(cells)
    adaptive = [cell for cell in every if not _fixed_budget(cell)]
    # The figure is about adaptive policies; AR is the baseline if the run has it.
    chosen = [cell for cell in every if cell.policy.name == "ar"] + adaptive
    if not adaptive or not _comparable(chosen):
        return None
    name_of = _family_names(chosen)
    models, tasks = unique(cell.model for cell in chosen), unique(cell.task for cell in chosen)
    present = unique((cell.model, cell.task) for cell in chosen)
    rows = present if across else [(model, task) for model in models for task in tasks]
    figure, axes = grid(*((len(rows), len(kinds)) if across else (len(models) * len(kinds), len(tasks))))
    for index, (model, task) in enumerate(rows):
        group = [cell for cell in chosen if cell.model == model and cell.task == task]
        block, column = divmod(index, len(tasks))
        panels = axes[index] if across else axes[block * len(kinds) : (block + 1) * len(kinds), column]
        for axis, kind in zip(panels, kinds):
            _panel(axis, group, kind, name_of)
            axis.set_xlabel(AXES[kind])
            axis.set_ylabel(METRICS[kind] if across or not column else "")
        name = model_name(model) if len(models) > 1 else None
        if across:
            _row_label(panels[0], dataset(model, task, [key[0] for key in rows]))
        else:
            panels[0].set_title(task_name(task) if not block else "")
            _row_label(panels[0], name if not column else None)
    legend(figure)
    return figure, caption


_ENDS = {"budget": ("ar", "lc", "random"), "threshold": ("ar", "ct")}  # the limits of T_pos, and AR


def t_pos(cells: Sequence[GradedCell]) -> CaptionedFigure:
    """Draw a tempered family at several T_pos, with its two limits and AR; a column per task."""
    varied = _varied(cells, "t_pos")
    if not varied:
        return None
    keys = unique((cell.model, cell.task, cell.policy.name) for cell in varied)
    figure, axes = grid(1, len(keys))
    for axis, (model, task, name) in zip(axes[0], keys):
        group = [cell for cell in cells if cell.model == model and cell.task == task]
        family = sorted(
            (cell for cell in group if cell.policy.name == name), key=lambda cell: cell.policy.t_pos
        )
        ends = [cell for cell in group if cell.policy.name in _ENDS.get(family[0].policy.rule, ("ar",))]
        for cell in ends:
            _curve(axis, cell, "k", style.line(cell.policy), label(cell.policy))
        for index, cell in enumerate(family):
            _curve(axis, cell, "k", style.ramp(cell.policy, index, len(family)), label(cell.policy))
        power_ticks(axis, family)
        axis.set_title(dataset(model, task, [key[0] for key in keys]))
        axis.set_xlabel(AXES["k"])
    axes[0, 0].set_ylabel(METRICS["k"])
    legend(figure)
    return figure, f"Pass@k as the position temperature varies. {BANDS}"


def t_token(cells: Sequence[GradedCell]) -> CaptionedFigure:
    """Draw a panel per token temperature with every policy; the last has the largest k against the temperature."""
    varied = _varied(cells, "t_token")
    if not varied:
        return None
    temperatures = sorted({cell.policy.t_token for cell in varied})
    keys = unique((cell.model, cell.task) for cell in varied)
    columns = len(temperatures) + 1 if len(temperatures) < 4 else 3  # more are not readable on a page
    lines = -(-(len(temperatures) + 1) // columns)
    most = min(cell.samples for cell in varied)
    figure, axes = grid(len(keys) * lines, columns, share_y="row")
    for index, (model, task) in enumerate(keys):
        group = [cell for cell in varied if cell.model == model and cell.task == task]
        panels = axes[index * lines : (index + 1) * lines].ravel()
        for axis, temperature in zip(panels, temperatures):
            shown = [cell for cell in group if cell.policy.t_token == temperature]
            _panel(axis, shown, "k", partial(label, hide=("t_token",)))
            axis.set_title(rf"$T_\mathrm{{token}}={temperature:g}$")
            axis.set_xlabel(AXES["k"])
        _against_t_token(panels[len(temperatures)], group, most)
        for axis in panels[len(temperatures) + 1 :]:
            axis.set_visible(False)
        for axis in panels[::columns]:
            axis.set_ylabel(METRICS["k"])
        _row_label(panels[0], dataset(model, task, [key[0] for key in keys]))
    legend(figure)
    return figure, f"Pass@k as the token temperature varies; the last panel has the largest k. {BANDS}"


def _against_t_token(axis: Axes, cells: Sequence[GradedCell], k: int) -> None:
    families: dict[Policy, list[GradedCell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.policy.t_token):
        families.setdefault(replace(cell.policy, t_token=0.0), []).append(cell)
    for policy, family in families.items():
        line, x = style.line(policy), [cell.policy.t_token for cell in family]
        at_k = {
            f.name: np.array([getattr(cell.curve, f.name)[k - 1] for cell in family])
            for f in fields(Estimate)
        }
        band(axis, x, Estimate(**at_k), line, "")
    axis.set_xticks(sorted({cell.policy.t_token for cell in cells}))
    axis.set_xlabel(r"$T_\mathrm{token}$")
    axis.set_title(f"pass@{k}")


def models(cells: Sequence[GradedCell]) -> CaptionedFigure:
    """Draw the same policies on several models: a column per model, a row per task."""
    chosen = [cell for cell in representatives(cells) if _fixed_budget(cell)]
    models = {
        task: {cell.model for cell in chosen if cell.task == task}
        for task in unique(cell.task for cell in chosen)
    }
    shared = [cell for cell in chosen if len(models[cell.task]) > 1]
    if not shared:
        return None
    figure = _matrix(shared, "task", "model", label_rows=True, share_y="row")
    return figure, f"Pass@k of the same policies on different models. {BANDS}"


FIGURES: dict[str, Callable[[Sequence[GradedCell]], Any]] = {
    "pass_at_k": pass_at_k,
    "pass_at_nfe": pass_at_nfe,
    "wall_clock": wall_clock,
    "t_pos": t_pos,
    "t_token": t_token,
    "models": models,
}
BANDS = "Bands: 95 % intervals over questions."


def _matrix(
    cells: Sequence[GradedCell], rows: str, columns: str, *, label_rows: bool, share_y: Any = False
) -> Figure:
    """Draw pass@k in a panel per pair of model and task; `rows` and `columns` name which runs down and across."""
    name_of = _family_names(cells)
    names = {"model": model_name, "task": task_name}
    down, across = (unique(getattr(cell, key) for cell in cells) for key in (rows, columns))
    figure, axes = grid(len(down), len(across), share_y)
    for line, row in zip(axes, down):
        for axis, column in zip(line, across):
            group = [cell for cell in cells if (getattr(cell, rows), getattr(cell, columns)) == (row, column)]
            _panel(axis, group, "k", name_of)
        line[0].set_ylabel(METRICS["k"])
        _row_label(line[0], names[rows](row) if label_rows else None)
    for top, bottom, column in zip(axes[0], axes[-1], across):
        top.set_title(names[columns](column))
        bottom.set_xlabel(AXES["k"])
    legend(figure)
    return figure


def _varied(cells: Sequence[GradedCell], key: str) -> list[GradedCell]:
    """Return the cells of policies that the run has at two or more values of a parameter."""
    values: dict[tuple[str, str, str], set[float]] = {}
    cells = [cell for cell in cells if len(cell.policy.components) == 1]
    for cell in cells:
        values.setdefault((cell.model, cell.task, cell.policy.name), set()).add(getattr(cell.policy, key))
    return [cell for cell in cells if len(values[cell.model, cell.task, cell.policy.name]) > 1]


def _fixed_budget(cell: GradedCell) -> bool:
    """Return whether all policies of a cell commit K tokens per step."""
    return all(policy.rule == "budget" for policy in cell.policy.components)


def _comparable(cells: Sequence[GradedCell]) -> bool:
    return len({cell.policy.name for cell in cells}) > 1


def _family_names(cells: Sequence[GradedCell]) -> Callable[[Policy], str]:
    """Return the legend's name of a policy: one per family, even if every task has its own T_pos."""
    labels = family_labels(cell.policy for cell in cells)
    return lambda policy: labels[policy.name]


def _panel(axis: Axes, cells: Sequence[GradedCell], kind: Axis, name_of: Callable[[Policy], str]) -> None:
    if not cells:  # a run need not have every task of every model
        axis.set_visible(False)
        return
    for cell in cells:
        _curve(axis, cell, kind, style.line(cell.policy), name_of(cell.policy))
    if kind == "k":
        power_ticks(axis, cells)
    else:
        cost_ticks(axis)


def _curve(axis: Axes, cell: GradedCell, kind: Axis, line: dict[str, Any], name: str) -> None:
    """Draw mean and band at every k, with markers at the powers of two only, where the tables have numbers."""
    ks = range(1, cell.samples + 1)
    x = ks if kind == "k" else cell.costs(kind, ks)
    band(axis, x, cell.curve, {**line, "markevery": [k - 1 for k in k_grid([cell])]}, name)


def band(axis: Axes, x: Any, estimate: Estimate, line: dict[str, Any], name: str, scale: float = 100) -> None:
    """Draw a mean with its interval.

    Args:
        axis: Where to draw.
        x: The x coordinate of each column of the estimate.
        estimate: Means and intervals.
        line: Line properties (`style.line`).
        name: The entry in the legend; empty: none.
        scale: The factor on the y axis; default: percent.
    """
    axis.plot(x, scale * estimate.mean, label=name, **line)
    low, high = scale * estimate.low, scale * estimate.high
    axis.fill_between(x, low, high, color=line["color"], alpha=BAND, linewidth=0, zorder=2)


def power_ticks(axis: Axes, cells: Sequence[GradedCell]) -> None:
    """Make the x axis logarithmic with ticks at powers of two and at the largest k."""
    *ticks, last = k_grid(cells)
    ticks = [*(k for k in ticks if last > 1.4 * k), last]  # two numbers beside each other would overlap
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(k) for k in ticks])
    axis.minorticks_off()


def cost_ticks(axis: Axes) -> None:
    """Make the x axis logarithmic with a few plain numbers that do not overlap."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    low, high = axis.get_xlim()
    # Within one and a half decades the powers of ten alone are too few.
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 32 * low else (1,), numticks=9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def grid(rows: int, columns: int, share_y: Any = False) -> tuple[Figure, Any]:
    """Return a new figure and its axes, [rows, columns]."""
    from matplotlib.figure import Figure

    # A single panel has the width of a journal's column, three that of its page.
    figure = Figure(figsize=(max(3.4, 2.35 * columns), 1.95 * rows + 0.15), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=share_y)


def _row_label(axis: Axes, name: str | None) -> None:
    """Write the name of a row in bold beside the label of its y axis."""
    if name is not None:
        axis.annotate(
            name, (0, 0.5), (-36, 0), xycoords="axes fraction", textcoords="offset points",
            rotation=90, ha="right", va="center", weight="bold", size=9,
        )  # fmt: skip


def legend(figure: Figure) -> None:
    """Add one legend above the panels: colors mean the same in all of them."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, text in zip(*axis.get_legend_handles_labels()):
            entries.setdefault(text, handle)
    width, height = figure.get_size_inches()
    columns = max(1, min(len(entries), int(width / 1.6)))
    figure.set_size_inches(width, height + 0.18 * -(-len(entries) // columns))  # the panels keep their height
    figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=columns)


@contextmanager
def styled() -> Iterator[None]:
    """Apply our matplotlib settings inside the context only."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'twotemp[plots]'") from None
    with rc_context(style.RC):
        yield
