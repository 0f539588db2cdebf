"""A run folder that version 0.1.0 wrote: it opens, is continued and is reported by today's code.

`fixtures/run-0.1.0` holds 2 tasks x 3 policies x 3 questions x 2 samples with traces and grades, drawn with the
checkpoint `fixtures/model-0.1.0` (random weights) on the tasks of `toy_task`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from twotemp.cli import app
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.models.load import load
from twotemp.policies import parse
from twotemp.store import Store

FIXTURES = Path(__file__).parent / "fixtures"
POLICIES = tuple(parse(spec) for spec in ("ar", "random", "tct:threshold=0.3"))
PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), POLICIES, n=3, questions=3, trace=True)


@pytest.fixture
def old(tmp_path, toy_tasks) -> Path:
    return shutil.copytree(FIXTURES / "run-0.1.0", tmp_path / "run")


def contents(run: Path) -> dict:
    return {
        (cell.name, sample.request, sample.index): replace(sample, seconds=0.0)
        for cell in Store.open(run).cells()
        for sample in cell.samples()
    }


def draw(plan: Plan, out: Path) -> None:
    model = load(FIXTURES / "model-0.1.0")
    model.name = "micro"
    with Evaluation(plan, out) as evaluation:
        evaluation.run(model)


def test_it_opens(old):
    store = Store.open(old)
    assert len(store.cells()) == 6
    assert {cell.config.policy for cell in store.cells()} == set(POLICIES)
    for cell in store.cells():
        assert len(list(cell.samples())) == len(cell.grades("toy 1")) == 6
        assert all(sample.trace is not None for sample in cell.samples())


def test_it_is_continued_and_what_it_held_is_what_would_be_drawn_today(old, tmp_path):
    before = contents(old)
    draw(PLAN, old)
    after = contents(old)
    assert len(after) == 2 * 3 * 3 * 3
    assert before.items() <= after.items()
    assert all(len(cell.grades("toy 1")) == 9 for cell in Store.open(old).cells())
    draw(PLAN, tmp_path / "new")
    new = contents(tmp_path / "new")
    same = [(a.tokens, a.positions, a.nfe, a.text, a.trace.steps) for a in (new[key] for key in after)]
    assert same == [(a.tokens, a.positions, a.nfe, a.text, a.trace.steps) for a in after.values()]


def test_it_is_reported(old, tmp_path):
    """One task of it: figures take their time."""
    for cell in old.glob("toy-b@*"):
        shutil.rmtree(cell)
    done = CliRunner().invoke(app, ["report", str(old), "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "report").is_dir()
