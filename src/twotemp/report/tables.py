"""The paper's tables: pass@k with intervals, as Markdown, LaTeX and CSV, and as rows for a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twotemp.report import style
from twotemp.report.series import Series, unique

HEAD = ("Dataset", "Method", "NFE", "forwards", "n")


@dataclass(frozen=True)
class Cell:
    """pass@k in percent: mean ± half-width of the 95 % interval."""

    mean: float
    half: float
    best: bool  # the highest mean of its column within a dataset
    questions: int | None  # how many questions it rests on, where not all have k samples

    @property
    def note(self) -> str:
        return "" if self.questions is None else f" ({self.questions} questions)"


@dataclass(frozen=True)
class Row:
    series: Series
    nfe: float
    forwards: float
    cells: tuple[Cell | None, ...]  # None: fewer than k samples


def blocks(series: Sequence[Series], ks: Sequence[int]) -> Iterator[list[Row]]:
    """The rows of one dataset and model after the other, best values marked."""
    for model, task in unique((s.model, s.task) for s in series):
        here = [s for s in series if s.model == model and s.task == task]
        best = [
            np.nanmax([s.curve.mean[k - 1] if k <= s.samples else np.nan for s in here] + [-1.0]) for k in ks
        ]
        yield [
            Row(
                one,
                one.cost("nfe"),
                one.cost("forwards"),
                tuple(_cell(one, k, top) for k, top in zip(ks, best)),
            )
            for one in here
        ]


def _cell(one: Series, k: int, best: float) -> Cell | None:
    if k > one.samples:
        return None
    curve, at = one.curve, k - 1
    few = int(curve.questions[at])
    return Cell(
        mean=100 * float(curve.mean[at]),
        half=100 * float(curve.half_width[at]),
        best=bool(curve.mean[at] == best),
        questions=few if few < len(one.questions) else None,
    )


def markdown(series: Sequence[Series], ks: Sequence[int]) -> str:
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
                "–" if c is None else _strong(c, f"{c.mean:.1f} ± {c.half:.1f}{c.note}") for c in row.cells
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


def _strong(cell: Cell, text: str) -> str:
    return f"**{text}**" if cell.best else text


def count(one: Series) -> str:
    """Samples a question; ungraded ones are said, since they are left out."""
    return f"{one.samples}" + (f" ({one.ungraded} ungraded)" if one.ungraded else "")


def latex(series: Sequence[Series], ks: Sequence[int]) -> str:
    r"""The paper's layout: booktabs, \multirow datasets, small ±; a heading row a model."""
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


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    mean = rf"\textbf{{{cell.mean:.1f}}}" if cell.best else f"{cell.mean:.1f}"
    return mean + r"{\scriptsize$\,\pm\,$" + f"{cell.half:.1f}{cell.note}" + "}"


def _tex(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def caption(series: Sequence[Series]) -> str:
    """What the numbers are, in the words of the paper's captions; LaTeX."""
    sizes = ", ".join(
        f"{style.task_name(task)} {next(len(s.questions) for s in series if s.task == task)} questions"
        for task in unique(s.task for s in series)
    )
    graders = ", ".join(unique(s.grader for s in series))
    samples = "--".join(map(str, sorted({min(s.samples for s in series), max(s.samples for s in series)})))
    ungraded = sum(s.ungraded for s in series)
    return (
        r"Pass@$k$ (\%) with bootstrapped 95\% confidence intervals (10{,}000 resamples over questions, "
        f"{samples} samples per question). Values are mean $\\pm$ half-width of the 95\\% CI; best value per "
        f"column within each dataset block in bold. Evaluation sets: {_tex(sizes)}. NFE is the mean number of "
        "function evaluations per sample (autoregressive: tokens before EOS; others: steps until all positions "
        f"are unmasked), Forwards the passes actually run. Grader: {_tex(graders)}; "
        f"{ungraded} samples ungraded and left out."
    )


COLUMNS = (
    "model", "task", "policy", "label", "t_token", "t_pos", "threshold", "length", "block", "grader", "questions",
    "n", "ungraded", "nfe", "forwards", "seconds", "tokens_per_forward", "k", "pass", "low", "high", "half_width",
    "questions_at_k",
)  # fmt: skip


def as_csv(series: Sequence[Series], ks: Sequence[int]) -> str:
    """One line a series and k, with everything the other tables leave out; rates are in [0, 1]."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in series:
        p, curve = one.policy, one.curve
        same = [one.model, one.task, p.name, style.label(p, plain=True), p.t_token, p.t_pos, p.threshold,
                one.length, one.block, one.grader, len(one.questions), one.samples, one.ungraded,
                *(f"{one.cost(kind):.6g}" for kind in ("nfe", "forwards", "seconds")),
                f"{one.tokens_per_forward:.6g}"]  # fmt: skip
        for k in ks:
            if k > one.samples:
                continue
            rates = (curve.mean, curve.low, curve.high, curve.half_width)
            writer.writerow([*same, k, *(f"{r[k - 1]:.6g}" for r in rates), int(curve.questions[k - 1])])
    return out.getvalue()
