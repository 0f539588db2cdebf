"""The comparison of trainings in experiments/order.py: intervals over questions and seeds, and its tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import twotemp
from experiments import order
from experiments.grpo import ROLLOUTS
from experiments.order import OrderSize
from tests.helpers import rl_toys
from tests.helpers.rl_toys import rollouts_of
from twotemp.cli import app
from twotemp.policies import parse, policy
from twotemp.rl.learner import Learner
from twotemp.rl.parallel import accelerator
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


def trained(name: str, rollouts: str, seed: int) -> dict:
    """A result of one training."""
    at_one = "1110" if name == "order" else "1100"
    return {
        "task": "countdown-3", "rollouts": rollouts, "name": name, "seed": seed, "steps": 10, "nfe": 3.0,
        "reward_std": 0.2, "zero_std": 0.5, "distinct": 4.0, "order": 2.5, "before": {"0.6": 50.0, "1": 50.0},
        "passed": {"0.6": "1100", "1": at_one},
    }  # fmt: skip


def test_the_tables_compare_with_the_first_training_of_the_same_seeds():
    runs = [
        trained(name, rollouts, seed)
        for seed in (1, 0)
        for rollouts, some in order.TRAININGS.items()
        for name in some
        if seed or name != "d1"
    ]
    text = order.render({"nfe": 100, "runs": runs})
    shown = "| 10 | 3.0 | 7.5 | 0.200 | 4.0 | 2.50 |"
    assert f"| `order` | 2 {shown} 50.0; 0.0 (0.0 to 0.0) | 75.0; +25.0" in text
    assert f"| `tokens` | 2 {shown} 50.0 | 50.0 |" in text
    assert "| `d1` | 1 | 10 |" in text
    assert "countdown-3, TCT rollouts, 100 NFE (before training: 50.0 at λ = 0.6" in text
    assert "countdown-3, Fork rollouts, 900 NFE" in text


@pytest.mark.parametrize(
    ("name", "rollouts", "free", "graded"),
    [
        ("tokens", "tct", 0, 4),
        ("order", "tct", 0, 4),
        ("d1", "tct", 0, 1),
        ("coupled", "tct", 0, 3),
        ("sequence", "tct", 4, 4),
        ("stable", "tct", 2, 2),
    ],
)
def test_passes_are_those_that_the_learner_makes(name, rollouts, free, graded, monkeypatch):
    """Of one row whose rollout took 4 steps; the untrained model and the rollout are not counted."""
    options = order.TRAININGS[rollouts][name]
    assert order.passes(options, 4.0) == (free, graded)
    model = rl_toys.micro_model()
    rollout = rollouts_of(model)
    settings = settings_of(options, epsilon_high=None)
    learner = Learner(model, settings, accelerator(cpu=True))
    counted = {True: 0, False: 0}
    score = learner.scorer.forward

    def watched(queries):
        counted[torch.is_grad_enabled()] += len(queries)
        return score(queries)

    monkeypatch.setattr(learner.scorer, "forward", watched)
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]] * 3)
    learner.update(replace(rollout, rewards=rewards))
    steps = sum(max(sample.trace.steps) + 1 for sample in rollout.samples) / len(rollout.samples)
    expected = [len(rollout.samples) * passes for passes in order.passes(options, steps)]
    assert [counted[False], counted[True]] == pytest.approx(expected)


def settings_of(options: Sequence[str], **changes) -> GrpoSettings:
    """The settings of a training's options, of a small run."""
    parser = argparse.ArgumentParser()
    for option, kind in (("likelihood", str), ("draws", int), ("objective", str), ("iterations", int)):
        parser.add_argument(f"--{option}", type=kind, default=getattr(GrpoSettings, option))
    parser.add_argument("--epsilon-high", type=float)
    return rl_toys.settings(**{**vars(parser.parse_args(options)), "beta": 0.0, **changes})


@pytest.mark.parametrize(
    ("rollouts", "name"), [(r, name) for r in order.TRAININGS for name in order.TRAININGS[r]]
)
def test_every_training_has_settings_that_are_accepted(rollouts, name):
    settings_of(order.TRAININGS[rollouts][name], policy=parse(ROLLOUTS[rollouts]))


def test_the_order_of_certain_positions_has_probability_one():
    """`order_terms` is what `order` adds to the tokens: log 1 of K >= all positions, less otherwise."""
    model = rl_toys.micro_model()
    every, some = (
        twotemp.sample(model, [[5], [5, 6]], policy("tlc", k=k), length=4, ids=["a", "b"], trace=True)
        for k in (4, 1)
    )
    assert order.order_terms(model, every).tolist() == [0.0, 0.0]
    assert (order.order_terms(model, some) < -0.5).all()


@pytest.mark.slow
def test_the_comparison_runs_and_continues(tmp_path, monkeypatch):
    """At a tiny size, in this process: three trainings, and the same result when it is given again."""

    def small(*command: str) -> None:
        result = CliRunner().invoke(app, [*command, "--groups", "2", "--size", "4"])
        assert result.exit_code == 0, result.output

    monkeypatch.setattr(order.command, "twotemp", small)
    some = ("tokens", "order", "stable")
    monkeypatch.setattr(order, "TRAININGS", {"tct": {name: order.TRAININGS["tct"][name] for name in some}})
    size = OrderSize(nfe=60, seeds=1, held_out=4, tasks=order.TASKS[:1])
    assert order.finished(tmp_path, size)["runs"] == []
    found = order.run(tmp_path, size)
    assert [run["name"] for run in found["runs"]] == list(some)
    assert "| `stable` |" in order.render(found)
    assert order.run(tmp_path, size) == found
    assert order.run(tmp_path / "elsewhere", size, [found]) == found  # nothing is trained again
    assert not (tmp_path / "elsewhere").exists()
