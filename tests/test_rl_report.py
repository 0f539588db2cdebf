"""`twotemp grpo` from start to report, as a user would run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from accelerate.state import AcceleratorState, PartialState
from typer.testing import CliRunner

from tests.rl_toys import micro_model
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.models.checkpoint import save
from twotemp.models.load import load
from twotemp.report import grpo
from twotemp.rl import telemetry


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save(micro_model(), tmp_path_factory.mktemp("models") / "micro")


@pytest.fixture(autouse=True)
def one_process():
    yield
    AcceleratorState._reset_state()
    PartialState._reset_state()


def arguments(checkpoint: Path, out: Path, policy: str, budget: str = "3steps") -> list[str]:
    return (
        f"grpo --model {checkpoint} --task countdown-3 --policy {policy} --budget {budget} --out {out} "
        "--groups 2 --size 4 --lora-rank 4 --held-out 5 --device cpu --format-weight 0.1"
    ).split()


def test_train_twice_and_compare(checkpoint, tmp_path):
    for policy in ("ar", "tct:t_pos=0.1"):
        run = tmp_path / policy[:2]
        result = CliRunner().invoke(app, arguments(checkpoint, run, policy))
        assert result.exit_code == 0, result.output
        assert "accuracy before" in result.output
        assert load(run / "model", device="cpu").mask_id == micro_model().mask_id
    result = CliRunner().invoke(app, ["report", str(tmp_path / "ar"), str(tmp_path / "tc")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "ar" / "report" / "grpo.md").read_text()
    assert "Autoregressive | 3 |" in page
    assert "TCT (t_pos=0.1) | 3 |" in page
    for kind in ("png", "pdf"):
        assert (tmp_path / "ar" / "report" / f"grpo.{kind}").stat().st_size > 10_000


def test_ctrl_c_ends_after_the_step_and_the_same_command_continues(checkpoint, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", "from twotemp.cli import main; main()"]
    command += arguments(checkpoint, run, "tct", "100000steps")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and len(telemetry.read(run)) < 2:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    done = len(telemetry.read(run))
    assert f"stopped after step {done}; the same command continues" in errors
    result = CliRunner().invoke(app, arguments(checkpoint, run, "tct", f"{done + 1}steps"))
    assert result.exit_code == 0, result.output
    assert [record.step for record in telemetry.read(run)] == list(range(1, done + 2))


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(UserError, match="no GRPO run"):
        grpo.read(tmp_path)


def test_running_mean():
    values = np.arange(40, dtype=float)
    found = grpo.running_mean(values)  # a window of 2
    np.testing.assert_allclose(found[:3], [0.0, 0.5, 1.5])
    np.testing.assert_allclose(found[-1], 38.5)
