"""Tables of pass@k with intervals: Markdown, LaTeX, CSV, and blocks of rows for a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twotemp.analysis import GradedCell, unique
from twotemp.errors import counted
from twotemp.metrics import Estimate
from twotemp.metrics.estimates import FEWEST_QUESTIONS
from twotemp.report import style
from twotemp.report.style import dataset, label, model_name, task_name

INTERVALS = (
    "In parentheses the 95 % interval over questions (Bayesian bootstrap, 10,000 resamples); fewer than "
    f"{FEWEST_QUESTIONS} questions get none."
)


@dataclass(frozen=True)
class RateEntry:
    """A rate in percent with its 95 % interval."""

    mean: float
    low: float  # NaN: too few questions for an interval
    high: float
    best: bool  # the highest mean of its column, if all are over the same questions
    questions: int | None  # how many questions it averages over, if not all of its block

    def text(self, digits: int = 1) -> str:
        """Return `95.0 (77.1–99.6)`; the mean alone if there is no interval."""
        span = "" if np.isnan(self.low) else f" ({self.low:.{digits}f}–{self.high:.{digits}f})"
        return f"{self.mean:.1f}{span}{self.note}"

    @property
    def note(self) -> str:
        return "" if self.questions is None else f" ({self.questions} questions)"


@dataclass(frozen=True)
class TableRow:
    """One policy, with an entry per k."""

    cell: GradedCell
    entries: tuple[RateEntry | None, ...]  # None: fewer than k samples


@dataclass(frozen=True)
class TableBlock:
    """The policies that are compared with each other."""

    names: tuple[str, ...]  # the dataset, and the selector if there is one
    rows: tuple[TableRow, ...]


def block(
    names: Sequence[str], curves: Sequence[tuple[GradedCell, Estimate, Sequence[int]]], ks: Sequence[int]
) -> TableBlock:
    """Build a block.

    Args:
        names: See `TableBlock`.
        curves: Per policy its cell, an estimate, and the k of each column of the estimate.
        ks: The columns of the table.
    """
    questions = {question for cell, _, _ in curves for question in cell.questions}
    columns = []
    for k in ks:
        indices = [list(own).index(k) if k in own else None for _, _, own in curves]
        reach = [(cell, estimate.mean[i]) for (cell, estimate, _), i in zip(curves, indices) if i is not None]
        # Means over different questions are not comparable: then no entry is the best.
        same = len({cell.questions_at(k) for cell, _ in reach}) == 1
        top = max(mean for _, mean in reach) if same else None
        columns.append(
            [
                None if i is None else _entry(e, i, top, len(questions))
                for (_, e, _), i in zip(curves, indices)
            ]
        )
    return TableBlock(
        tuple(names), tuple(TableRow(cell, entries) for (cell, _, _), entries in zip(curves, zip(*columns)))
    )


def _entry(estimate: Estimate, column: int, top: float | None, questions: int) -> RateEntry:
    mean, low, high = (100 * float(x[column]) for x in (estimate.mean, estimate.low, estimate.high))
    count = int(estimate.questions[column])
    return RateEntry(
        mean, low, high, bool(estimate.mean[column] == top), count if count < questions else None
    )


def blocks(cells: Sequence[GradedCell], ks: Sequence[int]) -> Iterator[TableBlock]:
    """Yield a block of pass@k per model and dataset."""
    for key in unique((cell.model, cell.task) for cell in cells):
        group = [cell for cell in cells if (cell.model, cell.task) == key]
        curves = [(cell, cell.curve, range(1, cell.samples + 1)) for cell in group]
        yield block([dataset(*key, [cell.model for cell in cells])], curves, ks)


def markdown(cells: Sequence[GradedCell], ks: Sequence[int]) -> str:
    """Return one table with a block per dataset, the best of each column in bold."""

    def numbers(cell: GradedCell) -> list[str]:
        # Ungraded samples are mentioned, since they are left out.
        ungraded = f" ({cell.table.ungraded} ungraded)" if cell.table.ungraded else ""
        return [f"{cell.cost('nfe'):.1f}", f"{cell.cost('forwards'):.1f}", f"{cell.samples}{ungraded}"]

    return as_markdown(["Dataset"], ["NFE", "forwards", "n"], numbers, blocks(cells, ks), ks)


def as_markdown(
    names: Sequence[str],
    columns: Sequence[str],
    numbers: Callable[[GradedCell], list[str]],
    shown: Iterable[TableBlock],
    ks: Sequence[int],
) -> str:
    """Return blocks as one Markdown table.

    Args:
        names: The headings of the blocks' names.
        columns: The headings of the numbers between a policy's name and its rates.
        numbers: Those numbers of a cell.
        shown: The blocks.
        ks: The k of each entry of a row.
    """
    lines = [[*names, "Method", *columns, *(f"k = {k}" for k in ks)]]
    lines.append(["---"] * (len(names) + 1) + ["---:"] * (len(columns) + len(ks)))
    for part in shown:
        for row in part.rows:
            head = part.names if row is part.rows[0] else [""] * len(names)
            rates = ["–" if e is None else f"**{e.text()}**" if e.best else e.text() for e in row.entries]
            lines.append([*head, label(row.cell.policy, plain=True), *numbers(row.cell), *rates])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def rows_as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV: floats with six digits, empty for NaN."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            ("" if np.isnan(value) else f"{value:.6g}") if isinstance(value, float) else value
            for value in row
        )
    return out.getvalue()


def latex(cells: Sequence[GradedCell], ks: Sequence[int]) -> str:
    r"""Return the table in the paper's layout: booktabs, \multirow datasets, small intervals, a heading per model."""
    width = 4 + len(ks)
    lines = [
        "% needs the packages booktabs, multirow and graphicx",
        r"\begin{table}[h]",
        r"\centering",
        rf"\caption{{{caption(cells)}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{llrr{'c' * len(ks)}}}",
        r"\toprule",
        rf"& & & & \multicolumn{{{len(ks)}}}{{c}}{{$k$}} \\",
        rf"\cmidrule(lr){{5-{width}}}",
        " & ".join(["Dataset", "Method", "NFE", "Forwards", *map(str, ks)]) + r" \\",
        r"\midrule",
    ]
    heading = None
    for part in blocks(cells, ks):
        model = part.rows[0].cell.model
        if model != heading:
            if heading is not None:
                lines.append(r"\midrule")
            lines += [
                rf"\multicolumn{{{width}}}{{c}}{{\textit{{{_tex(model_name(model))}}}}} \\",
                r"\midrule",
            ]
            heading = model
        elif lines[-1].endswith(r"\\"):
            lines.append(rf"\cmidrule(lr){{1-{width}}}")
        for row in part.rows:
            cell = row.cell
            first = rf"\multirow{{{len(part.rows)}}}{{*}}{{{_tex(task_name(cell.task))}}}"
            # A plug-in's name may need escapes; what is between dollars is LaTeX already.
            pieces = label(cell.policy).split("$")
            name = "$".join(piece if i % 2 else _tex(piece) for i, piece in enumerate(pieces))
            if cell.policy.name in style.TEMPERED:
                method, _, rest = name.partition(" ")
                name = rf"\textbf{{{method}}} {rest}"
            costs = [f"{cell.cost('nfe'):.0f}", f"{cell.cost('forwards'):.0f}"]
            columns = [first if row is part.rows[0] else "", name, *costs, *map(_latex_entry, row.entries)]
            lines.append(" & ".join(columns) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_entry(entry: RateEntry | None) -> str:
    if entry is None:
        return "--"
    mean = rf"\textbf{{{entry.mean:.1f}}}" if entry.best else f"{entry.mean:.1f}"
    below, above = entry.mean - entry.low, entry.high - entry.mean
    span = "" if np.isnan(below) else f"$_{{-{below:.1f}}}^{{+{above:.1f}}}$"
    return mean + span + (rf"{{\scriptsize{entry.note}}}" if entry.note else "")


def _tex(text: str) -> str:
    return re.sub(r"([_%&#])", r"\\\1", text)


def caption(cells: Sequence[GradedCell]) -> str:
    """Return the caption in LaTeX, in the words of the paper's captions."""
    sizes = ", ".join(
        f"{task_name(task)} {max(len(cell.questions) for cell in cells if cell.task == task)} questions"
        for task in unique(cell.task for cell in cells)
    )
    graders = ", ".join(unique(cell.grader for cell in cells))
    counts = [cell.samples for cell in cells]
    samples = "--".join(map(str, sorted({min(counts), max(counts)})))
    ungraded = sum(cell.table.ungraded for cell in cells)
    left_out = f"; {counted(ungraded, 'sample')} ungraded and left out" if ungraded else ""
    return (
        r"Pass@$k$ (\%) with 95\% intervals (Bayesian bootstrap over questions, 10{,}000 resamples, "
        f"{samples} samples per question). Values are means with the distances to both ends of the interval; "
        f"best value per column within each dataset block in bold. Evaluation sets: {_tex(sizes)}. NFE is the mean "
        "number of function evaluations per sample (autoregressive: tokens before EOS; others: steps until all "
        f"positions are unmasked), Forwards the passes actually run. Grader: {_tex(graders)}"
        f"{left_out}."
    )


COLUMNS = (
    "model", "task", "policy", "label", "t_token", "t_pos", "threshold", "length", "block", "grader", "questions",
    "n", "ungraded", "nfe", "forwards", "seconds", "tokens_per_forward", "k", "pass", "low", "high",
    "questions_at_k",
)  # fmt: skip


def as_csv(cells: Sequence[GradedCell], ks: Sequence[int]) -> str:
    """Return one line per cell and k, with everything the other tables leave out; rates are in [0, 1]."""

    def rows() -> Iterator[list[object]]:
        for cell in cells:
            p, c, curve = cell.policy, cell.config, cell.curve
            # A portfolio has no number of its own.
            numbers = [str(getattr(p, name, "")) for name in ("t_token", "t_pos", "threshold")]
            same = [cell.model, cell.task, p.name, label(p, plain=True), *numbers, c.length, c.block, cell.grader,
                    len(cell.questions), cell.samples, cell.table.ungraded, cell.cost("nfe"),
                    cell.cost("forwards"), cell.cost("seconds"), cell.tokens_per_forward]  # fmt: skip
            for k in ks:
                if k <= cell.samples:
                    rates = (float(r[k - 1]) for r in (curve.mean, curve.low, curve.high))
                    yield [*same, k, *rates, int(curve.questions[k - 1])]

    return rows_as_csv(COLUMNS, rows())
