"""Draw the frontier of a race: the pass rate of every candidate against its cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twotemp.records import Policy
from twotemp.report import style
from twotemp.report.figures import save, styled
from twotemp.report.names import NAMES

if TYPE_CHECKING:
    from twotemp.tuning import Standing


def draw_frontier(points: Sequence[Standing[Policy]], goal: str, title: str, path: Path) -> None:
    """Draw finalists with intervals and a line through the frontier; eliminated candidates are small.

    Args:
        points: Where each candidate ended.
        goal: The label of the y axis.
        title: The title of the figure.
        path: Where to save it, without a suffix.
    """
    with styled():
        from matplotlib.figure import Figure
        from matplotlib.ticker import ScalarFormatter

        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axis = figure.subplots()
        ends = sorted((p for p in points if p.on_frontier), key=lambda p: p.cost)
        axis.plot(
            [p.cost for p in ends], [100 * p.mean for p in ends], color=style.INK, linewidth=0.8, zorder=2
        )
        named: set[str] = set()
        for point in points:
            line = style.line(point.candidate)
            name = NAMES.get(point.candidate.name, point.candidate.name)
            bars = None
            if point.finalist:
                bars = [[100 * (point.mean - point.low)], [100 * (point.high - point.mean)]]
            axis.errorbar(
                [point.cost],
                [100 * point.mean],
                bars,
                color=line["color"],
                marker=line["marker"],
                linestyle="none",
                markersize=4.5 if point.finalist else 2.2,
                alpha=1.0 if point.finalist else 0.45,
                elinewidth=0.8,
                label=name if name not in named else None,
                zorder=4 if point.finalist else 3,
            )
            named.add(name)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(ScalarFormatter())
        axis.set_xlabel("NFE per question")
        axis.set_ylabel(f"{goal} (%)")
        axis.set_title(title)
        figure.legend(loc="outside right upper")
        save(path.parent, path.name, figure)
