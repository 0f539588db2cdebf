"""Evaluate the toy tasks, and read what the run directory holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.policies import parse
from twotemp.records import Grade, Sample
from twotemp.store import Key, Store

POLICIES = tuple(parse(spec) for spec in ("ar", "tlc", "tct:threshold=0.3"))
PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), POLICIES, n=3, questions=4)


def evaluate(model, plan: Plan, out: Path, **options) -> Store:
    """Run an evaluation in this process and return its store."""
    with Evaluation(plan, out, shard=options.pop("shard", (1, 1))) as prepared:
        return prepared.run(model, **options)


Rows = dict[tuple[str, Key], tuple[Sample, Grade | None]]


def rows(run: Path | Store) -> Rows:
    """Return all samples of a run with their grades, without times."""
    store = run if isinstance(run, Store) else Store.open(run)
    return {
        (cell.name, sample.key): (replace(sample, seconds=0.0), cell.grades("toy 1").get(sample.key))
        for cell in store.cells()
        for sample in cell.samples()
    }
