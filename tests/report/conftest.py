"""Runs that several modules of this folder show."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tests.helpers.synthetic_runs import HOSTILE, write_run
from twotemp.folders import claim
from twotemp.policies import parse
from twotemp.records import Grade, Problem, Sample
from twotemp.report import viewer
from twotemp.rl import results
from twotemp.rl.rollouts import Rollouts


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "six"
    return write_run(folder, questions=12, n=8, words=10, trace=True)


@pytest.fixture(scope="module")
def html(run) -> str:
    return viewer.view([run]).html()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two finished steps of a GRPO run, and the rollouts of a third that a kill interrupted."""
    run = tmp_path_factory.mktemp("grpo") / "trained"
    claim(
        run,
        "grpo",
        {"model": "tiny", "task": "countdown-3", "settings": {"policy": parse("tct").to_dict()}},
    )
    log = results.open_steps(run, 0)
    for step in (1, 2, 3):
        problem = Problem(f"countdown-3/train/{step}", "countdown-3", "1 2 3 -> 6", {"target": 6})
        samples = tuple(
            Sample(problem.id, index, 0, parse("tct"), (1,), (2,), (3,), 1, 1, 1, 0.1, "length", text)
            for index, text in enumerate((f"1 + 2 = 3 , 3 + 3 = 6 {step}", HOSTILE))
        )
        grades = (Grade("passed", "6", "chain"), Grade("ungraded", detail="the grader failed"))
        rollouts = Rollouts((problem,), samples, grades, torch.tensor([[1.25, math.nan]]), 0.0, 0.0)
        results.write_rollouts(run, step, 0, rollouts)
        if step < 3:
            row = {field.name: 1 for field in fields(results.StepRecord)}
            log.add({**row, "step": step, "kl": None})
    return run
