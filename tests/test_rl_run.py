"""Whole runs on a micro model: learning, exact continuation, checkpoints, and errors that lose nothing."""

from __future__ import annotations

import json
import random
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState

from tests import rl_toys
from tests.rl_toys import ManyNumbers, micro_model, tensors
from twotemp.errors import UserError
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Grade
from twotemp.rl import checkpoint, evaluation, telemetry
from twotemp.rl.budget import Budget
from twotemp.rl.learner import Learner
from twotemp.rl.likelihood import ESTIMATORS
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import collect, training_problems
from twotemp.rl.trainer import train

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_process():
    """accelerate keeps its settings in globals."""
    yield
    AcceleratorState._reset_state()
    PartialState._reset_state()


def go(
    out: Path, budget: str = "4steps", *, grader=None, model=None, stop=lambda: False, extra=None, **changes
):
    held_out = rl_toys.TASK.problems().problems[:10]
    return train(
        model or micro_model(),
        rl_toys.TASK,
        grader or ManyNumbers(),
        rl_toys.settings(**changes),
        Budget.parse(budget),
        out,
        accelerator=accelerator(cpu=True),
        held_out=held_out,
        extra_rewards=extra,
        stop=stop,
    )


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("likelihood", ESTIMATORS)
def test_every_estimator_learns(tmp_path, likelihood):
    """The toy's reward rises well above where it began."""
    go(tmp_path, "14steps", likelihood=likelihood, groups=4, size=8, learning_rate=1e-2, save_every=100)
    rewards = [record.reward for record in telemetry.read(tmp_path)]
    assert sum(rewards[-3:]) / 3 > max(0.85, rewards[0] + 0.1)


def test_a_run_measures_itself(tmp_path):
    state = go(tmp_path)
    records = telemetry.read(tmp_path)
    assert [record.step for record in records] == [1, 2, 3, 4]
    assert state.nfe == records[-1].total_nfe == round(sum(r.nfe * 8 for r in records))
    assert all(0 < r.confidence < 1 and 1 <= r.tokens_per_forward <= rl_toys.LENGTH for r in records)
    assert all(r.seconds_drawing > 0 for r in records)
    before, after = evaluation.read(tmp_path)
    assert (before.step, after.step) == (0, 4)
    for point in (*before.points, *after.points):
        assert point.low <= point.accuracy <= point.high
        assert point.accuracy == pytest.approx(sum(point.passed) / 10)
    assert [p.threshold for p in after.points] == [0.6, 0.8, 1.0]
    assert after.points[2].nfe == rl_toys.LENGTH  # lambda = 1 commits one position a step


@pytest.mark.parametrize("lora_rank", [4, 0])
def test_a_stopped_run_continues_to_the_same_weights(tmp_path, lora_rank):
    go(tmp_path / "whole", "5steps", lora_rank=lora_rank)
    go(tmp_path / "parts", "5steps", lora_rank=lora_rank, stop=iter([False, False, False, True]).__next__)
    assert checkpoint.latest(tmp_path / "parts").name == "step-00000003"
    go(tmp_path / "parts", "5steps", lora_rank=lora_rank)
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    rewards = [[r.reward for r in telemetry.read(tmp_path / name)] for name in ("whole", "parts")]
    assert rewards[0] == rewards[1]


def test_the_controlled_threshold_survives_a_stop(tmp_path):
    changes = {"tokens_per_forward": 2.0, "save_every": 1}
    go(tmp_path / "whole", "4steps", **changes)
    go(tmp_path / "parts", "2steps", **changes)
    go(tmp_path / "parts", "4steps", **changes)
    moves = [[r.threshold for r in telemetry.read(tmp_path / name)] for name in ("whole", "parts")]
    assert moves[0] == moves[1]
    assert len(set(moves[0])) == 4


def test_a_finished_run_is_not_continued_and_a_larger_budget_continues_it(tmp_path):
    go(tmp_path, "2steps")
    before = tensors(tmp_path)
    assert go(tmp_path, "2steps").step == 2
    assert same(before, tensors(tmp_path))
    assert go(tmp_path, "3steps").step == 3
    assert [one.step for one in evaluation.read(tmp_path)] == [0, 2, 3]


