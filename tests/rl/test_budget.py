"""Budgets, settings, rewards, the controller of lambda and telemetry, without training."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from itertools import islice

import pytest
import torch

from tests.helpers import rl_toys
from twotemp import tasks
from twotemp.errors import UserError
from twotemp.graders.rewards import answered, correct
from twotemp.policies import policy
from twotemp.records import Grade, Policy, Problem, Sample, Trace
from twotemp.rl import results
from twotemp.rl.rollouts import Rollouts, reward_columns, total_rewards, training_problems
from twotemp.rl.settings import Budget
from twotemp.rl.trainer import HIGHEST_THRESHOLD, next_threshold


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", Budget(seconds=600)),
        ("1h30m", Budget(seconds=5400)),
        ("72h", Budget(seconds=259_200)),
        ("0.5m", Budget(seconds=30)),
        ("200steps", Budget(steps=200)),
        ("1 step", Budget(steps=1)),
        ("5000NFE", Budget(nfe=5000)),
        ("2h,500steps", Budget(seconds=7200, steps=500)),
    ],
)
def test_budget_from_text(text, expected):
    assert Budget.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "10", "10x", "m", "-5m", "0m", "0steps", "1.5steps", "5nfe,6nfe", "5steps6steps", "10m,20m", "10m!"],
)
def test_impossible_budgets_are_refused(text):
    with pytest.raises(UserError):
        Budget.parse(text)


def test_a_budget_below_one_step_is_impossible():
    with pytest.raises(UserError, match="64 samples"):
        Budget(nfe=63).check(64)
    Budget(nfe=64).check(64)


def test_the_budget_is_used_up_at_the_first_limit():
    budget = Budget(seconds=100, steps=10)
    assert budget.used(seconds=50, nfe=0, steps=1) == 0.5
    assert budget.used(seconds=5, nfe=0, steps=10) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 1}, "size"),
        ({"length": 0}, "length"),
        ({"block": 0}, "block"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"beta": math.nan}, "beta"),
        ({"likelihood": "d2"}, "did you mean 'd1'"),
        ({"policy": policy("ar"), "tokens_per_forward": 2.0}, "lambda"),
        ({"policy": policy("ct", t_token=0.0)}, "nothing to learn"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        rl_toys.settings(**change)


def test_settings_are_the_same_after_json():
    settings = rl_toys.settings(policy=policy("tlc", t_pos=float("inf")))
    stored = json.loads(json.dumps(settings.to_dict(), allow_nan=False))
    assert {**stored, "policy": Policy.from_dict(stored["policy"])} == vars(settings)


# Rewards.

GRADES = (Grade("passed", "1"), Grade("failed", "2"), Grade("failed"), Grade("ungraded"))


def test_rewards_are_summed_with_their_weights_and_ungraded_is_nan():
    both = {correct: 1.0, answered: 0.1}
    sums = total_rewards(both, ["a", "b", "c", "d"], {"grade": list(GRADES)})
    assert sums[:3] == pytest.approx([1.1, 0.1, 0.0])
    assert math.isnan(sums[3])


def test_a_reward_written_for_trl_finds_its_columns():
    def exact(prompts, completions, answer, **kwargs):
        assert prompts == ["1 + 1", "2 + 2"]
        return [1.0 if text == right else 0.0 for text, right in zip(completions, answer)]

    problems = [Problem(p, "t", p, {"answer": a}) for p, a in (("1 + 1", "2"), ("2 + 2", "4"))]
    samples = [Sample(p, 0, 0, policy("ar"), (1,), (1,), (2,), 1, 1, 1, 0.0, "length") for p in "ab"]
    columns = reward_columns(problems, samples, GRADES[:2])
    assert total_rewards({exact: 1.0}, ["2", "5"], columns) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "1 values for 2"),
        ([1.0, math.nan], "finite"),
        ([1.0, "x"], "finite"),
        (KeyError("k"), "KeyError"),
    ],
)
def test_the_error_names_a_broken_reward(result, message):
    def broken(**columns):
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(UserError, match=message) as caught:
        total_rewards({broken: 1.0}, ["a", "b"], {})
    assert "'broken'" in str(caught.value)


# Problems.


def test_training_problems_are_a_function_of_the_seed_and_never_test_problems():
    stream = list(islice(training_problems(rl_toys.TASK, 3), 50))
    assert stream == list(islice(training_problems(rl_toys.TASK, 3), 50))
    assert stream != list(islice(training_problems(rl_toys.TASK, 4), 50))
    held_out = {
        (tuple(sorted(p.reference["numbers"])), p.reference["target"])
        for p in rl_toys.TASK.problems().problems
    }
    assert not held_out & {(tuple(sorted(p.reference["numbers"])), p.reference["target"]) for p in stream}


def test_a_task_without_training_problems_names_the_option():
    task = replace(rl_toys.TASK, name="gsm8k")
    assert "gsm8k" not in tasks.SOURCES
    with pytest.raises(UserError, match="--data"):
        training_problems(task, 0)


def test_training_data_is_read_before_the_first_problem(tmp_path):
    """Otherwise it would be refused only after the evaluation of the untrained model."""
    gsm8k = tasks.get("gsm8k")
    with pytest.raises(UserError, match="nowhere"):
        training_problems(gsm8k, 0, tmp_path / "nowhere.jsonl")
    none = replace(
        gsm8k, load=lambda **_: tasks.ProblemSet((), "", "")
    )  # else an endless search for the first
    with pytest.raises(UserError, match="no problem"):
        training_problems(none, 0, tmp_path / "others.jsonl")


# The controller.


def test_the_controller_holds_tokens_per_forward():
    """A toy: the share of positions above lambda, of confidences that drift up as training goes on."""
    target, threshold, held = 2.0, 0.6, []
    for step in range(400):
        confidence = torch.linspace(0, 1, 64) ** (1 / (1 + step / 100))
        tokens = max(1.0, 8 * float((confidence > threshold).float().mean()))
        held.append(tokens)
        threshold = next_threshold(threshold, tokens, target)
    assert all(abs(tokens - target) < 0.5 for tokens in held[100:])
    assert threshold > 0.8  # it had to follow the confidence
    free = max(1.0, 8 * float((confidence > 0.6).float().mean()))
    assert free > 2 * target  # and would have been left behind


def test_the_controller_moves_the_right_way_and_stays_inside():
    assert next_threshold(0.6, 4.0, 2.0) > 0.6 > next_threshold(0.6, 1.0, 2.0)
    assert next_threshold(0.6, 2.0, 2.0) == pytest.approx(0.6)
    assert next_threshold(1.0, 100.0, 1.0) == HIGHEST_THRESHOLD


# Telemetry.


def rollouts() -> Rollouts:
    def sample(text: str, nfe: int, confidence: float) -> Sample:
        trace = Trace((0, 0), (confidence, confidence), (0.5, 0.5))
        return Sample(
            "a", 0, 0, policy("ct"), (1,), (1, 2), (2, 3), nfe, nfe, 4, 0.1, "length", text=text, trace=trace
        )

    samples = (sample("x", 1, 0.5), sample("y", 2, 0.7), sample("z", 1, 0.9), sample("z", 2, 0.9))
    grades = (Grade("passed", "1"), Grade("failed"), Grade("failed", "2"), Grade("failed", "2"))
    problems = (Problem("p", "t", "p"), Problem("q", "t", "q"))
    return Rollouts(problems, samples, grades, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 2.0, 1.0)


def test_the_summary_of_a_step():
    summary = results.summarize(results.group_numbers(rollouts()), size=2, workers=1)
    assert summary == pytest.approx(
        {
            "reward": 0.25,
            "reward_std": math.sqrt(0.5) / 2,
            "zero_std": 0.5,
            "distinct": 1.5,
            "ungraded": 0,
            "nfe": 1.5,
            "tokens_per_forward": 8 / 6,
            "confidence": 0.75,
            "entropy": 0.5,
            "seconds_drawing": 2.0,
            "seconds_grading": 1.0,
        }
    )


def test_the_log_drops_steps_after_the_checkpoint_and_a_torn_line(tmp_path):
    numbers = results.summarize(results.group_numbers(rollouts()), 2, 1)
    rest = dict.fromkeys(("threshold", "loss", "kl", "clipped", "grad_norm", "seconds_updating"), 0.0)
    log = results.open_steps(tmp_path, 0)
    for step in (1, 2, 3):
        log.add(asdict(results.StepRecord(step=step, total_seconds=0.0, total_nfe=0, **rest, **numbers)))
    with log.path.open("a") as file:
        file.write('{"step": 4, "rew')
    assert [record.step for record in results.read_steps(tmp_path)] == [1, 2, 3]
    results.open_steps(tmp_path, 2)
    assert [record.step for record in results.read_steps(tmp_path)] == [1, 2]
    assert log.path.read_text().endswith("\n")
