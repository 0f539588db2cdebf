"""The same requests give the same samples, whichever way they are asked for (Ray: tests/backends/test_ray.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

import twotemp
from tests.helpers import toy_task
from tests.helpers.fake_workers import tiny
from tests.helpers.serving_clients import client_of
from twotemp import tasks
from twotemp.backends.local import LocalBackend
from twotemp.backends.pool import WorkerPool
from twotemp.backends.process import ProcessTransport
from twotemp.backends.supervisor import Supervisor
from twotemp.backends.worker import ModelLoader
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.models.load import load_text
from twotemp.policies import parse
from twotemp.records import Problem
from twotemp.sampling.prompts import prompt_names
from twotemp.tasks import ProblemSet

PROMPT, POLICY, N, LENGTH, SEED = "20 10 15 -> 45", "tct:t_pos=0.3,t_token=1", 12, 24, 3


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


def name(model) -> str:
    """The id that the prompt has where the caller gives it none."""
    return prompt_names([model.encode(PROMPT, chat=False)])[0]


def library(model, ids: list[str] | None = None) -> list[str]:
    options = {"n": N, "length": LENGTH, "seed": SEED, "chat": False, "ids": ids}
    return [sample.text for sample in twotemp.sample(model, PROMPT, POLICY, **options)]


def stream(model, tmp_path) -> list[str]:
    texts = [""] * N
    for event in twotemp.stream(model, PROMPT, POLICY, N, LENGTH, seed=SEED, chat=False):
        texts[event.index] += event.piece
    return texts


def evaluate(model, backend, folder) -> list[str]:
    """An evaluation of one problem, whose id is the prompt's."""
    problem = Problem(name(model), "toy", PROMPT)
    with pytest.MonkeyPatch.context() as patch:
        toy_task.install(patch)
        task = replace(tasks.TASKS["toy"], load=lambda **options: ProblemSet((problem,), "one", "generated"))
        patch.setitem(tasks.TASKS, "toy", task)
        plan = Plan((TaskChoice("toy"),), (parse(POLICY),), n=N, length=LENGTH, seed=SEED, chat=False)
        with Evaluation(plan, folder) as evaluation:
            (cell,) = evaluation.run_with(backend).cells()
            return [sample.text for sample in sorted(cell.samples(), key=lambda sample: sample.index)]


def evaluation(model, tmp_path) -> list[str]:
    return evaluate(model, LocalBackend(model, batch_size=5), tmp_path / "run")


def evaluation_workers(model, tmp_path) -> list[str]:
    text = load_text("tiny")
    with WorkerPool(ProcessTransport(ModelLoader("tiny")), 2, text, unit=5) as pool:
        return evaluate(model, pool, tmp_path / "run")


def http(model, tmp_path, service=None) -> list[str]:
    body = {"prompt": PROMPT, "n": N, "max_tokens": LENGTH, "policy": POLICY, "seed": SEED}
    with client_of(model, service=service) as client:
        answer = client.post("/v1/completions", json=body).json()
    return [choice["text"] for choice in answer["choices"]]


def http_workers(model, tmp_path) -> list[str]:
    return http(load_text("tiny"), tmp_path, Supervisor(ProcessTransport(tiny, beat=0.0), 2, depth=4))


def inspect(model, tmp_path) -> list[str]:
    pytest.importorskip("inspect_ai", reason="needs the extra: pip install 'twotemp[inspect]'")
    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from twotemp.integrations.inspect_ai import TwoTempAPI

    api = TwoTempAPI("tiny", policy=POLICY.replace(",", ";"), length=LENGTH, chat=False)
    try:
        config = GenerateConfig(num_choices=N, seed=SEED)
        output = asyncio.run(api.generate([ChatMessageUser(content=PROMPT)], [], "none", config))
    finally:
        api.close()
    return [choice.message.text for choice in output.choices]


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("door", [stream, evaluation, evaluation_workers, http, http_workers, inspect])
def test_the_same_requests_give_the_same_samples(model, tmp_path, door: Callable[..., list[str]]):
    expected = library(model)
    assert len(set(expected)) > 3, "not all alike"
    assert door(model, tmp_path) == expected


def test_lm_eval_draws_the_samples_of_its_documents(model):
    """Its requests are named after the document."""
    pytest.importorskip("lm_eval", reason="needs the extra: pip install 'twotemp[lm-eval]'")
    from lm_eval.api.instance import Instance

    from twotemp.integrations.lm_eval import TwoTemp

    plug = TwoTemp(model, policy=POLICY.replace(",", ";"), length=LENGTH, seed=SEED)
    instance = Instance("generate_until", {}, (PROMPT, {"until": []}), 0, metadata=("task", 7, N))
    texts = plug.generate_until([instance] * N, disable_tqdm=True)
    assert texts == library(model, ids=["task/7/0"])
