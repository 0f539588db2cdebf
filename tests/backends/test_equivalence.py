"""The same requests give the same samples, however they are asked for and whichever worker fails meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

import twotemp
from tests.helpers import toy_task
from tests.helpers.canvases import save_checkpoint
from tests.helpers.fake_workers import Serving, Stumbling, tiny
from tests.helpers.serving_clients import client_of
from tests.helpers.worker_runs import collect, submit
from twotemp import tasks
from twotemp.backends.local import LocalBackend
from twotemp.backends.pool import WorkerPool
from twotemp.backends.process import ProcessTransport
from twotemp.backends.ray import RayTransport
from twotemp.backends.supervisor import Supervisor
from twotemp.backends.worker import ModelLoader
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.models.load import load_text
from twotemp.policies import parse_portfolio
from twotemp.records import Problem
from twotemp.sampling.requests import prompt_names, prompt_requests
from twotemp.tasks import ProblemSet

# A prompt for the embedded models, and one for a random DiffusionGemma, which has no mask and writes three canvases.
PROMPT, WORDS = "20 10 15 -> 45", "w5 w6 w7 w8"
POLICY, N, LENGTH, SEED = "tct:t_pos=0.3,t_token=1", 12, 24, 3
PORTFOLIO = "2*lc:t_token=1 + tct:t_pos=0.3,t_token=1 + 2*tlc:t_pos=0.5,t_token=1"
DOCUMENT = "task/7/0"  # lm-eval's requests are named after task, document and request


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def canvas_model(tmp_path_factory):
    return twotemp.load(save_checkpoint(tmp_path_factory.mktemp("models") / "gemma", sharpness=0.3))


@pytest.fixture(scope="module")
def uniform_model():
    return twotemp.load("tiny-uniform")


def prompt_of(model) -> str:
    return PROMPT if model.name in ("tiny", "tiny-uniform") else WORDS


def body(policy: str, model=None) -> dict[str, Any]:
    return {
        "prompt": PROMPT if model is None else prompt_of(model),
        "n": N,
        "max_tokens": LENGTH,
        "policy": policy,
        "seed": SEED,
    }


def library(model, policy: str = POLICY, ids: list[str] | None = None) -> list[str]:
    """Return the texts that `twotemp.sample` returns; of a portfolio those of its components, drawn one by one."""
    options = {"n": N, "length": LENGTH, "seed": SEED, "chat": False, "ids": ids}
    parsed = parse_portfolio(policy)
    drawn = {c: twotemp.sample(model, prompt_of(model), c, **options) for c in parsed.components}
    return [drawn[parsed.for_sample(index)][index].text for index in range(N)]


# --- every way to ask for samples -----------------------------------------------------------------------------


@dataclass
class Setting:
    """What a way to ask for samples may use."""

    model: Any
    folder: Path
    request: pytest.FixtureRequest
    policy: str = POLICY

    def transport(self, name: str, make, hold_seconds: float = 0.0):
        """Return a transport to workers of this machine, or to actors of a Ray cluster."""
        if name == "process":
            self.request.getfixturevalue("forked_processes")
            return ProcessTransport(make, hold_seconds=hold_seconds)
        return RayTransport(
            make, address=self.request.getfixturevalue("ray_cluster").address, hold_seconds=hold_seconds
        )


def evaluate(setting: Setting, backend) -> list[str]:
    """Return the texts of an evaluation of one problem, whose id is what the library calls the prompt."""
    prompt = prompt_of(setting.model)
    (name,) = prompt_names([setting.model.encode(prompt, chat=False)])
    problem = Problem(name, "toy", prompt)
    with pytest.MonkeyPatch.context() as patch:
        toy_task.install(patch)
        task = replace(tasks.TASKS["toy"], load=lambda **options: ProblemSet((problem,), "one", "generated"))
        patch.setitem(tasks.TASKS, "toy", task)
        plan = Plan(
            (TaskChoice("toy"),),
            (parse_portfolio(setting.policy),),
            n=N,
            length=LENGTH,
            seed=SEED,
            chat=False,
        )
        with Evaluation(plan, setting.folder / "run") as evaluation:
            samples = [s for cell in evaluation.run_with(backend).cells() for s in cell.samples()]
            return [sample.text for sample in sorted(samples, key=lambda sample: sample.index)]


def stream(setting: Setting) -> list[str]:
    texts = [""] * N
    for event in twotemp.stream(
        setting.model, prompt_of(setting.model), setting.policy, N, LENGTH, seed=SEED, chat=False
    ):
        texts[event.index] += event.piece
    return texts


def eval_in_process(setting: Setting) -> list[str]:
    return evaluate(setting, LocalBackend(setting.model, batch_size=5))


class Interrupted(LocalBackend):
    """A backend that the user stops after five samples."""

    def sample(self, requests):
        yield from islice(super().sample(requests), 5)
        raise KeyboardInterrupt


def eval_resumed(setting: Setting) -> list[str]:
    with pytest.raises(KeyboardInterrupt):
        evaluate(setting, Interrupted(setting.model, batch_size=3))
    return evaluate(setting, LocalBackend(setting.model, batch_size=4))


def eval_workers(setting: Setting) -> list[str]:
    name = setting.model.name
    with WorkerPool(setting.transport("process", ModelLoader(name)), 2, load_text(name), unit=5) as pool:
        return evaluate(setting, pool)


def eval_ray(setting: Setting) -> list[str]:
    name = setting.model.name
    with WorkerPool(setting.transport("ray", ModelLoader(name)), 1, load_text(name), unit=5) as pool:
        return evaluate(setting, pool)


def http(setting: Setting) -> list[str]:
    with client_of(setting.model) as client:
        reply = client.post("/v1/completions", json=body(setting.policy, setting.model)).json()
    return [choice["text"] for choice in reply["choices"]]


def serve_workers(setting: Setting) -> list[str]:
    name = setting.model.name
    service = Supervisor(setting.transport("process", Serving(name)), 2, depth=4)
    with client_of(load_text(name), service=service) as client:
        reply = client.post("/v1/completions", json=body(setting.policy, setting.model)).json()
    return [choice["text"] for choice in reply["choices"]]


def lm_eval(setting: Setting) -> list[str]:
    pytest.importorskip("lm_eval", reason="needs the extra: pip install 'twotemp[lm-eval]'")
    from lm_eval.api.instance import Instance

    from twotemp.integrations.lm_eval import TwoTemp

    harness = TwoTemp(setting.model, policy=setting.policy.replace(",", ";"), length=LENGTH, seed=SEED)
    task, document, _ = DOCUMENT.split("/")
    instance = Instance(
        "generate_until", {}, (prompt_of(setting.model), {"until": []}), 0, metadata=(task, int(document), N)
    )
    return harness.generate_until([instance] * N, disable_tqdm=True)


def inspect(setting: Setting) -> list[str]:
    pytest.importorskip("inspect_ai", reason="needs the extra: pip install 'twotemp[inspect]'")
    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from twotemp.integrations.inspect_ai import TwoTempAPI

    api = TwoTempAPI(setting.model.name, policy=setting.policy.replace(",", ";"), length=LENGTH, chat=False)
    try:
        config = GenerateConfig(num_choices=N, seed=SEED)
        output = asyncio.run(
            api.generate([ChatMessageUser(content=prompt_of(setting.model))], [], "none", config)
        )
    finally:
        api.close()
    return [choice.message.text for choice in output.choices]


WAYS = [stream, eval_in_process, eval_resumed, eval_workers, eval_ray, http, serve_workers, lm_eval, inspect]


CASES = {
    "policy": ("model", POLICY),
    "portfolio": ("model", PORTFOLIO),
    "uniform": ("uniform_model", POLICY),
    "canvases": ("canvas_model", POLICY),
}


@pytest.mark.parametrize(("kind", "policy"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("ask", WAYS)
def test_the_same_requests_give_the_same_samples(tmp_path, request, ask, kind, policy):
    model = request.getfixturevalue(kind)
    expected = library(model, policy, ids=[DOCUMENT] if ask is lm_eval else None)
    assert len(set(expected)) > 3, "the samples differ from each other"
    assert ask(Setting(model, tmp_path, request, policy)) == expected


# --- the same when a worker fails -----------------------------------------------------------------------------

HANG_SECONDS = 5.0


def watch_rows(setting: Setting, transport) -> tuple[list[str], Supervisor]:
    """Submit requests as a server does, and put the texts together from the tokens of every step."""
    requests = list(prompt_requests(setting.model, PROMPT, setting.policy, N, LENGTH, seed=SEED, chat=False))
    with Supervisor(transport, 1, depth=4, hang_seconds=HANG_SECONDS) as service:
        _, events = submit(service, requests, watch=True)
        rows = collect(events, N, seconds=120)
    texts = []
    for index in range(N):
        *steps, sample = rows[index]
        assert [written.step for written in steps] == list(range(sample.nfe)), (
            "no step is missing or repeated"
        )
        tokens = {position: token for written in steps for position, token, _ in written.commits}
        assert tuple(tokens[position] for position in sample.positions) == sample.tokens
        texts.append(sample.text)
    return texts, service


def evaluate_on(setting: Setting, transport) -> tuple[list[str], Supervisor]:
    with WorkerPool(transport, 1, load_text("tiny"), unit=5, hang_seconds=HANG_SECONDS) as pool:
        return evaluate(setting, pool), pool


def stream_http(setting: Setting, transport) -> tuple[list[str], Supervisor]:
    """Read the pieces of all rows from the server's event stream."""
    service = Supervisor(transport, 1, depth=4, hang_seconds=HANG_SECONDS)
    texts = [""] * N
    with (
        client_of(load_text("tiny"), service=service) as client,
        client.stream("POST", "/v1/completions", json=body(setting.policy) | {"stream": True}) as reply,
    ):
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["text"]
    return texts, service


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "hang"])
@pytest.mark.parametrize("transport", ["process", "ray"])
@pytest.mark.parametrize("ask", [watch_rows, evaluate_on, stream_http])
def test_a_worker_that_fails_is_replaced_and_the_client_gets_the_same_rows(
    model, tmp_path, request, ask, transport, how
):
    (marks := tmp_path / "marks").mkdir()
    setting = Setting(model, tmp_path, request)
    texts, service = ask(setting, setting.transport(transport, Stumbling(marks, how, after=6, make=tiny)))
    assert len(list(marks.iterdir())) == 1, "a worker failed"
    assert service.resent > 0, "in the middle of a row"
    assert texts == library(model)


def was_stopped(marks: Path, seconds: float = 120) -> bool:
    """Wait for a worker's mark, then return whether the kernel says that this process is stopped by a signal."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for mark in marks.iterdir():
            try:
                status = Path("/proc", mark.read_text(), "status").read_text()
            except OSError:  # the mark is not written yet, or the process has ended
                continue
            if "State:\tT" in status:
                return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["process", "ray"])
def test_a_worker_frozen_by_a_signal_changes_no_row_of_an_http_stream(model, tmp_path, request, transport):
    """Unlike one that sleeps, a stopped process sends nothing at all, not even from its other threads."""
    (marks := tmp_path / "marks").mkdir()
    setting = Setting(model, tmp_path, request)
    # Before the thread, which would wait in vain if the test is skipped for lack of Ray.
    workers = setting.transport(transport, Stumbling(marks, "stop", after=6, make=tiny))
    with ThreadPoolExecutor(1) as watcher:
        stopped = watcher.submit(was_stopped, marks)
        texts, service = stream_http(setting, workers)
    assert stopped.result(), "the worker was stopped"
    assert len(list(marks.iterdir())) == 1
    assert service.resent > 0, "in the middle of a row"
    assert texts == library(model)
