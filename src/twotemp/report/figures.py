"""The paper's figures, from whatever a run has data for. Matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from twotemp.analysis import Graded, k_grid, representatives, unique
from twotemp.analysis.names import dataset, family_labels
from twotemp.errors import UserError
from twotemp.metrics import Estimate
from twotemp.records import Policy
from twotemp.report import style

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
class Drawn:
    """A figure on disk: `path` is the PNG, the PDF lies beside it."""

    name: str
    path: Path
    caption: str


def available() -> bool:
    """Whether there is anything to draw with."""
    return find_spec("matplotlib") is not None


def draw(series: Sequence[Graded], folder: Path) -> list[Drawn]:
    """Draw every figure there is data for."""
    drawn = []
    with look():
        for name, figure_of in FIGURES.items():
            found = figure_of(series)
            if found is not None:
                drawn.append(save(folder, name, *found))
    return drawn


def save(folder: Path, name: str, figure: Figure, caption: str = "") -> Drawn:
    figure.draw_without_rendering()  # lays the panels out, once for all formats
    figure.set_layout_engine("none")
    for kind in FORMATS:
        figure.savefig(folder / f"{name}.{kind}")
    return Drawn(name, folder / f"{name}.png", caption)


Made: TypeAlias = "tuple[Figure, str] | None"


def pass_at_k(series: Sequence[Graded]) -> Made:
    """Fixed-budget policies: a row for each model, a column for each task (the paper's TLC figure)."""
    chosen = [s for s in representatives(series) if s.policy.rule == "budget"]
    if not _comparable(chosen):
        return None
    several = len({s.model for s in chosen}) > 1
    figure = _matrix(chosen, "model", "task", label_rows=several)
    return figure, f"Pass@k of policies that commit K tokens per step. {BANDS}"


def pass_at_nfe(series: Sequence[Graded]) -> Made:
    """Adaptive policies beside AR: pass@k above pass@NFE, a column for each task (the paper's TCT figure)."""
    return _adaptive(
        series,
        ("k", "nfe"),
        "Pass@k (top) and pass@NFE (bottom): the same data, only the x axis changes. AR's NFE counts tokens before "
        f"EOS, the others' the steps until every position is written. {BANDS}",
    )


def wall_clock(series: Sequence[Graded]) -> Made:
    """Pass@k, pass@NFE and pass@wall-clock of adaptive policies beside AR."""
    return _adaptive(
        series,
        ("k", "nfe", "seconds"),
        "Pass@k, pass@NFE and pass@wall-clock. Seconds are those a row spent in its batch, so they compare "
        f"policies of one run on one machine. {BANDS}",
        across=True,
    )


def _adaptive(series: Sequence[Graded], kinds: Sequence[Axis], caption: str, across: bool = False) -> Made:
    """A panel for each task and x axis; `across`: the axes run from left to right instead of downwards."""
    every = representatives(series)
    adaptive = [s for s in every if s.policy.rule != "budget"]
    # The figure is about the adaptive ones; AR is the yardstick where the run has it.
    chosen = [s for s in every if s.policy.name == "ar"] + adaptive
    if not adaptive or not _comparable(chosen):
        return None
    called = _called(chosen)
    models, tasks = unique(s.model for s in chosen), unique(s.task for s in chosen)
    there = unique((s.model, s.task) for s in chosen)
    rows = there if across else [(model, task) for model in models for task in tasks]
    figure, axes = grid(*((len(rows), len(kinds)) if across else (len(models) * len(kinds), len(tasks))))
    for at, (model, task) in enumerate(rows):
        here = [s for s in chosen if s.model == model and s.task == task]
        block, column = divmod(at, len(tasks))
        panels = axes[at] if across else axes[block * len(kinds) : (block + 1) * len(kinds), column]
        for axis, kind in zip(panels, kinds):
            _panel(axis, here, kind, called)
            axis.set_xlabel(AXES[kind])
            axis.set_ylabel(METRICS[kind] if across or not column else "")
        name = style.model_name(model) if len(models) > 1 else None
        if across:
            _row_label(panels[0], dataset(model, task, [cell[0] for cell in rows]))
        else:
            panels[0].set_title(style.task_name(task) if not block else "")
            _row_label(panels[0], name if not column else None)
    legend(figure)
    return figure, caption


_ENDS = {"budget": ("ar", "lc", "random"), "threshold": ("ar", "ct")}  # what a sweep of T_pos lies between


def t_pos(series: Sequence[Graded]) -> Made:
    """A tempered family at several T_pos, with its two ends and AR; a column for each task."""
    varied = _varied(series, "t_pos")
    if not varied:
        return None
    cells = unique((s.model, s.task, s.policy.name) for s in varied)
    figure, axes = grid(1, len(cells))
    for axis, (model, task, name) in zip(axes[0], cells):
        here = [s for s in series if s.model == model and s.task == task]
        family = sorted((s for s in here if s.policy.name == name), key=lambda s: s.policy.t_pos)
        ends = [s for s in here if s.policy.name in _ENDS.get(family[0].policy.rule, ("ar",))]
        for one in ends:
            _curve(axis, one, "k", style.line(one.policy), style.label(one.policy))
        for place, one in enumerate(family):
            _curve(axis, one, "k", style.ramp(one.policy, place, len(family)), style.label(one.policy))
        power_ticks(axis, family)
        axis.set_title(dataset(model, task, [cell[0] for cell in cells]))
        axis.set_xlabel(AXES["k"])
    axes[0, 0].set_ylabel(METRICS["k"])
    legend(figure)
    return figure, f"Pass@k as the position temperature varies. {BANDS}"


def t_token(series: Sequence[Graded]) -> Made:
    """A panel for each token temperature with every policy; the last has the largest k against the temperature."""
    varied = _varied(series, "t_token")
    if not varied:
        return None
    temperatures = sorted({s.policy.t_token for s in varied})
    cells = unique((s.model, s.task) for s in varied)
    columns = len(temperatures) + 1 if len(temperatures) < 4 else 3  # more would not be readable on a page
    lines = -(-(len(temperatures) + 1) // columns)
    most = min(s.samples for s in varied)
    figure, axes = grid(len(cells) * lines, columns, share_y="row")
    for at, (model, task) in enumerate(cells):
        here = [s for s in varied if s.model == model and s.task == task]
        panels = axes[at * lines : (at + 1) * lines].ravel()
        for axis, temperature in zip(panels, temperatures):
            shown = [s for s in here if s.policy.t_token == temperature]
            _panel(axis, shown, "k", partial(style.label, hide=("t_token",)))
            axis.set_title(rf"$T_\mathrm{{token}}={temperature:g}$")
            axis.set_xlabel(AXES["k"])
        _against_t_token(panels[len(temperatures)], here, most)
        for axis in panels[len(temperatures) + 1 :]:
            axis.set_visible(False)
        for axis in panels[::columns]:
            axis.set_ylabel(METRICS["k"])
        _row_label(panels[0], dataset(model, task, [cell[0] for cell in cells]))
    legend(figure)
    return figure, f"Pass@k as the token temperature varies; the last panel has the largest k. {BANDS}"


def _against_t_token(axis: Axes, series: Sequence[Graded], k: int) -> None:
    families: dict[Policy, list[Graded]] = {}
    for one in sorted(series, key=lambda s: s.policy.t_token):
        families.setdefault(replace(one.policy, t_token=0.0), []).append(one)
    for policy, family in families.items():
        look, x = style.line(policy), [s.policy.t_token for s in family]
        at_k = {f.name: np.array([getattr(s.curve, f.name)[k - 1] for s in family]) for f in fields(Estimate)}
        band(axis, x, Estimate(**at_k), look, "")
    axis.set_xticks(sorted({s.policy.t_token for s in series}))
    axis.set_xlabel(r"$T_\mathrm{token}$")
    axis.set_title(f"pass@{k}")


def models(series: Sequence[Graded]) -> Made:
    """The same policies on several models: a column for each model, a row for each task."""
    chosen = [s for s in representatives(series) if s.policy.rule == "budget"]
    models = {task: {s.model for s in chosen if s.task == task} for task in unique(s.task for s in chosen)}
    shared = [s for s in chosen if len(models[s.task]) > 1]
    if not shared:
        return None
    figure = _matrix(shared, "task", "model", label_rows=True, share_y="row")
    return figure, f"Pass@k of the same policies on different models. {BANDS}"


FIGURES: dict[str, Callable[[Sequence[Graded]], Any]] = {
    "pass_at_k": pass_at_k,
    "pass_at_nfe": pass_at_nfe,
    "wall_clock": wall_clock,
    "t_pos": t_pos,
    "t_token": t_token,
    "models": models,
}
BANDS = "Bands: 95 % intervals over questions."


def _matrix(
    series: Sequence[Graded], rows: str, columns: str, *, label_rows: bool, share_y: Any = False
) -> Figure:
    """Pass@k in a panel for each pair: models downwards and tasks across, or the other way round."""
    called = _called(series)
    names = {"model": style.model_name, "task": style.task_name}
    down, across = (unique(getattr(s, key) for s in series) for key in (rows, columns))
    figure, axes = grid(len(down), len(across), share_y)
    for line, row in zip(axes, down):
        for axis, column in zip(line, across):
            here = [s for s in series if (getattr(s, rows), getattr(s, columns)) == (row, column)]
            _panel(axis, here, "k", called)
        line[0].set_ylabel(METRICS["k"])
        _row_label(line[0], names[rows](row) if label_rows else None)
    for top, bottom, column in zip(axes[0], axes[-1], across):
        top.set_title(names[columns](column))
        bottom.set_xlabel(AXES["k"])
    legend(figure)
    return figure


def _varied(series: Sequence[Graded], key: str) -> list[Graded]:
    """Series of policies that the run has at two or more values of one number."""
    values: dict[tuple[str, str, str], set[float]] = {}
    for one in series:
        values.setdefault((one.model, one.task, one.policy.name), set()).add(getattr(one.policy, key))
    return [s for s in series if len(values[s.model, s.task, s.policy.name]) > 1]


def _comparable(series: Sequence[Graded]) -> bool:
    return len({s.policy.name for s in series}) > 1


def _called(series: Sequence[Graded]) -> Callable[[Policy], str]:
    """One entry of the legend for each family, also where every task has its own T_pos."""
    labels = family_labels(s.policy for s in series)
    return lambda policy: labels[policy.name]


def _panel(axis: Axes, series: Sequence[Graded], kind: Axis, name: Callable[[Policy], str]) -> None:
    if not series:  # a run need not have every task of every model
        axis.set_visible(False)
        return
    for one in series:
        _curve(axis, one, kind, style.line(one.policy), name(one.policy))
    if kind == "k":
        power_ticks(axis, series)
    else:
        cost_ticks(axis)


def _curve(axis: Axes, one: Graded, kind: Axis, look: dict[str, Any], label: str) -> None:
    """Mean and band at every k; markers at the powers of two only, where the tables have numbers."""
    ks = range(1, one.samples + 1)
    x = ks if kind == "k" else one.costs(kind, ks)
    band(axis, x, one.curve, {**look, "markevery": [k - 1 for k in k_grid([one])]}, label)


def band(
    axis: Axes, x: Any, estimate: Estimate, look: dict[str, Any], label: str, scale: float = 100
) -> None:
    """A mean with its interval, in percent."""
    axis.plot(x, scale * estimate.mean, label=label, **look)
    low, high = scale * estimate.low, scale * estimate.high
    axis.fill_between(x, low, high, color=look["color"], alpha=BAND, linewidth=0, zorder=2)


def power_ticks(axis: Axes, series: Sequence[Graded]) -> None:
    *ticks, last = k_grid(series)
    ticks = [*(k for k in ticks if last > 1.4 * k), last]  # two numbers beside each other would overlap
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(k) for k in ticks])
    axis.minorticks_off()


