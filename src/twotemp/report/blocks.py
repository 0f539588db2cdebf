"""The blocks of a viewer page's overview as JSON data: sentences, charts and tables, whatever kind of run it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Part = dict[str, Any]


def sentences(title: str, items: Sequence[str]) -> Part:
    """Return a block of sentences."""
    return {"kind": "sentences", "title": title, "items": list(items)}


def charts(title: str, items: Sequence[Part]) -> Part:
    """Return a block of charts."""
    return {"kind": "charts", "title": title, "items": list(items)}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Part:
    """Return a block with a table; an entry is a text, a number, or a text with the value that it sorts by."""
    return {"kind": "table", "title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def curve_chart(title: str, x: str, series: list[Part], *, log: bool = False, percent: bool = False) -> Part:
    """Return a chart.

    Args:
        title: Its title.
        x: What the horizontal axis counts.
        series: The curves, as `curve` returns them.
        log: Whether the horizontal axis is logarithmic at first.
        percent: Whether values are shares.
    """
    return {"title": title, "x": {"label": x, "log": log}, "y": {"percent": percent}, "series": series}


def curve(name: str, color: str, x: Any, mean: Any, low: Any = None, high: Any = None, **more: Any) -> Part:
    """Return a curve; what is not finite is null.

    Args:
        name: Its name in the legend.
        color: Its color.
        x: Where it has points.
        mean: Their heights.
        low: The lower ends of their intervals.
        high: The upper ends.
        **more: What else the page knows of a curve: `points` draws separate points.
    """

    def numbers(values: Any) -> list[float | None]:
        return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]

    columns = {"x": numbers(x), "y": numbers(mean)}
    if low is not None and high is not None:
        columns |= {"low": numbers(low), "high": numbers(high)}
    return {"name": name, "color": color, **columns, **more}
