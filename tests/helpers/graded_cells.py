"""Build graded cells, and stores with such cells, for tests of analysis, report and selection."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twotemp.analysis import Ballot, GradedCell
from twotemp.policies import parse
from twotemp.records import Grade, Sample
from twotemp.store import Config, Key, Store, Table

COSTS = {"ar": 30, "lc": 32, "random": 32, "tlc": 32, "ct": 8, "tct": 7}


def config(spec: str, task: str = "countdown-3", model: str = "tiny", data: str = "digest") -> Config:
    """Return the configuration of a cell."""
    return Config(task, data, "", None, model, "mark", parse(spec), 12, None, 0, version="1")


def graded(
    spec: str,
    correct,
    n=8,
    model: str = "tiny",
    task: str = "countdown-3",
    cost: int | None = None,
    questions=None,
    ungraded: int = 0,
    pending: int = 0,
) -> GradedCell:
    """Return a cell whose questions have these numbers of right samples, out of n or of one n per question."""
    sizes = np.broadcast_to(n, len(correct))
    cost = cost or COSTS.get(parse(spec).name, 16)
    costs = tuple(np.full(size, cost) for size in sizes)
    table = Table(
        questions=tuple(questions or (f"{task}/{i}" for i in range(len(correct)))),
        index=tuple(np.arange(size) for size in sizes),
        passed=tuple(np.arange(size) < right for size, right in zip(sizes, correct)),
        answers=tuple((None,) * size for size in sizes),
        nfe=costs,
        forwards=costs,
        seconds=tuple(c / 100 for c in costs),
        tokens=tuple(np.full(size, 12) for size in sizes),
        ungraded=ungraded,
        pending=pending,
    )
    return GradedCell(Path("run") / f"{task}@{spec}", config(spec, task, model), "countdown 1", table)


def spread(specs, tasks=("countdown-3",), models=("tiny",), questions: int = 12) -> list[GradedCell]:
    """Return cells of all combinations, with random numbers of right samples."""
    rng = np.random.default_rng(0)
    return [
        graded(spec, rng.integers(0, 9, questions), model=model, task=task)
        for model in models
        for task in tasks
        for spec in specs
    ]


def ballot(passed, answers, reward=(), confidence=(), likelihood=(), question: str = "q") -> Ballot:
    """Return the samples of one question, as a selector sees them."""
    return Ballot(
        question,
        np.arange(len(passed)),
        np.array(passed, dtype=bool),
        np.array(answers),
        tuple(f"answer {i}" for i in range(max(answers, default=-1) + 1)),
        np.array(reward, dtype=float),
        np.array(confidence, dtype=float),
        np.array(likelihood, dtype=float),
    )


def elected(*ballots: Ballot, spec: str = "tct", nfe: int = 4, scored: bool = True) -> GradedCell:
    """Return a cell with these ballots."""
    cell = graded(
        spec,
        [int(b.passed.sum()) for b in ballots],
        [len(b.passed) for b in ballots],
        cost=nfe,
        questions=[b.question for b in ballots],
    )
    return GradedCell(cell.path, cell.config, cell.grader, cell.table, ballots, "rm 1" if scored else None)


def store_cell(store: Store, spec: str, verdicts: dict[str, str], task: str = "countdown-3"):
    """Store a cell whose questions have one sample for each letter: p(assed), f(ailed), u(ngraded), w(aiting)."""
    policy = parse(spec)
    cell = store.cell(f"{task}@{spec}", config(spec, task))
    outcomes = {"p": "passed", "f": "failed", "u": "ungraded"}
    with cell.writer() as writer:
        for question, letters in verdicts.items():
            samples = [
                Sample(question, i, 0, policy, (1,), (1, 2), (5, 6), 3 + i, 4 + i, 9, 0.5, "length", "x")
                for i in range(len(letters))
            ]
            writer.samples(samples)
            grades = [
                (Key(s.request, s.index, s.seed), Grade(outcomes[v]))  # type: ignore[arg-type]
                for s, v in zip(samples, letters)
                if v in outcomes
            ]
            writer.grades("countdown 1", grades)
    return cell
