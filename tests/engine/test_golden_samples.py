"""Samples do not change from version to version: `fixtures/samples.json` has those of an earlier version.

They are 2 tasks x 3 policies x 3 questions x 2 samples, drawn with the checkpoint `fixtures/micro` (random weights)
on the tasks of `toy_task`.
"""

from __future__ import annotations

import json
from pathlib import Path

from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.models.load import load
from twotemp.policies import parse
from twotemp.store import Store

FIXTURES = Path(__file__).parents[1] / "fixtures"
POLICIES = tuple(parse(spec) for spec in ("ar", "random", "tct:threshold=0.3"))
PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), POLICIES, n=2, questions=3, trace=True)


def test_an_evaluation_draws_the_same_samples_as_before(tmp_path, toy_tasks):
    with Evaluation(PLAN, tmp_path / "run") as evaluation:
        evaluation.run(load(FIXTURES / "micro"))
    drawn = [
        {
            **dict(zip(("task", "policy"), cell.name.split("@"))),
            **{"request": sample.request, "index": sample.index, "nfe": sample.nfe, "text": sample.text},
            **{"tokens": list(sample.tokens), "steps": list(sample.trace.steps)},
        }
        for cell in Store.open(tmp_path / "run").cells()
        for sample in sorted(cell.samples(), key=lambda sample: sample.key)
    ]
    assert drawn == json.loads((FIXTURES / "samples.json").read_text())
