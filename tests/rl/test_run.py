"""Whole runs on a micro model: learning, exact continuation, checkpoints, and errors that lose nothing."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from tests.helpers import rl_toys
from tests.helpers.rl_toys import ManyNumbers, go, micro_model, rollouts_of, same, tensors
from twotemp.errors import UserError
from twotemp.folders import only_writer
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.records import Grade
from twotemp.rl import checkpoint, results
from twotemp.rl.learner import Learner
from twotemp.rl.objective import OBJECTIVES, advantages
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import joined, training_problems


@pytest.mark.parametrize(
    "likelihood",
    [
        name if name in ("d1", "trajectory") else pytest.param(name, marks=pytest.mark.slow)
        for name in ESTIMATORS
    ],
)
def test_every_estimator_learns(tmp_path, likelihood):
    """The toy's reward rises well above where it began."""
    go(tmp_path, "14steps", likelihood=likelihood, groups=4, size=8, learning_rate=1e-2, save_every=100)
    rewards = [record.reward for record in results.read_steps(tmp_path)]
    assert sum(rewards[-3:]) / 3 > max(0.85, rewards[0] + 0.1)


def test_a_run_records_its_steps_and_evaluations(tmp_path):
    state = go(tmp_path)
    records = results.read_steps(tmp_path)
    assert [record.step for record in records] == [1, 2, 3, 4]
    assert state.nfe == records[-1].total_nfe == round(sum(r.nfe * 8 for r in records))
    assert all(0 < r.confidence < 1 and 1 <= r.tokens_per_forward <= rl_toys.LENGTH for r in records)
    assert all(r.seconds_drawing > 0 for r in records)
    before, after = results.read_evaluations(tmp_path)
    assert (before.step, after.step) == (0, 4)
    for point in (*before.points, *after.points):
        assert point.low <= point.accuracy <= point.high
        assert point.accuracy == pytest.approx(sum(point.passed) / 10)
    assert [p.threshold for p in after.points] == [0.6, 0.8, 1.0]
    assert after.points[2].nfe == rl_toys.LENGTH  # lambda = 1 commits one position per step


# Every objective, and what else a step's update depends on.
VARIANTS = [
    {"lora_rank": 4},
    {"lora_rank": 0},
    *({"objective": name, "likelihood": "elbo", "draws": 2, "beta": 0.0} for name in OBJECTIVES),
    {"likelihood": "order"},
    {"likelihood": "order", "learn": "t_pos,threshold,t_token", "objective": "sequence"},
    {"likelihood": "coupled"},
    {"likelihood": "quadrature", "draws": 2, "objective": "sequence"},
    {"likelihood": "trajectory", "merge_steps": 2, "epsilon_high": 0.8, "resample": 2},
]


def killed_in_step(out: Path, number: int, changes: dict) -> int:
    """Run in a forked process that kills itself while it grades this step; return its exit code."""

    class Deadly(ManyNumbers):
        def grade(self, items):
            if len(results.read_steps(out)) == number - 1 and results.read_evaluations(out):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().grade(items)

    child = get_context("fork").Process(
        target=go, args=(out, "4steps"), kwargs={"grader": Deadly(), **changes}
    )
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())))
def test_a_run_that_was_stopped_and_killed_continues_to_the_same_weights(tmp_path, changes):
    """Stopped after step 1, and killed in step 4: the last checkpoint is that of step 2."""
    changes = {"questions": 2, **changes}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    go(whole, "4steps", **changes)
    go(parts, "4steps", **changes, stop=iter([False, True]).__next__)
    assert checkpoint.latest(parts).name == "step-00000001"
    assert killed_in_step(parts, 4, changes) == -signal.SIGKILL
    assert checkpoint.latest(parts).name == "step-00000002"
    go(parts, "4steps", **changes)
    assert same(tensors(whole), tensors(parts))
    first, second = ([r.reward for r in results.read_steps(out)] for out in (whole, parts))
    assert first == second
    expected, state = checkpoint.read(whole)[0], checkpoint.read(parts)[0]
    assert replace(state, seconds=expected.seconds) == expected
    assert set(state.knobs) == set(filter(None, changes.get("learn", "").split(",")))