def test_nfe_and_time_budgets_stop(tmp_path):
    state = go(tmp_path / "nfe", "30nfe")
    records = telemetry.read(tmp_path / "nfe")
    assert state.nfe >= 30 > records[-2].total_nfe
    assert go(tmp_path / "time", "0.05s").seconds >= 0.05


def test_other_settings_need_another_folder(tmp_path):
    go(tmp_path, "1step")
    with pytest.raises(UserError, match=r"settings\.epsilon, settings\.policy\.t_pos"):
        go(tmp_path, "2steps", epsilon=0.3, policy=policy("tct", threshold=0.3, t_token=1.0, t_pos=0.2))


# Gradients.


def drawn(model, size: int = 4):
    problems = [next(training_problems(rl_toys.TASK, seed)) for seed in range(3)]
    from twotemp.rl.rewards import correct

    tct = rl_toys.settings().policy
    return collect(
        model, ManyNumbers(), problems, tct, {correct: 1.0}, size=size, step=0, seed=0,
        length=rl_toys.LENGTH, block=None, batch_size=64,
    )  # fmt: skip


@pytest.mark.parametrize("likelihood", ESTIMATORS)
@pytest.mark.parametrize("lora_rank", [4, 0])
def test_an_update_does_not_depend_on_how_the_batch_is_cut(likelihood, lora_rank):
    """Compared by AdamW's first moment after one step, which is the gradient up to a factor."""
    gradients = []
    for micro_batch, checkpointing in ((64, False), (3, True)):
        settings = rl_toys.settings(
            likelihood=likelihood, lora_rank=lora_rank, micro_batch=micro_batch, draws=2, iterations=1,
            gradient_checkpointing=checkpointing,
        )  # fmt: skip
        model = micro_model()
        rollouts = drawn(model)
        learner = Learner(model, settings, accelerator(cpu=True))
        assert learner.update(rollouts).grad_norm > 0
        gradients.append({n: t for n, t in learner.moments().items() if n.endswith("exp_avg")})
    whole, cut = gradients
    largest = max(float(tensor.abs().max()) for tensor in whole.values())
    for name, tensor in whole.items():
        torch.testing.assert_close(cut[name], tensor, atol=1e-4 * largest, rtol=0)


def test_the_kl_anchor_is_the_untrained_model(tmp_path):
    """After training, the reference log-probabilities are still those of the start, with adapters and without."""
    for lora_rank in (4, 0):
        model = micro_model()
        rollouts = drawn(model)
        learner = Learner(model, rl_toys.settings(lora_rank=lora_rank), accelerator(cpu=True))
        rows = learner._completions(list(rollouts.samples))
        asked = learner._micro_batches(rows, 0)
        start = learner._frozen(asked)
        learner.update(rollouts)
        torch.testing.assert_close(learner._reference(asked), start)
        assert not torch.allclose(learner._frozen(asked)[0], start[0])


def test_groups_without_signal_are_skipped(tmp_path):
    class AllAlike(ManyNumbers):
        def grade(self, items):
            return (Grade("passed", "same") for _ in items)

    go(tmp_path, "2steps", grader=AllAlike())
    assert all(r.zero_std == 1 and r.grad_norm == 0 for r in telemetry.read(tmp_path))
    _, weights, moments = checkpoint.read(tmp_path)
    assert not moments  # no optimizer step: not even momentum moves the weights
    assert all((tensor == 0).all() for name, tensor in weights.items() if "lora_B" in name)


# Checkpoints.


def test_the_adapter_is_in_peft_layout_and_the_merged_model_in_its_own(tmp_path):
    from peft import PeftModel

    trained = micro_model()
    go(tmp_path / "run", "3steps", model=trained, learning_rate=1e-2)
    ids = torch.arange(5, 25)[None]
    want = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        expected = trained.logits(ids, None, want)
        untrained = micro_model().logits(ids, None, want)
        assert (expected - untrained).abs().max() > 1e-2
        adapted = micro_model()
        PeftModel.from_pretrained(adapted.module, str(checkpoint.latest(tmp_path / "run") / "adapter"))
        torch.testing.assert_close(adapted.logits(ids, None, want), expected)
        checkpoint.export(micro_model(), tmp_path / "run", tmp_path / "model")
        merged = load(tmp_path / "model", device="cpu")
        torch.testing.assert_close(merged.logits(ids, None, want), expected, atol=1e-4, rtol=1e-4)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "llada"


