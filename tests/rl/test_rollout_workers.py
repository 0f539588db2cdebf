"""Rollouts drawn by workers: their weights follow the training, and the training is that of one process."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import pytest
import torch
from typer.testing import CliRunner

from tests.helpers.rl_toys import go, micro_model, same, settings, tensors
from tests.helpers.serving_clients import wait_for
from twotemp.backends.local import LocalService
from twotemp.backends.pool import WorkerPool
from twotemp.backends.process import ProcessTransport
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.models.checkpoint import save
from twotemp.models.load import load, load_text
from twotemp.policies import policy
from twotemp.records import Request
from twotemp.rl import results
from twotemp.rl.learner import Learner
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import RolloutLoader

# Strong enough that samples differ after each step.
CHANGES = {"learning_rate": 5e-3, "groups": 3, "beta": 0.0}


@pytest.fixture
def folder(tmp_path):
    return save(micro_model(), tmp_path / "micro")


def workers(folder, count: int, unit: int | None = None, **changes) -> WorkerPool:
    loader = RolloutLoader(str(folder), {"device": "cpu"}, slots=128, settings=settings(**changes))
    return WorkerPool(ProcessTransport(loader, threads=1), count, load_text(folder), unit=unit)


def test_training_with_a_worker_is_training_in_one_process_also_after_the_worker_is_killed(
    tmp_path, folder, forked_processes
):
    go(tmp_path / "one", "4steps", questions=0, **CHANGES)
    pids, assigned = [], []

    def kill_before_the_third_step() -> bool:
        pids.append(pool._slots[0].link.pid)
        if len(pids) == 3:
            os.kill(pids[-1], signal.SIGKILL)
        return False

    with workers(folder, 1, **CHANGES) as pool:
        honest = pool.assign
        pool.assign = lambda weights: assigned.append(len(weights)) or honest(weights)
        go(
            tmp_path / "two",
            "4steps",
            questions=0,
            drawing=lambda: nullcontext(pool),
            stop=kill_before_the_third_step,
            **CHANGES,
        )
    assert len(set(pids)) == 2
    assert len(assigned) == 4
    assert same(tensors(tmp_path / "two"), tensors(tmp_path / "one"))


def test_several_workers_share_a_step_and_draw_the_same_samples(tmp_path, folder, forked_processes):
    go(tmp_path / "one", "2steps", questions=0, **CHANGES)
    with workers(folder, 2, unit=6, **CHANGES) as pool:
        wait_for(lambda: pool.ready == 2)
        go(tmp_path / "two", "2steps", questions=0, drawing=lambda: nullcontext(pool), **CHANGES)
    assert same(tensors(tmp_path / "two"), tensors(tmp_path / "one"))


def test_the_adapters_of_a_half_precision_model_are_those_of_the_training_process(tmp_path):
    source = micro_model()
    source.module.to(torch.bfloat16)
    folder = save(source, tmp_path / "half")
    learner = Learner(load(folder, device="cpu", dtype="bfloat16"), settings(), accelerator(cpu=True))
    for number, parameter in enumerate(p for p in learner.network.parameters() if p.requires_grad):
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(number))
    loader = RolloutLoader(str(folder), {"device": "cpu", "dtype": "bfloat16"}, settings=settings())
    with LocalService(loader.load(0), slots=1) as service:
        service.assign(learner.sampling_weights())
    ids = torch.arange(10, 16)[None]
    want = torch.ones_like(ids, dtype=torch.bool)
    with learner.sampling() as trained, torch.inference_mode():
        expected = trained.logits(ids, None, want)
        assert torch.equal(service.model.logits(ids, None, want), expected)
    assert expected.dtype == torch.float32


def test_weights_change_between_requests_only(folder, forked_processes):
    asked = Request("q", (10, 11, 12), policy("lc"), 40)
    with workers(folder, 1) as pool:
        pool.submit_all([asked], lambda event: None)
        with pytest.raises(UserError, match="1 requests are unfinished"):
            pool.assign({})


def test_a_service_assigns_weights_once_its_rows_have_ended(folder):
    model = RolloutLoader(str(folder), {"device": "cpu"}, settings=settings()).load(0)
    name = next(name for name, p in model.module.named_parameters() if p.requires_grad)
    ended = []
    with LocalService(model, slots=1) as service:
        service.submit(Request("q", (10, 11, 12), policy("lc"), 40), ended.append)
        service.assign({name: torch.full_like(model.module.get_parameter(name), 7.0)})
        assert len(ended) == 1
        with pytest.raises(UserError, match="has no parameter other"):
            service.assign({"other": torch.ones(1)})
    assert (model.module.get_parameter(name) == 7).all()


def test_the_command_draws_with_workers(tmp_path, folder, forked_processes):
    asked = (
        f"grpo --model {folder} --task countdown-3 --budget 1steps --out {tmp_path / 'run'} --rollout-workers 2 "
        "--groups 2 --size 3 --length 4 --lora-rank 4 --held-out 0 --device cpu"
    )
    done = CliRunner().invoke(app, asked.split())
    assert done.exit_code == 0, done.output
    assert len(results.read_steps(tmp_path / "run")) == 1
