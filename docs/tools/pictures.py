"""Draw the figures of docs/idea.md from samples of the embedded model: `python -m docs.tools.pictures`.

They are stored in docs/figures, so that the Markdown can be read without a build. Each PNG has a hash of the
weights in its metadata, and tests/report/test_site.py fails if it is not the hash of the shipped weights.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

import twotemp
from theory.planted import LIBRARY, exact
from twotemp import tasks
from twotemp.graders.puzzles import grade_chain
from twotemp.metrics import pass_at_k
from twotemp.policies import parse
from twotemp.records import Problem, Sample
from twotemp.report.style import RC, line

FIGURES = Path(__file__).resolve().parents[1] / "figures"
NAMES = ("forks", "answers", "temperatures", "orders")
WEIGHTS = FIGURES.parents[1] / "src/twotemp/models/weights/tiny/model.safetensors"
TITLES = {
    "ar": "left to right (AR)",
    "lc": "low confidence (LC)",
    "tlc:t_pos=1": "TLC, T_pos = 1",
    "random": "random",
    "ct": "threshold (CT)",
    "tct:t_pos=0.1": "TCT, T_pos = 0.1",
}


def problems(task: str, count: int) -> Sequence[Problem]:
    """Return validation problems; the figures are illustrations and do not use test problems."""
    return tasks.get(task).problems(subset="validation").problems[:count]


def draw(model: twotemp.LanguageModel, chosen: Sequence[Problem], policy: str, n: int) -> list[Sample]:
    """Draw `n` traced samples of each problem.

    Args:
        model: the model.
        chosen: problems of one task.
        policy: the policy.
        n: samples per problem.
    """
    length = tasks.get(chosen[0].task).length
    return twotemp.sample(model, [p.prompt for p in chosen], policy, n=n, length=length, trace=True)


def forks(model: twotemp.LanguageModel) -> Figure:
    """Draw the share of programs that use each library at a planted fork, by exact enumeration for each order."""
    figure = Figure(figsize=(7.2, 2.1), layout="constrained")
    axes = figure.add_subplot()
    orders = ("ar", "lc", "tlc:t_pos=0.5", "tlc:t_pos=1", "random")
    shares = [LIBRARY["statistics"], *(exact(parse(order)).libraries["statistics"] for order in orders)]
    labels = [
        "the model itself",
        "left to right (AR)",
        "low confidence (LC)",
        "TLC, T_pos = 0.5",
        "TLC, T_pos = 1",
        "random",
    ]
    for row, share in enumerate(shares):
        axes.barh(row, 100 * share, color="#D55E00")
        axes.barh(row, 100 * (1 - share), left=100 * share, color="#d9d9d9")
        axes.text(100 * share + 1, row, f"{100 * share:.0f} %", va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the programs that take the library statistics; the others take numpy")
    return figure


def right(problem: Problem, samples: Sequence[Sample]) -> set[str]:
    """Return the texts of the samples that solve a countdown problem."""
    numbers, target = problem.reference["numbers"], problem.reference["target"]
    return {s.text for s in samples if grade_chain(numbers, target, s.text).passed}


def typical(solutions: Sequence[tuple[set[str], set[str]]]) -> int:
    """Return the index of the question that stands for all of them: the one with the median gain.

    A question's gain is the number of distinct right texts of the second policy minus that of the first. It is the
    middle one when questions are sorted by gain and, at equal gain, by position.

    Args:
        solutions: for each question, the right texts of the two policies.
    """
    gains = [len(second) - len(first) for first, second in solutions]
    return sorted(range(len(gains)), key=lambda index: (gains[index], index))[len(gains) // 2]


def answers(model: twotemp.LanguageModel) -> Figure:
    """Draw the texts of 64 samples of a typical question, and pass@k of all questions against k and against NFE."""
    chosen, n = problems("countdown-3", 100), 64
    groups: dict[str, list[list[Sample]]] = {}
    for policy in TITLES:
        samples = draw(model, chosen, policy, n)
        groups[policy] = [samples[i * n : (i + 1) * n] for i in range(len(chosen))]
    solved = {policy: [right(p, g) for p, g in zip(chosen, groups[policy])] for policy in TITLES}
    index = typical(list(zip(solved["lc"], solved["tlc:t_pos=1"])))

    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.15))
    axes = figure.add_subplot(grid[0, :])
    for row, policy in enumerate(TITLES):
        good = solved[policy][index]
        texts = Counter(sample.text for sample in groups[policy][index])
        left = 0
        for text, count in sorted(texts.items(), key=lambda item: (item[0] not in good, -item[1], item[0])):
            color = "#009E73" if text in good else "#d9d9d9"
            axes.barh(row, count, left=left, color=color, edgecolor="white", linewidth=0.8)
            left += count
        axes.text(left + 0.7, row, f"{len(texts)} texts, {len(good)} right", va="center", fontsize=8)
    axes.set_yticks(range(len(TITLES)), list(TITLES.values()))
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xlim(0, 78)
    axes.set_xticks(range(0, n + 1, 16))
    axes.set_xlabel(f"{n} samples for {chosen[index].prompt!r}; each box is one text, green: right")

    by_samples, by_nfe = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    ks = range(1, n + 1)
    for policy, title in TITLES.items():
        counts = [sum(s.text in good for s in group) for good, group in zip(solved[policy], groups[policy])]
        nfe = np.mean([sample.nfe for group in groups[policy] for sample in group])
        rates = 100 * pass_at_k(n, counts, list(ks)).mean(0)
        style = {**line(parse(policy)), "marker": "", "label": title}
        by_samples.plot(ks, rates, **style)
        by_nfe.plot(nfe * np.array(ks), rates, **style)
    for ax, label in ((by_samples, "k samples"), (by_nfe, "NFE of the k samples")):
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:.0f}")
        ax.set_ylim(55, 101)
        ax.set_xlabel(f"{label} (all {len(chosen)} questions)")
    by_samples.set_ylabel("pass@k, %")
    by_nfe.legend(loc="lower right", fontsize=7)
    return figure


def temperatures(model: twotemp.LanguageModel) -> Figure:
    """Draw how T_token and T_pos affect pass@1, pass@16 and the number of distinct texts (TLC on countdown-4)."""
    chosen, n = problems("countdown-4", 60), 16
    tokens, positions = (0.4, 0.8, 1.2), (0.0, 0.5, 1.0, 2.0)
    tables = np.zeros((3, len(tokens), len(positions)))
    for row, t_token in enumerate(tokens):
        for column, t_pos in enumerate(positions):
            samples = draw(model, chosen, f"tlc:t_token={t_token},t_pos={t_pos}", n)
            groups = [samples[i * n : (i + 1) * n] for i in range(len(chosen))]
            solved = [right(p, group) for p, group in zip(chosen, groups)]
            counts = [sum(s.text in good for s in group) for good, group in zip(solved, groups)]
            pass_1, pass_n = pass_at_k(n, counts, [1, n]).mean(0)
            distinct = np.mean([len({s.text for s in group}) for group in groups])
            tables[:, row, column] = 100 * pass_1, 100 * pass_n, distinct
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    titles = ("one sample right, %", f"one of {n} right, %", f"distinct texts of {n}")
    for table, title, axes in zip(tables, titles, figure.subplots(1, 3)):
        axes.imshow(table, cmap="cividis", origin="lower", aspect="auto")
        axes.grid(False)
        axes.set_title(title)
        axes.set_xticks(range(len(positions)), [f"{t:g}" for t in positions])
        axes.set_yticks(range(len(tokens)), [f"{t:g}" for t in tokens])
        axes.set_xlabel("T_pos: where")
        middle = (table.min() + table.max()) / 2
        for (y, x), value in np.ndenumerate(table):
            ink = "white" if value < middle else "black"
            axes.text(x, y, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=7)
    figure.axes[0].set_ylabel("T_token: what")
    return figure


def orders(model: twotemp.LanguageModel) -> Figure:
    """Draw at which step each of 24 samples of one problem committed each position."""
    chosen = problems("words-2", 1)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    policies = {**TITLES, "tlc:t_pos=0.3": "TLC, T_pos = 0.3"}
    for ax, policy in zip(axes.flat, ("ar", "lc", "tlc:t_pos=0.3", "random", "ct", "tct:t_pos=0.1")):
        samples = draw(model, chosen, policy, 24)
        table = np.array([s.trace.steps for s in samples if s.trace])
        last = table.max(axis=1, keepdims=True)
        picture = ax.imshow(table / last, cmap="viridis", aspect="auto", vmin=0, vmax=1)
        ax.grid(False)
        texts = len({s.text for s in samples})
        ax.set_title(f"{policies[policy]}\n{last.mean() + 1:.0f} steps, {texts} different texts")
    for ax in axes[-1]:
        ax.set_xlabel("position")
    for ax in axes[:, 0]:
        ax.set_ylabel("sample")
    bar = figure.colorbar(picture, ax=axes, ticks=[0.02, 0.98], pad=0.01)
    bar.ax.set_yticklabels(["first", "last"])
    return figure


def main(names: Sequence[str]) -> None:
    """Draw these figures, or all of them."""
    torch.set_num_threads(1)
    model = twotemp.load("tiny")
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    makers = {"forks": forks, "answers": answers, "temperatures": temperatures, "orders": orders}
    with matplotlib.rc_context(RC):
        for name in names or NAMES:
            path = FIGURES / f"idea-{name}.png"
            makers[name](model).savefig(path, metadata={"Weights": digest, "Software": None})
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
