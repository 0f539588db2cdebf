"""Drawing over HTTP, from a server in a thread that answers as SGLang does (fake_sglang.py)."""

from __future__ import annotations

import json
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from pathlib import Path
from threading import Lock, Thread
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import fake_sglang
from fake_sglang import LENGTH, wanted
from twotemp.backends.local import LocalBackend
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.models.load import load_text
from twotemp.plugins import backend
from twotemp_sglang.client import SglangBackend
from twotemp_sglang.server import VERSION, register


@contextmanager
def server(engine, *, stumbles: int = 0, decides: str = "TwoTemp", get=None, instead=None):
    """Yields the address; answers to the first units are lost. instead: what the server answers to units."""
    state, lock = SimpleNamespace(left=stumbles), Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer({"dllm_algorithm": decides})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reqs = [
                fake_sglang.req(
                    tuple(ids), params["max_new_tokens"], engine.config, **params["custom_params"]
                )
                for ids, params in zip(body["input_ids"], body["sampling_params"])
            ]
            for one in reqs:
                if error := engine.algorithm.validate_request(one):
                    self.answer({"error": {"message": error}}, 400)
                    return
            with lock:
                engine.generate(reqs)
                if len(reqs) > 1 and state.left:  # not the probe
                    state.left -= 1
                    self.connection.close()
                    return
            said = [self.told(one) for one in reqs]
            self.answer(said if instead is None or len(reqs) == 1 else instead)

        def told(self, one):
            length = one.sampling_params.max_new_tokens
            info = {name: values[:length] for name, values in one.customized_info.items()}
            return {
                "output_ids": one.output_ids[:length],
                "meta_info": {**info, "e2e_latency": 0.5, "cached_tokens": 0},
            }

        def answer(self, data, status=200):
            text = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    Handler.do_GET = get or Handler.do_GET
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()


@pytest.fixture
def engine(checkpoint, algorithm):
    return fake_sglang.Engine(algorithm, *checkpoint, fdfo=True)


@pytest.mark.parametrize("stumbles", [0, 1])
def test_a_server_draws_what_this_process_draws_also_where_a_connection_breaks(checkpoint, engine, stumbles):
    model, folder = checkpoint
    requests = wanted("ar", "tlc:t_pos=1", "tct") + [replace(r, trace=False) for r in wanted("ct")]
    expected = {(s.key, s.policy): s for s in LocalBackend(model).sample(requests)}
    with server(engine, stumbles=stumbles) as url, SglangBackend(url, load_text(folder), unit=3) as backend:
        found = list(backend.sample(requests))
    assert (backend.resent > 0) == bool(stumbles)
    assert len(found) == len(requests) == len(expected)
    for sample in found:
        own = expected[sample.key, sample.policy]
        # Passes and times are the server's own.
        costs = {"forwards": 0, "processed": 0, "seconds": 0.0, "trace": None}
        assert replace(sample, **costs) == replace(own, **costs)
        assert sample.seconds == 0.5
        assert sample.forwards > sample.nfe > 0
        if own.trace is None:
            assert sample.trace is None
        else:
            assert sample.trace.steps == own.trace.steps
            assert sample.trace.confidence == pytest.approx(own.trace.confidence, abs=1e-5)


