"""`twotemp grpo` from start to report, as a user would run it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.helpers.rl_toys import micro_model
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.folders import claim, read_run
from twotemp.models.checkpoint import save
from twotemp.models.load import load
from twotemp.policies import parse
from twotemp.report import grpo
from twotemp.rl import results


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save(micro_model(), tmp_path_factory.mktemp("models") / "micro")


def arguments(checkpoint: Path, out: Path, policy: str, budget: str = "3steps") -> list[str]:
    return (
        f"grpo --model {checkpoint} --task countdown-3 --policy {policy} --budget {budget} --out {out} "
        "--groups 2 --size 4 --lora-rank 4 --held-out 5 --device cpu --format-weight 0.1"
    ).split()


@pytest.mark.slow
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


def test_ctrl_c_ends_after_the_step_and_the_same_command_continues(checkpoint, tmp_path, forked_processes):
    run = tmp_path / "run"
    command = [sys.executable, "-c", "from twotemp.cli import main; main()"]
    command += arguments(checkpoint, run, "tct", "100000steps")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and len(results.read_steps(run)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    done = len(results.read_steps(run))
    assert f"stopped after step {done}; it is kept in {run}, and the same command continues" in errors
    result = CliRunner().invoke(app, arguments(checkpoint, run, "tct", f"{done + 1}steps"))
    assert result.exit_code == 0, result.output
    assert [record.step for record in results.read_steps(run)] == list(range(1, done + 2))
    groups = list(results.read_rollouts(run))
    assert [group.step for group in groups] == [step for step in range(1, done + 2) for _ in range(2)]
    for record in results.read_steps(run):
        rewards = [r for group in groups if group.step == record.step for r in group.rewards]
        assert record.reward == pytest.approx(np.mean(rewards))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--device gpu9", "give cpu"),
        ("--length 0", "length must be"),
        ("--held-out -395", "--held-out"),
        ("--task math500 --held-out 0", "give a file of them"),
        ("--policy tlc --likelihood deferral", "use --likelihood trajectory"),
        (
            "--policy tct --likelihood d1 --merge-steps 4",
            "merge_steps works with --likelihood trajectory only",
        ),
        ("--policy t2m --likelihood trajectory", "rewrites tokens"),
        ("--task gsm8k --held-out 0 --data nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_written(
    checkpoint, tmp_path, option, message
):
    given = [*arguments(checkpoint, tmp_path / "run", "tct"), *option.split()]
    result = CliRunner().invoke(app, given)
    assert result.exit_code
    assert message in f"{result.output} {result.exception}"
    assert not (tmp_path / "run").exists()


def test_held_out_problems_from_a_file(checkpoint, tmp_path):
    """--eval-data need not be the published file."""
    rows = [{"question": f"2 + {n}", "answer": f"#### {2 + n}"} for n in range(2)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = arguments(checkpoint, tmp_path / "run", "tct", "1step")
    given += (
        f"--task gsm8k --data {tmp_path}/train.jsonl --eval-data {tmp_path}/test.jsonl --length 4".split()
    )
    result = CliRunner().invoke(app, given)
    assert "has no token for" in str(
        result.exception
    )  # the micro model cannot read English, but the run began
    assert read_run(tmp_path / "run")["held_out"].startswith("2 questions")


def stored_run(folder: Path, policy: str, model: str = "tiny", evaluated: bool = True) -> Path:
    """A run's folder as `twotemp grpo` leaves it, of two steps."""
    described = {"model": model, "task": "countdown-3", "settings": {"policy": parse(policy).to_dict()}}
    claim(folder, "grpo", described)
    log = results.open_steps(folder, 0)
    numbers = dict.fromkeys((field.name for field in fields(results.StepRecord)), 0.5)
    for step in (1, 2):
        counts = {"step": step, "ungraded": 0, "total_nfe": 7 * step}
        log.add({**numbers, **counts, "total_seconds": 90.0 * step})
    for step in (0, 2) if evaluated else ():
        point = results.Point(0.6, 0.5, 0.0, 1.0, 2.0, (1.0, 0.0), (2, 2))
        results.add_evaluation(folder, results.GreedyEvaluation(step, 0.0, ("a", "b"), (point,)))
    return folder


def legend(runs: list[Path], out: Path, monkeypatch) -> list[str]:
    from matplotlib.figure import Figure

    entries: list[str] = []
    monkeypatch.setattr(Figure, "legend", lambda self, handles, labels, **_: entries.extend(labels))
    grpo.write(runs, out)
    return entries


def test_the_legend_names_runs_with_and_without_evaluations(tmp_path, monkeypatch):
    ar, ct = stored_run(tmp_path / "ar", "ar", evaluated=False), stored_run(tmp_path / "ct", "ct")
    assert legend([ar, ct], tmp_path, monkeypatch) == ["Autoregressive", "Fast-dLLM (CT)", "before training"]


def test_runs_of_one_policy_have_names_and_colors_that_differ(tmp_path, monkeypatch):
    runs = [stored_run(tmp_path / name, "ct", model=f"models/{name}") for name in "ab"]
    expected = {"Fast-dLLM (CT), a", "Fast-dLLM (CT), b", "a before training", "b before training"}
    assert set(legend(runs, tmp_path, monkeypatch)) == expected
    first, second = grpo._lines([grpo.read(run) for run in runs])
    assert first["color"] != second["color"]


def test_an_ungraded_check_up_is_read_as_it_was_written(tmp_path):
    nan = float("nan")
    point = results.Point(0.6, nan, nan, nan, 2.0, (nan, nan), (2, 2))
    for step in (0, 1):
        results.add_evaluation(tmp_path, results.GreedyEvaluation(step, 1.0, ("a", "b"), (point,)))
    assert grpo.compare(*results.read_evaluations(tmp_path))[0][1:4] == ["nan", "nan", "+nan"]


def test_the_table_gives_steps_minutes_and_nfe(tmp_path):
    page, _ = grpo.write([stored_run(tmp_path / "ct", "ct")], tmp_path)
    assert "| Fast-dLLM (CT) | 2 | 3.0 | 14 |" in page.read_text()


def test_the_error_names_a_damaged_description(tmp_path):
    run = stored_run(tmp_path / "ct", "ct")
    (run / "run.json").write_text('{"model')
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        grpo.read(run)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        grpo.read(tmp_path)


def test_running_mean():
    values = np.arange(40, dtype=float)
    means = grpo.running_mean(values)  # a window of 2
    np.testing.assert_allclose(means[:3], [0.0, 0.5, 1.5])
    np.testing.assert_allclose(means[-1], 38.5)
