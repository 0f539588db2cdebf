"""`--workers` gives the samples of one process, and a killed driver can be restarted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.helpers import toy_task
from tests.helpers.fake_workers import FreeBackend
from tests.helpers.killing import kill_at_random
from tests.helpers.toy_runs import rows
from tests.helpers.worker_runs import DRIVER_PLAN
from twotemp.backends.pool import cut
from twotemp.backends.worker import ModelLoader
from twotemp.cli import app
from twotemp.cli import workers as cli
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation
from twotemp.policies import parse
from twotemp.records import Request
from twotemp.rl.results import read_evaluations
from twotemp.store import Store


def drawn(out: Path) -> dict:
    samples = (sample for cell in Store.open(out).cells() for sample in cell.samples())
    return {(s.key, s.policy): (s.tokens, s.text, s.nfe) for s in samples}


def test_workers_draw_the_samples_that_one_process_draws(micro_folder, tmp_path, forked_processes):
    """Also where one process began the run and workers finish it."""

    def evaluate(out: str, n: int, *more: str):
        options = ["--tasks", "countdown-3", "--policies", "ar,tct", "--questions", "4", "-n", str(n)]
        done = CliRunner().invoke(
            app, ["eval", "--model", str(micro_folder), *options, *more, "--out", str(tmp_path / out)]
        )
        assert done.exit_code == 0, done.output
        return done

    evaluate("here", 6)
    evaluate("workers", 2)
    errors = evaluate("workers", 6, "--workers", "2").stderr
    assert errors.count("drawing with 2 workers, 1 thread each") == 1
    assert "batch size" not in errors, "workers do not print"
    assert len(drawn(tmp_path / "here")) == 2 * 4 * 6
    assert drawn(tmp_path / "workers") == drawn(tmp_path / "here")


OTHERS = {
    "forks": "--questions 3 --quantile 0.98 --alternatives 2 --json",
    "tune": "--policies ar:t_token=1,lc:t_token=1 --at pass@2 --budget 2000 --questions 4 --json",
    "grpo": "--policy tct --budget 2steps --groups 2 --size 4 --lora-rank 4 --held-out 4 --device cpu",
}


@pytest.mark.parametrize("command", [pytest.param("forks", marks=pytest.mark.slow), "tune", "grpo"])
def test_other_commands_give_the_same_results_with_workers(micro_folder, tmp_path, forked_processes, command):
    """Compare the forks, the race, and the evaluations before and after training."""

    def printed(out: Path, *more: str):
        asked = [command, "--model", str(micro_folder), "--task", "countdown-3", "--out", str(out)]
        done = CliRunner().invoke(app, [*asked, *OTHERS[command].split(), *more])
        assert done.exit_code == 0, done.output
        assert done.stderr.count("drawing with 2 workers") == (len(more) > 0) * (1 + (command == "grpo"))
        if command == "grpo":
            return [(evaluation.step, evaluation.points) for evaluation in read_evaluations(out)]
        return done.stdout

    alone, pooled = printed(tmp_path / "here"), printed(tmp_path / "there", "--workers", "2")
    assert alone
    assert alone == pooled
    assert not list((tmp_path / "there").glob(".tmp-*")), "the weights written for workers are removed"


def test_a_worker_loads_the_plug_ins_of_its_driver(micro_folder, tmp_path, forked_processes):
    """Neither the driver nor its worker has seen the file before."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from dataclasses import replace\n"
        "from twotemp import plugins\n"
        "from twotemp.policies import parse\n"
        "plugins.add_policy(replace(parse('lc'), name='mine'))\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from twotemp.cli import main; main()"),
            *("eval", "--model", str(micro_folder)),
            *("--tasks", "countdown-3", "--questions", "1", "-n", "2", "--workers", "1"),
            *("--policies", "mine", "--plugin", str(plugin), "--out", str(tmp_path / "mine")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(drawn(tmp_path / "mine")) == 2
    assert f"twotemp report {tmp_path / 'mine'} --plugin {plugin}" in done.stderr, (
        "the next command needs it as well"
    )


@pytest.mark.parametrize(
    ("model", "samples", "device", "gpus", "count"),
    [
        ("tiny", 100_000, "cpu", 0, 8),
        ("tiny", 5000, "cpu", 0, 4),
        ("tiny", 10, "cpu", 0, 1),
        ("large", 100_000, "cpu", 0, 1),
        ("large", 100_000, "cuda", 4, 4),
        ("large", 100_000, "cuda", 0, 1),  # --device cuda:1
        ("large", 300, "cuda", 4, 4),
        ("large", 70, "cuda", 4, 2),
        ("large", 300, "cpu", 0, 1),
        ("tiny", 300, "cuda", 4, 1),
    ],
)
def test_the_default_number_of_workers(tmp_path, monkeypatch, model, samples, device, gpus, count):
    monkeypatch.setattr(cli, "usable_cpus", lambda: 8)
    if model == "large":
        model = str(tmp_path)
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.truncate(cli.LARGE_BYTES + 1)
    assert cli.default_workers(model, samples, device, gpus) == count


@pytest.mark.parametrize(("batch_size", "units"), [(None, 10), (8, 10), (64, 5)])
def test_units_of_a_large_model_keep_four_gpus_busy(tmp_path, batch_size, units):
    """300 samples in units of 256 would be two units, for two GPUs."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(cli.LARGE_BYTES + 1)
    asked = [Request(str(number), (1, 2), parse("tct"), 4) for number in range(300)]
    job = cli.Workload(str(tmp_path), cli.LoadingOptions(), 300, batch_size)
    assert len(list(cut(asked, job.unit_size()))) == units
    assert cli.Workload("tiny", cli.LoadingOptions(), 300, batch_size).unit_size() is None


def test_a_worker_makes_its_gpu_the_current_device(monkeypatch):
    chosen = []
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr("twotemp.models.load.load", lambda model, **options: options)
    loader = ModelLoader("tiny", gpus=4)
    assert [loader.load(index) for index in (1, 6)] == [{"device": "cuda:1"}, {"device": "cuda:2"}]
    assert chosen == [1, 2]


def test_profile_refuses_workers(micro_folder, tmp_path):
    asked = ["eval", "--model", str(micro_folder), "--tasks", "countdown-3", "--questions", "1", "-n", "1"]
    done = CliRunner().invoke(app, [*asked, "--profile", "--workers", "2", "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, UserError)
    assert "leave --workers, --ray and --sglang out" in str(done.exception)


def test_device_map_refuses_workers(monkeypatch):
    monkeypatch.setattr(cli, "devices", lambda device: ("cuda", 4))
    spread = cli.Workload("tiny", cli.LoadingOptions(device_map="auto"), samples=10**6)
    assert cli.WorkerOptions()._remote(spread) is None
    with pytest.raises(UserError, match="leave --workers and --ray out"):
        cli.WorkerOptions(workers=2)._remote(spread)


DRIVER = """
import sys
import pytest
from tests.helpers import fake_workers, toy_task, worker_runs
from twotemp.backends.pool import WorkerPool
from twotemp.backends.process import ProcessTransport
from twotemp.evaluation import Evaluation
from twotemp.rl.results import read_evaluations
toy_task.install(pytest.MonkeyPatch())
with Evaluation(worker_runs.DRIVER_PLAN, sys.argv[1]) as prepared:
    with WorkerPool(ProcessTransport(fake_workers.slow), 2, fake_workers.FreeText(), unit=16) as backend:
        backend.name
        print("ready", flush=True)
        prepared.run_with(backend)
"""


def test_a_restarted_driver_draws_only_what_is_missing(tmp_path, monkeypatch, forked_processes):
    toy_task.install(monkeypatch)
    run = tmp_path / "run"
    command = [sys.executable, "-c", DRIVER, str(run)]
    assert kill_at_random(command, kills=2, longest=3.0, ready="ready", seed=3) == 2
    before = rows(run)
    assert 0 < len(before) < 2 * 2 * 8 * 6, "the kills came in the middle"
    with Evaluation(DRIVER_PLAN, run) as prepared:
        prepared.run_with(FreeBackend())
    with Evaluation(DRIVER_PLAN, tmp_path / "whole") as prepared:
        assert rows(prepared.run_with(FreeBackend())) == rows(run)
