"""How well is a right sample told from a wrong one of the same question? The verifier against what needs no training.

    twotemp eval --tasks countdown-3,words-3,programs-1 --policies "ar;tct:t_pos=0.1,threshold=0.6" \\
        -n 64 --questions 100 --trace --out runs/verifier
    python experiments/verifier.py runs/verifier

The mean over questions of the AUC (0.5 is chance): of the embedded verifier, of `tiny`'s pseudo-log-likelihood, of
the mean confidence of the tokens as they were written, and of how many samples give the same answer.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import numpy as np

from twotemp import rewards
from twotemp.evaluation import grader_of, problems_of
from twotemp.metrics import auc
from twotemp.policies import spell
from twotemp.store import Cell, Key, Store

MODELS = ("verifier", "pll:tiny")


def main(run: str) -> None:
    print("| task | policy | questions | " + " | ".join(MODELS) + " | confidence | majority |")
    print("|---" * (5 + len(MODELS)) + "|")
    models = [rewards.load(source, batch_size=256) for source in MODELS]
    for cell in Store.open(run).cells():
        problems = {problem.id: problem for problem in problems_of(cell).problems}
        scorers = [rewards.scores(cell, problems, model) for model in models]
        by_question = defaultdict(list)
        for key, passed, confidence, agreement in judged(cell):
            by_question[key.question].append((passed, *(s[key] for s in scorers), confidence, agreement))
        mixed = [list(zip(*rows)) for rows in by_question.values() if len({row[0] for row in rows}) == 2]
        values = [np.mean([auc(c[0], c[column]) for c in mixed]) for column in range(1, 3 + len(MODELS))]
        cells = " | ".join(f"{value:.2f}" for value in values)
        print(f"| {cell.config.task} | {spell(cell.config.policy)} | {len(mixed)} | {cells} |", flush=True)


def judged(cell: Cell):
    """Of every graded sample: its key, whether it is right, its mean confidence, and how many agree with it."""
    grades = cell.grades(grader_of(cell))
    votes = Counter((key.question, grade.answer) for key, grade in grades.items())
    for sample in cell.samples():
        key = Key.of(sample)
        grade = grades[key]
        if grade.outcome == "ungraded":
            continue
        written = [c for c, step in zip(sample.trace.confidence, sample.trace.steps) if step >= 0]
        agreement = 0 if grade.answer is None else votes[key.question, grade.answer]
        yield key, grade.passed, float(np.mean(written)), agreement


if __name__ == "__main__":
    main(sys.argv[1])
