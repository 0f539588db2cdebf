"""Two workers (torchrun, gloo, CPU): the same weights on both, and the loss of one worker with the same batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.rl_worker import work
from twotemp.rl import checkpoint, results

pytestmark = pytest.mark.usefixtures("forked_processes")
ROOT = Path(__file__).resolve().parents[2]


def launch(out: Path, mode: str, budget: str = "2steps", succeeds: bool = True, **changes: object) -> str:
    """Run two workers and return their stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "tests.helpers.rl_worker"]
    done = subprocess.run(
        [*command, str(out), mode, budget, *(f"{key}={value}" for key, value in changes.items())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode == 0) == succeeds, done.stderr[-3000:]
    return done.stderr


def weights(out: Path, rank: int) -> dict[str, torch.Tensor]:
    return load_file(out / f"rank-{rank}.safetensors")


def compare(single: Path, pair: Path) -> None:
    for name, tensor in weights(pair, 0).items():
        assert torch.equal(tensor, weights(pair, 1)[name]), name
        torch.testing.assert_close(tensor, weights(single, 0)[name], atol=1e-4, rtol=0)
    for alone, together in zip(results.read_steps(single), results.read_steps(pair), strict=True):
        assert together.reward == alone.reward
        assert together.nfe == alone.nfe
        assert together.loss == pytest.approx(alone.loss, abs=1e-5)
        assert together.grad_norm == pytest.approx(alone.grad_norm, rel=1e-3)
    assert all(record.grad_norm > 0 for record in results.read_steps(single)), "every step must have a signal"


# Three groups: one worker has twice as many as the other.
CHANGES = {"groups": 3, "micro_batch": 3, "learning_rate": 5e-4}


@pytest.mark.timeout(900)
def test_ddp_equals_one_worker(tmp_path):
    """Also where id 0 is forbidden, as the mask's often is: the worker with fewer rows computes empty queries.

    A group without a signal is drawn again, by one worker only.
    """
    changes = {**CHANGES, "forbidden": (0,), "resample": 2}
    work(tmp_path / "one", "ddp", "2steps", **changes)
    launch(tmp_path / "two", "ddp", **changes)
    assert checkpoint.read(tmp_path / "one")[0].problems > 6
    compare(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_with_different_clocks_stop_at_the_same_step(tmp_path):
    """One clock passes the budget in the first step, the other never; evaluating needs both workers."""
    launch(tmp_path, "ddp", "100s", haste=1e4, **CHANGES)
    assert [evaluation.step for evaluation in results.read_evaluations(tmp_path)] == [0, 1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_nan_loss_on_one_worker_keeps_the_finished_steps_of_both(tmp_path):
    """In the second inner iteration of the third step; the last checkpoint was that of the untrained model."""
    changes = {"groups": 4, "size": 8, "save_every": 100, "poison": 5}
    assert "not a number" in launch(tmp_path, "ddp", "6steps", succeeds=False, **changes)
    assert checkpoint.read(tmp_path)[0].step == len(results.read_steps(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lora_rank", [4, 0])
def test_fsdp2_equals_one_worker_and_continues(tmp_path, lora_rank):
    """Sharded, and stopped halfway: the second start restores its shards from the whole tensors on disk."""
    work(tmp_path / "one", "ddp", "2steps", **CHANGES, lora_rank=lora_rank)
    launch(tmp_path / "two", "fsdp", "1step", **CHANGES, lora_rank=lora_rank)
    launch(tmp_path / "two", "fsdp", "2steps", **CHANGES, lora_rank=lora_rank)
    compare(tmp_path / "one", tmp_path / "two")