def cost_ticks(axis: Axes) -> None:
    """A logarithmic axis with plain numbers, few enough to stand side by side."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    low, high = axis.get_xlim()
    # Within one and a half decades the powers of ten alone are too few.
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 32 * low else (1,), numticks=9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def grid(rows: int, columns: int, share_y: Any = False) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    # A single panel has the width of a journal's column, three that of its page.
    figure = Figure(figsize=(max(3.4, 2.35 * columns), 1.95 * rows + 0.15), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=share_y)


def _row_label(axis: Axes, name: str | None) -> None:
    """What the row shows, in bold beside the label of its y axis."""
    if name is not None:
        axis.annotate(
            name, (0, 0.5), (-36, 0), xycoords="axes fraction", textcoords="offset points",
            rotation=90, ha="right", va="center", weight="bold", size=9,
        )  # fmt: skip


def legend(figure: Figure) -> None:
    """One legend above the panels: colours mean the same in all of them."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, text in zip(*axis.get_legend_handles_labels()):
            entries.setdefault(text, handle)
    width, height = figure.get_size_inches()
    columns = max(1, min(len(entries), int(width / 1.6)))
    figure.set_size_inches(width, height + 0.18 * -(-len(entries) // columns))  # the panels keep their height
    figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=columns)


@contextmanager
def look() -> Iterator[None]:
    """Our settings, without touching the caller's."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'twotemp[plots]'") from None
    with rc_context(style.RC):
        yield
