"""The paper's tables: pass@k with intervals, as Markdown, LaTeX and CSV, and as rows for a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twotemp.analysis import Graded, unique
from twotemp.metrics.bootstrap import LEAST
from twotemp.report import style

HEAD = ("Dataset", "Method", "NFE", "forwards", "n")


INTERVALS = (
    "In parentheses the 95 % interval over questions (Bayesian bootstrap, 10,000 resamples); fewer than "
    f"{LEAST} questions get none."
)


@dataclass(frozen=True)
class Entry:
    """pass@k in percent with its 95 % interval."""

    mean: float
    low: float  # NaN: too few questions for an interval
    high: float
    best: bool  # the highest mean of its column within a dataset
    questions: int | None  # how many questions it rests on, where it is not all of its dataset

    @property
    def note(self) -> str:
        return "" if self.questions is None else f" ({self.questions} questions)"


@dataclass(frozen=True)
class Row:
    series: Graded
    nfe: float
    forwards: float
    cells: tuple[Entry | None, ...]  # None: fewer than k samples


def blocks(series: Sequence[Graded], ks: Sequence[int]) -> Iterator[list[Row]]:
    """The rows of one dataset and model after the other, best values marked."""
    for model, task in unique((s.model, s.task) for s in series):
        here = [s for s in series if s.model == model and s.task == task]
        every = frozenset[str]().union(*(s.questions for s in here))
        columns = [list(_column(here, k, every)) for k in ks]
        for_row = zip(here, zip(*columns))
        yield [Row(one, one.cost("nfe"), one.cost("forwards"), entries) for one, entries in for_row]


def _column(cells: Sequence[Graded], k: int, every: frozenset[str]) -> Iterator[Entry | None]:
    """pass@k of each; the best is marked only where all means are over the same questions."""
    reach = [one for one in cells if k <= one.samples]
    comparable = len({one.questions_at(k) for one in reach}) == 1
    top = max((float(one.curve.mean[k - 1]) for one in reach), default=0.0)
    for one in cells:
        if k > one.samples:
            yield None
            continue
        mean, low, high = (float(x[k - 1]) for x in (one.curve.mean, one.curve.low, one.curve.high))
        few, best = int(one.curve.questions[k - 1]), comparable and mean == top
        yield Entry(100 * mean, 100 * low, 100 * high, best, few if few < len(every) else None)


def spelled(mean: float, low: float, high: float, digits: int = 1) -> str:
    """`95.0 (77.1–99.6)`; the mean alone where there is no interval."""
    return f"{mean:.1f}" if np.isnan(low) else f"{mean:.1f} ({low:.{digits}f}–{high:.{digits}f})"


def rows_as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers in six digits; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            ("" if np.isnan(cell) else f"{cell:.6g}") if isinstance(cell, float) else cell for cell in row
        )
    return out.getvalue()


def markdown(series: Sequence[Graded], ks: Sequence[int]) -> str:
    """One table; datasets in blocks, the best of each column in bold."""
    lines = [
        "| " + " | ".join([*HEAD, *(f"k = {k}" for k in ks)]) + " |",
        "|" + "---|" * 2 + "---:|" * (len(HEAD) - 2 + len(ks)),
    ]
    several = len({s.model for s in series}) > 1
    for block in blocks(series, ks):
        for row in block:
            one = row.series
            name = style.task_name(one.task) + (f", {style.model_name(one.model)}" if several else "")
            cells = [
                "–" if c is None else _strong(c, spelled(c.mean, c.low, c.high) + c.note) for c in row.cells
            ]
            lines.append(
                "| "
                + " | ".join(
                    [
                        name if row is block[0] else "",
                        style.label(one.policy, plain=True),
                        f"{row.nfe:.1f}",
                        f"{row.forwards:.1f}",
                        count(one),
                        *cells,
                    ]
                )
                + " |"
            )
    return "\n".join(lines) + "\n"


def _strong(cell: Entry, text: str) -> str:
    return f"**{text}**" if cell.best else text


def count(one: Graded) -> str:
    """Samples per question; ungraded ones are said, since they are left out."""
    return f"{one.samples}" + (f" ({one.table.ungraded} ungraded)" if one.table.ungraded else "")


def latex(series: Sequence[Graded], ks: Sequence[int]) -> str:
    r"""The paper's layout: booktabs, \multirow datasets, small intervals; a heading row for each model."""
    width = 4 + len(ks)
    lines = [
        "% needs the packages booktabs, multirow and graphicx",
        r"\begin{table}[h]",
        r"\centering",
        rf"\caption{{{caption(series)}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{llrr{'c' * len(ks)}}}",
        r"\toprule",
        rf"& & & & \multicolumn{{{len(ks)}}}{{c}}{{$k$}} \\",
        rf"\cmidrule(lr){{5-{width}}}",
        " & ".join(["Dataset", "Method", "NFE", "Forwards", *map(str, ks)]) + r" \\",
        r"\midrule",
    ]
    said = None
    for block in blocks(series, ks):
        model = block[0].series.model
        if model != said:
            if said is not None:
                lines.append(r"\midrule")
            lines += [
                rf"\multicolumn{{{width}}}{{c}}{{\textit{{{_tex(style.model_name(model))}}}}} \\",
                r"\midrule",
            ]
            said = model
        elif lines[-1].endswith(r"\\"):
            lines.append(rf"\cmidrule(lr){{1-{width}}}")
        for row in block:
            first = rf"\multirow{{{len(block)}}}{{*}}{{{_tex(style.task_name(row.series.task))}}}"
            name = style.label(row.series.policy)
            if row.series.policy.name in style.TEMPERED:
                method, _, rest = name.partition(" ")
                name = rf"\textbf{{{method}}} {rest}"
            parts = [first if row is block[0] else "", name, f"{row.nfe:.0f}", f"{row.forwards:.0f}"]
            lines.append(" & ".join(parts + [_latex_cell(c) for c in row.cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Entry | None) -> str:
    if cell is None:
        return "--"
    mean = rf"\textbf{{{cell.mean:.1f}}}" if cell.best else f"{cell.mean:.1f}"
    below, above = cell.mean - cell.low, cell.high - cell.mean
    span = "" if np.isnan(below) else f"$_{{-{below:.1f}}}^{{+{above:.1f}}}$"
    return mean + span + (rf"{{\scriptsize{cell.note}}}" if cell.note else "")


def _tex(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def caption(series: Sequence[Graded]) -> str:
    """What the numbers are, in the words of the paper's captions; LaTeX."""
    sizes = ", ".join(
        f"{style.task_name(task)} {max(len(s.questions) for s in series if s.task == task)} questions"
        for task in unique(s.task for s in series)
    )
    graders = ", ".join(unique(s.grader for s in series))
    samples = "--".join(map(str, sorted({min(s.samples for s in series), max(s.samples for s in series)})))
    ungraded = sum(s.table.ungraded for s in series)
    return (
        r"Pass@$k$ (\%) with 95\% intervals (Bayesian bootstrap over questions, 10{,}000 resamples, "
        f"{samples} samples per question). Values are means with the distances to both ends of the interval; "
        f"best value per column within each dataset block in bold. Evaluation sets: {_tex(sizes)}. NFE is the mean "
        "number of function evaluations per sample (autoregressive: tokens before EOS; others: steps until all "
        f"positions are unmasked), Forwards the passes actually run. Grader: {_tex(graders)}; "
        f"{ungraded} samples ungraded and left out."
    )


COLUMNS = (
    "model", "task", "policy", "label", "t_token", "t_pos", "threshold", "length", "block", "grader", "questions",
    "n", "ungraded", "nfe", "forwards", "seconds", "tokens_per_forward", "k", "pass", "low", "high",
    "questions_at_k",
)  # fmt: skip


def as_csv(series: Sequence[Graded], ks: Sequence[int]) -> str:
    """One line for each series and k, with everything the other tables leave out; rates are in [0, 1]."""

    def rows() -> Iterator[list[object]]:
        for one in series:
            p, c, curve = one.policy, one.config, one.curve
            same = [one.model, one.task, p.name, style.label(p, plain=True), str(p.t_token), str(p.t_pos),
                    str(p.threshold), c.length, c.block, one.grader, len(one.questions), one.samples,
                    one.table.ungraded, one.cost("nfe"), one.cost("forwards"), one.cost("seconds"),
                    one.tokens_per_forward]  # fmt: skip
            for k in ks:
                if k <= one.samples:
                    rates = (float(r[k - 1]) for r in (curve.mean, curve.low, curve.high))
                    yield [*same, k, *rates, int(curve.questions[k - 1])]

    return rows_as_csv(COLUMNS, rows())