def test_groups_without_a_signal_are_drawn_again(tmp_path):
    """DAPO's dynamic sampling: other problems are drawn in their place."""
    plain, resampled = tmp_path / "plain", tmp_path / "resampled"
    go(plain, "3steps", groups=4)
    go(resampled, "3steps", groups=4, resample=3)
    state, records = checkpoint.read(resampled)[0], results.read_steps(resampled)
    assert checkpoint.read(plain)[0].problems == 12 < state.problems
    assert state.nfe == records[-1].total_nfe > results.read_steps(plain)[-1].total_nfe
    assert all(record.grad_norm > 0 for record in records)


def test_with_signal_keeps_the_groups_whose_rewards_differ():
    model = micro_model()
    rollouts = rollouts_of(model)
    rewards = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, math.nan], [0.0, 0.0, math.nan, 0.0]])
    kept = replace(rollouts, rewards=rewards).with_signal()
    assert kept.problems == rollouts.problems[1:2]
    assert kept.samples == rollouts.samples[4:8]
    assert kept.grades == rollouts.grades[4:8]
    assert len(joined([kept, rollouts]).problems) == 4
    empty = replace(rollouts, rewards=torch.zeros(3, 4)).with_signal()
    learner = Learner(model, rl_toys.settings(), accelerator(cpu=True))
    assert learner.update(empty).grad_norm == 0


