"""The comparison of trainings in experiments/order.py: intervals over questions and seeds, and its tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import order
from experiments.grpo import ComparisonSize
from twotemp.cli import app
from twotemp.rl.settings import GrpoSettings


def test_the_interval_has_the_spread_of_questions_and_of_seeds():
    generator = np.random.default_rng(1)
    alike = np.tile(generator.random(400) < 0.5, (3, 1)).astype(float)
    unlike = alike * np.array([[1.0], [0.5], [0.0]])
    same, different = order.nested_interval(alike), order.nested_interval(unlike)
    binomial = 2 * 1.96 * 50 / 400**0.5
    assert same["high"] - same["low"] == pytest.approx(binomial, rel=0.1)
    assert different["high"] - different["low"] > 2.5 * (same["high"] - same["low"]) / 2
    assert same["mean"] == pytest.approx(100 * alike.mean())


def test_the_tables_show_every_training_task_and_limit():
    runs = [
        {
            "equal": equal, "task": task, "name": name, "seed": seed, "steps": 10, "nfe": 3.0, "reward_std": 0.2,
            "passed": {"0.6": "1100", "1": "1110" if name == "order" else "1100"},
        }
        for equal in ("seconds", "nfe")
        for task in order.TASKS
        for name in order.TRAININGS
        for seed in range(2)
    ]  # fmt: skip
    text = order.render({"seconds": 5, "nfe": 100, "runs": runs})
    assert text.count("| `order` | 10 | 3.0 | 0.200 | 50.0; 0.0 (0.0 to 0.0) | 75.0; +25.0") == 4
    assert text.count("| `tokens` | 10 | 3.0 | 0.200 | 50.0 | 50.0 |") == 4
    for task in order.TASKS:
        assert f"{task}, 5 s:" in text
        assert f"{task}, 100 NFE:" in text


@pytest.mark.parametrize("name", order.TRAININGS)
def test_every_training_has_settings_that_are_accepted(name):
    from experiments.grpo import ROLLOUTS
    from twotemp.policies import parse

    rollouts, options = order.TRAININGS[name]
    parser = argparse.ArgumentParser()
    for option, kind in (("likelihood", str), ("draws", int), ("objective", str), ("iterations", int)):
        parser.add_argument(f"--{option}", type=kind, default=getattr(GrpoSettings, option))
    parser.add_argument("--epsilon-high", type=float)
    GrpoSettings(parse(ROLLOUTS[rollouts]), length=4, **vars(parser.parse_args(options)))


@pytest.mark.slow
def test_the_comparison_runs_and_continues(tmp_path, monkeypatch):
    """At a tiny size, in this process: three trainings, and the same result when it is given again."""

    def in_turn(commands: Iterable[Sequence[str]]) -> None:
        for command in commands:
            result = CliRunner().invoke(app, [*command, "--groups", "2", "--size", "4"])
            assert result.exit_code == 0, result.output

    monkeypatch.setattr(order, "side_by_side", in_turn)
    monkeypatch.setattr(order, "TASKS", order.TASKS[:1])
    some = ("tokens", "order", "stable")
    monkeypatch.setattr(order, "TRAININGS", {name: order.TRAININGS[name] for name in some})
    size = ComparisonSize(seconds=1, nfe=60, seeds=1, held_out=4)
    found = order.run(tmp_path, size)
    assert len(found["runs"]) == 6
    assert "| `stable` |" in order.render(found)
    assert order.run(tmp_path, size) == found