def test_the_fingerprint_tells_models_apart_without_their_weights(checkpoint, engine):
    model, folder = checkpoint
    marks = []
    for scale in (1, 1, -1):
        with server(engine) as url:
            model.module.lm_head.weight.data.mul_(scale)
            with SglangBackend(url, load_text(folder)) as backend:
                marks.append(backend.fingerprint)
    model.module.lm_head.weight.data.mul_(-1)
    assert marks[0] == marks[1] != marks[2]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the plug-in's entry points in `folder`, as `pip install` does, and put it on the path."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = folder / f"twotemp_sglang-{project['version']}.dist-info"
    declared.mkdir(parents=True)
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (declared / "entry_points.txt").write_text("\n".join(lines))
    (declared / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_entry_points_lead_to_both_halves(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    assert backend("sglang") is SglangBackend
    points = entry_points(group="sglang.srt.plugins", name="twotemp")
    assert [point.load() for point in points if point.dist.name == "twotemp-sglang"] == [register]


def test_the_pin_in_the_project_is_that_of_the_code():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["server"] == [f"sglang=={VERSION}"]


def test_eval_through_a_server_fills_a_run_as_ever_and_another_model_is_refused(
    checkpoint, engine, tmp_path, monkeypatch
):
    install(tmp_path / "installed", monkeypatch)
    _, folder = checkpoint
    task = tmp_path / "task.py"
    task.write_text(
        "from twotemp.plugins import add_task\n"
        "from twotemp.records import Problem\n"
        "from twotemp.tasks import ProblemSet, Task\n"
        "def load(data=None, prompt=None, subset=None):\n"
        "    return ProblemSet((Problem('w/0', 'words', 'a b', {'answer': 'c'}),), '1', 'here')\n"
        f"add_task(Task('words', 'say a word', grader='maths', length={LENGTH}, load=load))\n"
    )
    run_ = ["eval", "--model", str(folder), "--tasks", "words", "--policies", "tct", "-n", "3"]
    run_ += ["--plugin", str(task), "--out", str(tmp_path / "run")]

    def evaluate(*more):
        return CliRunner().invoke(app, [*run_, *more])

    with server(engine) as url:
        first = evaluate("--sglang", url)
        assert first.exit_code == 0, first.output
        assert "drawing through the SGLang server" in first.output
        again = evaluate("--sglang", url)
        assert again.exit_code == 0, again.output
        for option in (["--ray", "auto"], ["--profile"], ["--dtype", "bfloat16"]):
            refused = evaluate("--sglang", url, *option)
            assert refused.exit_code != 0
    mixed = evaluate()
    assert "is a cell with other settings (fingerprint" in str(mixed.exception)


@pytest.mark.parametrize(
    ("what", "message"), [("no server", "no SGLang server answers"), ("other", "LowConfidence")]
)
def test_a_server_that_cannot_serve_is_said_to_the_user(checkpoint, engine, what, message):
    text = load_text(checkpoint[1])
    with server(engine, decides="LowConfidence") as url:
        if what == "no server":
            url = "http://127.0.0.1:9"
        with pytest.raises(UserError, match=message) as error:
            SglangBackend(url, text)
    assert "--dllm-algorithm TwoTemp" in str(error.value)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b"<html>", 200, "cannot be read .*is it SGLang's"),
        (b"[]", 200, "cannot be read .*is it SGLang's"),
        (b"{}", 200, "decides by None"),
        (b"not yet", 503, "HTTP 503: not yet.*is it still starting"),
    ],
)
def test_what_answers_there_may_be_anything(checkpoint, engine, answer, status, said):
    def do_GET(self):
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    with server(engine, get=do_GET) as url, pytest.raises(UserError, match=said):
        SglangBackend(url, load_text(checkpoint[1]))


@pytest.mark.parametrize("answer", [{}, [], [{}, {}, {}], [{"output_ids": 3, "meta_info": {}}] * 3, "x"])
def test_samples_that_make_no_sense_end_the_run_at_once(checkpoint, engine, answer):
    """A thread that died of it would be waited for."""
    with (
        server(engine, instead=answer) as url,
        SglangBackend(url, load_text(checkpoint[1]), unit=3) as backend,
        pytest.raises(UserError, match="cannot be read"),
    ):
        list(backend.sample(wanted("ct")[:3]))


def test_what_sglang_cannot_do_is_said_with_what_can(checkpoint, engine):
    text = load_text(checkpoint[1])
    with pytest.raises(UserError, match=r"not block-causal.*--workers"):
        SglangBackend("http://127.0.0.1:9", load_text("tiny"))
    with pytest.raises(UserError, match="http://localhost:30000"):
        SglangBackend("localhost:30000", text)
    gap = replace(wanted("ct")[0], prompt=(1, text.mask_id), length=0)
    with (
        server(engine) as url,
        SglangBackend(url, text) as backend,
        pytest.raises(UserError, match="--workers"),
    ):
        list(backend.sample([gap]))