def test_two_processes_do_not_write_one_run(tmp_path):
    with only_writer(tmp_path), pytest.raises(UserError, match="another process is writing"):
        go(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_controlled_threshold_continues_after_a_stop(tmp_path):
    changes = {"tokens_per_forward": 2.0, "save_every": 1}
    go(tmp_path / "whole", "4steps", **changes)
    go(tmp_path / "parts", "2steps", **changes)
    go(tmp_path / "parts", "4steps", **changes)
    moves = [[r.threshold for r in results.read_steps(tmp_path / name)] for name in ("whole", "parts")]
    assert moves[0] == moves[1]
    assert len(set(moves[0])) == 4


def test_a_finished_run_is_not_continued_and_a_larger_budget_continues_it(tmp_path):
    go(tmp_path, "2steps")
    before = tensors(tmp_path)
    assert go(tmp_path, "2steps").step == 2
    assert same(before, tensors(tmp_path))
    assert go(tmp_path, "3steps").step == 3
    assert [evaluation.step for evaluation in results.read_evaluations(tmp_path)] == [0, 2, 3]


def test_nfe_and_time_budgets_stop(tmp_path):
    state = go(tmp_path / "nfe", "30nfe")
    records = results.read_steps(tmp_path / "nfe")
    assert state.nfe >= 30 > records[-2].total_nfe
    assert go(tmp_path / "time", "0.05s").seconds >= 0.05


# Gradients.


@pytest.mark.parametrize("likelihood", ESTIMATORS)
@pytest.mark.parametrize("lora_rank", [4, 0])
def test_an_update_does_not_depend_on_the_micro_batch(likelihood, lora_rank):
    """Compared by AdamW's first moment after one step, which is the gradient up to a factor."""
    gradients = []
    for micro_batch, checkpointing in ((64, False), (3, True)):
        settings = rl_toys.settings(
            likelihood=likelihood, lora_rank=lora_rank, micro_batch=micro_batch, draws=2, iterations=1,
            gradient_checkpointing=checkpointing,
        )  # fmt: skip
        model = micro_model()
        rollouts = rollouts_of(model)
        learner = Learner(model, settings, accelerator(cpu=True))
        assert learner.update(rollouts).grad_norm > 0
        gradients.append({n: t for n, t in learner.moments().items() if n.endswith("exp_avg")})
    whole, split = gradients
    largest = max(float(tensor.abs().max()) for tensor in whole.values())
    for name, tensor in whole.items():
        torch.testing.assert_close(split[name], tensor, atol=1e-4 * largest, rtol=0)


def test_the_kl_anchor_is_the_untrained_model(tmp_path):
    """After training, the reference log-probabilities are still those of the start, with adapters and without."""
    for lora_rank in (4, 0):
        model = micro_model()
        rollouts = rollouts_of(model)
        learner = Learner(model, rl_toys.settings(lora_rank=lora_rank), accelerator(cpu=True))
        batch = learner._micro_batches(learner._completions(list(rollouts.samples)), 0)
        start = learner._without_gradient(batch)
        learner.update(rollouts)
        torch.testing.assert_close(learner._reference(batch), start)
        assert not torch.allclose(learner._without_gradient(batch)[0], start[0])


def test_a_problem_that_comes_twice_in_a_step_has_other_samples():
    """A file with fewer problems than a step has groups."""
    problem = next(training_problems(rl_toys.TASK, 0))
    samples = rollouts_of(micro_model(), problems={6: problem, 7: problem}).samples
    first, second = ([sample.tokens for sample in group] for group in (samples[:4], samples[4:]))
    assert first != second


@pytest.mark.parametrize("beta", [0.5, 0.0])
def test_the_loss_follows_its_formula_where_a_group_has_no_signal(beta):
    """Rows without advantage have a KL like all others; with beta = 0 they only count among the tokens."""
    model = micro_model()
    rollouts = rollouts_of(model)
    rewards = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, math.nan], [0.0, 0.0, 1.0, 1.0]])
    ended = tuple(replace(s, tokens=(s.tokens[0], model.eos_ids[0], *s.tokens[2:])) for s in rollouts.samples)
    lengths_differ = tuple(ended[n] if n % 3 else s for n, s in enumerate(rollouts.samples))
    rollouts = replace(rollouts, rewards=rewards, samples=lengths_differ)
    learner = Learner(
        model, rl_toys.settings(likelihood="ar", iterations=1, beta=beta), accelerator(cpu=True)
    )
    learner.update(rollouts)  # away from the untrained model
    graded = ~rewards.flatten().isnan()
    completions = learner._completions([s for s, known in zip(rollouts.samples, graded) if known])
    batch = learner._micro_batches(completions, 0)
    gap = torch.cat(learner._reference(batch)) - torch.cat(learner._without_gradient(batch))
    kl = float((gap.exp() - gap - 1).mean())
    tokens = completions.scored.sum(1)
    gain = float((advantages(rewards, scale=False).flatten()[graded] * tokens).sum() / tokens.sum())
    update = learner.update(rollouts)
    assert kl > 1e-4
    assert abs(gain) > 0.01
    assert update.loss == pytest.approx(beta * kl - gain, rel=1e-3)
    assert update.kl == (pytest.approx(kl, rel=1e-3) if beta else None)


def test_groups_without_signal_are_skipped(tmp_path):
    class AlwaysPassed(ManyNumbers):
        def grade(self, items):
            return (Grade("passed", "same") for _ in items)

    go(tmp_path, "2steps", grader=AlwaysPassed())
    assert all(r.zero_std == 1 and r.grad_norm == 0 for r in results.read_steps(tmp_path))
    _, weights, moments = checkpoint.read(tmp_path)
    assert not moments  # no optimizer step: not even momentum moves the weights
    assert all((tensor == 0).all() for name, tensor in weights.items() if "lora_B" in name)


def test_a_kill_while_saving_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    go(tmp_path, "2steps")
    before = tensors(tmp_path)

    def power_cut(*_):
        raise SystemExit("killed")

    monkeypatch.setattr(Path, "replace", power_cut)
    with pytest.raises(SystemExit):
        go(tmp_path, "3steps")
    monkeypatch.undo()
    assert same(before, tensors(tmp_path))
    assert go(tmp_path, "3steps").step == 3


