"""The paper's tables: pass@k with intervals, as Markdown, LaTeX and CSV, and as rows for a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twotemp.analysis import Graded, unique
from twotemp.analysis.names import dataset
from twotemp.metrics import Estimate
from twotemp.metrics.bootstrap import LEAST
from twotemp.report import style

Cells = Callable[[Graded], list[str]]  # what a row says between the policy's name and its numbers
INTERVALS = (
    "In parentheses the 95 % interval over questions (Bayesian bootstrap, 10,000 resamples); fewer than "
    f"{LEAST} questions get none."
)


@dataclass(frozen=True)
class Entry:
    """A rate in percent with its 95 % interval."""

    mean: float
    low: float  # NaN: too few questions for an interval
    high: float
    best: bool  # the highest mean of its column, where all are over the same questions
    questions: int | None  # how many questions it rests on, where it is not all of its block

    def text(self, digits: int = 1) -> str:
        """`95.0 (77.1–99.6)`; the mean alone where there is no interval."""
        span = "" if np.isnan(self.low) else f" ({self.low:.{digits}f}–{self.high:.{digits}f})"
        return f"{self.mean:.1f}{span}{self.note}"

    @property
    def note(self) -> str:
        return "" if self.questions is None else f" ({self.questions} questions)"


@dataclass(frozen=True)
class Row:
    cell: Graded
    entries: tuple[Entry | None, ...]  # None: fewer than k samples


@dataclass(frozen=True)
class Block:
    """Policies that are compared with each other."""

    names: tuple[str, ...]  # the dataset, and what else the rows share
    rows: tuple[Row, ...]


def block(
    names: Sequence[str], curves: Sequence[tuple[Graded, Estimate, Sequence[int]]], ks: Sequence[int]
) -> Block:
    """curves: for each policy an estimate whose columns are these ks."""
    every = {question for cell, _, _ in curves for question in cell.questions}
    columns = []
    for k in ks:
        at = [list(own).index(k) if k in own else None for _, _, own in curves]
        reach = [(cell, estimate.mean[i]) for (cell, estimate, _), i in zip(curves, at) if i is not None]
        # Means over different questions are not comparable: then none is the best.
        same = len({cell.questions_at(k) for cell, _ in reach}) == 1
        top = max(mean for _, mean in reach) if same else None
        columns.append(
            [None if i is None else _entry(e, i, top, len(every)) for (_, e, _), i in zip(curves, at)]
        )
    return Block(
        tuple(names), tuple(Row(cell, entries) for (cell, _, _), entries in zip(curves, zip(*columns)))
    )


def _entry(estimate: Estimate, at: int, top: float | None, questions: int) -> Entry:
    mean, low, high = (100 * float(x[at]) for x in (estimate.mean, estimate.low, estimate.high))
    few = int(estimate.questions[at])
    return Entry(mean, low, high, bool(estimate.mean[at] == top), few if few < questions else None)


def blocks(cells: Sequence[Graded], ks: Sequence[int]) -> Iterator[Block]:
    """pass@k, one dataset and model after the other."""
    for key in unique((one.model, one.task) for one in cells):
        here = [one for one in cells if (one.model, one.task) == key]
        curves = [(one, one.curve, range(1, one.samples + 1)) for one in here]
        yield block([dataset(*key, [one.model for one in cells])], curves, ks)


def markdown(cells: Sequence[Graded], ks: Sequence[int]) -> str:
    """One table; datasets in blocks, the best of each column in bold."""

    def about(one: Graded) -> list[str]:
        # Ungraded samples are said, since they are left out.
        failed = f" ({one.table.ungraded} ungraded)" if one.table.ungraded else ""
        return [f"{one.cost('nfe'):.1f}", f"{one.cost('forwards'):.1f}", f"{one.samples}{failed}"]

    return as_markdown(["Dataset"], ["NFE", "forwards", "n"], about, blocks(cells, ks), ks)


def as_markdown(
    names: Sequence[str], numbers: Sequence[str], about: Cells, shown: Iterable[Block], ks: Sequence[int]
) -> str:
    lines = [[*names, "Method", *numbers, *(f"k = {k}" for k in ks)]]
    lines.append(["---"] * (len(names) + 1) + ["---:"] * (len(numbers) + len(ks)))
    for one in shown:
        for row in one.rows:
            head = one.names if row is one.rows[0] else [""] * len(names)
            cells = ["–" if e is None else f"**{e.text()}**" if e.best else e.text() for e in row.entries]
            lines.append([*head, style.label(row.cell.policy, plain=True), *about(row.cell), *cells])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


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
    heading = None
    for one in blocks(series, ks):
        model = one.rows[0].cell.model
        if model != heading:
            if heading is not None:
                lines.append(r"\midrule")
            lines += [
                rf"\multicolumn{{{width}}}{{c}}{{\textit{{{_tex(style.model_name(model))}}}}} \\",
                r"\midrule",
            ]
            heading = model
        elif lines[-1].endswith(r"\\"):
            lines.append(rf"\cmidrule(lr){{1-{width}}}")
        for row in one.rows:
            cell = row.cell
            first = rf"\multirow{{{len(one.rows)}}}{{*}}{{{_tex(style.task_name(cell.task))}}}"
            # A plug-in's name may be anything; what stands between dollars is LaTeX already.
            said = style.label(cell.policy).split("$")
            name = "$".join(part if at % 2 else _tex(part) for at, part in enumerate(said))
            if cell.policy.name in style.TEMPERED:
                method, _, rest = name.partition(" ")
                name = rf"\textbf{{{method}}} {rest}"
            costs = [f"{cell.cost('nfe'):.0f}", f"{cell.cost('forwards'):.0f}"]
            parts = [first if row is one.rows[0] else "", name, *costs, *map(_latex_cell, row.entries)]
            lines.append(" & ".join(parts) + r" \\")
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
    return re.sub(r"([_%&#])", r"\\\1", text)


def caption(series: Sequence[Graded]) -> str:
    """What the numbers are, in the words of the paper's captions; LaTeX."""
    sizes = ", ".join(
        f"{style.task_name(task)} {max(len(s.questions) for s in series if s.task == task)} questions"
        for task in unique(s.task for s in series)
    )
    graders = ", ".join(unique(s.grader for s in series))
    samples = "--".join(map(str, sorted({min(s.samples for s in series), max(s.samples for s in series)})))
    ungraded = sum(s.table.ungraded for s in series)
    left_out = f"; {ungraded} samples ungraded and left out" if ungraded else ""
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