@pytest.mark.parametrize("tied", [False, True])
def test_fully_trained_weights_are_exported(tmp_path, tied):
    trained = micro_model(tied=tied)
    go(tmp_path / "run", "2steps", model=trained, lora_rank=0)
    checkpoint.export(micro_model(tied=tied), tmp_path / "run", tmp_path / "model")
    ids = torch.arange(5, 25)[None]
    want = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        exported = load(tmp_path / "model", device="cpu").logits(ids, None, want)
        torch.testing.assert_close(exported, trained.logits(ids, None, want))


def test_checkpoints_are_data_only_and_old_ones_go(tmp_path):
    go(tmp_path, "6steps", save_every=1)
    folders = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert folders == ["step-00000005", "step-00000006"]
    kinds = {path.suffix for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}


def test_a_missing_checkpoint_is_an_error(tmp_path):
    import shutil

    go(tmp_path, "2steps")
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        go(tmp_path, "4steps")
    assert len(telemetry.read(tmp_path)) == 2  # the record of what was done is not touched


def test_a_damaged_checkpoint_is_named(tmp_path):
    go(tmp_path, "2steps")
    damaged = checkpoint.latest(tmp_path) / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(UserError, match="step-00000002"):
        go(tmp_path, "4steps")


def test_killed_while_saving_the_last_checkpoint_is_whole(tmp_path, monkeypatch):
    go(tmp_path, "2steps")
    before = tensors(tmp_path)

    def power_cut(*_):
        raise SystemExit("killed")

    monkeypatch.setattr(Path, "rename", power_cut)
    with pytest.raises(SystemExit):
        go(tmp_path, "3steps")
    monkeypatch.undo()
    assert same(before, tensors(tmp_path))
    assert go(tmp_path, "3steps").step == 3


def test_killed_at_any_moment_a_run_continues_to_the_same_weights(tmp_path):
    """SIGKILL a forked process again and again at random moments; what it left is always whole."""
    go(tmp_path / "whole", "8steps", save_every=1)
    started = time.perf_counter()
    go(tmp_path / "timed", "8steps", save_every=1)
    longest = time.perf_counter() - started
    moments = random.Random(0)
    kills = 0
    for _ in range(6):
        child = get_context("fork").Process(
            target=go, args=(tmp_path / "killed", "8steps"), kwargs={"save_every": 1}
        )
        child.start()
        child.join(moments.uniform(0.1, 0.6) * longest)
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
        if checkpoint.exists(tmp_path / "killed"):
            checkpoint.read(tmp_path / "killed")
    assert kills >= 2
    go(tmp_path / "killed", "8steps", save_every=1)
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

    def mended(completions, **columns):
        return [0.0] * len(completions)

    mended.__name__ = "fragile"
    go(tmp_path, "5steps", extra={mended: 1.0}, save_every=100)
    go(tmp_path / "whole", "5steps", extra={mended: 1.0}, save_every=100)
    assert same(tensors(tmp_path), tensors(tmp_path / "whole"))


def test_a_loss_that_is_not_a_number_stops_before_it_reaches_the_weights(tmp_path, monkeypatch):
    from twotemp.rl import learner

    true_loss, calls = learner.grpo_loss, iter(range(100))

    def poisoned(new, *args, **kwargs):
        return true_loss(new * float("nan") if next(calls) == 4 else new, *args, **kwargs)

    monkeypatch.setattr(learner, "grpo_loss", poisoned)
    with pytest.raises(UserError, match="not a number"):
        go(tmp_path, "6steps", save_every=100)
    monkeypatch.undo()
    done = checkpoint.read(tmp_path)[0].step
    assert done == len(telemetry.read(tmp_path)) >= 2
    go(tmp_path / "healthy", f"{done}steps", save_every=100)
    assert same(tensors(tmp_path), tensors(tmp_path / "healthy"))


def test_an_impossible_budget_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="impossible"):
        go(tmp_path / "run", "7nfe")
    assert not (tmp_path / "run").exists()


def test_bf16_is_passed_to_accelerate():
    assert accelerator(cpu=True, bf16=True).mixed_precision == "bf16"