def test_a_run_killed_at_any_moment_continues_to_the_same_weights(tmp_path):
    """SIGKILL a forked process again and again at random moments; what it left is always whole."""
    changes = {"save_every": 1}
    go(tmp_path / "whole", "8steps", **changes)
    started = time.perf_counter()
    go(tmp_path / "timed", "8steps", **changes)
    longest = time.perf_counter() - started
    moments = random.Random(0)
    kills = 0
    for _ in range(6):
        child = get_context("fork").Process(target=go, args=(tmp_path / "killed", "8steps"), kwargs=changes)
        child.start()
        child.join(moments.uniform(0.1, 0.3) * longest)
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
        if checkpoint.exists(tmp_path / "killed"):
            checkpoint.read(tmp_path / "killed")
    assert kills >= 2
    go(tmp_path / "killed", "8steps", **changes)
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "killed"))


# Errors that lose nothing.


def test_a_reward_that_raises_keeps_every_finished_step(tmp_path):
    calls = iter(range(100))

    def fragile(completions, **columns):
        if next(calls) == 3:
            raise ValueError("no such column")
        return [0.0] * len(completions)

    with pytest.raises(UserError, match=r"fragile.*no such column"):
        go(tmp_path, "5steps", extra={fragile: 1.0}, save_every=100)
    assert checkpoint.read(tmp_path)[0].step == 3

    def fixed(completions, **columns):
        return [0.0] * len(completions)

    fixed.__name__ = "fragile"
    go(tmp_path, "5steps", extra={fixed: 1.0}, save_every=100)
    go(tmp_path / "whole", "5steps", extra={fixed: 1.0}, save_every=100)
    assert same(tensors(tmp_path), tensors(tmp_path / "whole"))


@pytest.mark.parametrize(("poison", "finished"), [(4, 2), (5, 2), (1, 0)])
def test_a_loss_that_is_not_a_number_undoes_its_step(tmp_path, monkeypatch, poison, finished):
    """Two inner iterations a step: in the first of them, and in the second, when the weights have moved."""
    changes = {"groups": 4, "size": 8, "save_every": 100}  # large groups: every step has a signal
    calls = iter(range(100))
    rl_toys.poison_loss(partial(monkeypatch.setitem, OBJECTIVES), lambda: next(calls) == poison)
    with pytest.raises(UserError, match=r"not a number.*lower --learning-rate"):
        go(tmp_path, "6steps", **changes)
    monkeypatch.undo()
    done = checkpoint.read(tmp_path)[0].step
    assert done == len(results.read_steps(tmp_path)) == finished
    go(tmp_path / "healthy", "6steps", **changes, stop=iter([False] * finished + [True]).__next__)
    assert same(tensors(tmp_path), tensors(tmp_path / "healthy"))
    assert go(tmp_path, "4steps", **changes, learning_rate=1e-5).step == 4  # as the message says


def test_a_failure_after_the_update_saves_no_weights_under_the_old_step(tmp_path, monkeypatch):
    changes = {"groups": 4, "size": 8}  # large groups: the step has a signal
    true_summary, calls = results.summarize, iter(range(100))

    def fails(*args):
        if next(calls) == 3:
            raise RuntimeError("out of memory")
        return true_summary(*args)

    monkeypatch.setattr(results, "summarize", fails)
    with pytest.raises(RuntimeError):
        go(tmp_path / "parts", "5steps", **changes)
    monkeypatch.undo()
    go(tmp_path / "parts", "5steps", **changes)
    go(tmp_path / "whole", "5steps", **changes)
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


def test_an_impossible_budget_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="impossible"):
        go(tmp_path / "run", "7nfe")
    assert not (tmp_path / "run").exists()


def test_bf16_is_passed_to_accelerate():
    assert accelerator(cpu=True, bf16=True).mixed_precision == "bf16"
