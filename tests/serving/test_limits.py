"""A server among other people: seeds, keys, limits, clients that vanish, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import twotemp
from tests.helpers.serving_clients import PROMPT, client_of, listening, wait_for
from tests.helpers.tiny_checkpoints import random_model, word_tokenizer
from twotemp.serving import Limits, Server, served_name


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def client(model):
    with client_of(model, hosts=["localhost"]) as made:
        yield made


def test_without_a_seed_samples_differ_and_the_seed_is_returned(client):
    ask = {"prompt": PROMPT, "max_tokens": 12, "policy": "tlc", "n": 4}
    one, two = (client.post("/v1/completions", json=ask).json() for _ in range(2))
    assert one["twotemp"]["seed"] != two["twotemp"]["seed"]
    again = client.post("/v1/completions", json=ask | {"seed": one["twotemp"]["seed"]}).json()
    assert [c["text"] for c in again["choices"]] == [c["text"] for c in one["choices"]]


def test_health_and_metrics(client):
    assert client.get("/health").json() == {"status": "ok", "model": "tiny"}
    client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
    text = client.get("/metrics").text
    assert 'twotemp_requests_total{path="/v1/completions",status="200"}' in text
    assert "twotemp_rows 0" in text
    assert PROMPT not in text


def test_limits(model):
    limits = Limits(body_bytes=2000, samples=8, length=32, waiting=6)
    with client_of(model, limits=limits) as client:

        def status(**body):
            return client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8} | body).status_code

        assert status(n=6) == 200
        assert status(n=7) == 429
        assert status(n=9) == 400
        assert status(prompt=[PROMPT] * 3, n=3) == 400
        assert status(max_tokens=33) == 400
        assert status(stop=["a"] * 17) == 400
        assert status(stop="a" * 1001) == 400
        assert status(policy="tct:" + "t_pos=1," * 200) == 400  # what was understood is kept
        assert status(prompt="1 " * 2000) == 413
        busy = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8, "n": 7})
        assert busy.headers["retry-after"] == "1"
        assert client.post("/v1/completions", content=b"{}").status_code == 415
        assert client.get("/v1/completions").status_code == 405
        assert client.get("/v2").json()["error"]["type"] == "invalid_request_error"
    with client_of(model, limits=Limits(seconds=1e-3)) as client:
        late = client.post("/v1/completions", json={"prompt": PROMPT, "n": 64, "max_tokens": 100})
        assert late.status_code == 504


def test_a_key_is_asked_for_and_a_strange_host_refused(model):
    with client_of(model, api_key="secret") as client:
        assert client.get("/health").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer s\u00e9cret".encode()},
        ):
            answer = client.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
        assert client.get("/metrics").status_code == 401
    with client_of(model, hosts=["localhost"]) as client:
        assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
        assert client.get("/v1/models", headers={"host": "localhost:8000"}).status_code == 200


def test_a_chat_template_that_refuses_is_the_client_s_error():
    template = "{{ raise_exception('roles must alternate') }}"
    with client_of(random_model("a2d-qwen3", word_tokenizer(template))) as client:
        ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
        answer = client.post("/v1/chat/completions", json=ask)
        assert answer.status_code == 400
        assert "roles must alternate" in answer.json()["error"]["message"]
        answer = client.post("/v1/completions", json={"prompt": "a b", "max_tokens": 4})
        assert answer.status_code == 200


def test_a_body_that_does_not_arrive_is_not_waited_for(model):
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with (
        listening(Server(model, slots=2, limits=Limits(body_seconds=0.2))) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in connection.recv(1000)


def test_a_client_that_hangs_up_before_its_body_is_there_is_no_error_of_the_server(model, caplog):
    server = Server(model, slots=2)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with listening(server) as (_, port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            time.sleep(0.2)
        wait_for(lambda: server.metrics._requests)
    assert server.metrics._requests == {("/v1/completions", 499): 1}
    assert not caplog.records


def test_a_client_that_does_not_read_is_not_waited_for(model):
    """Its rows are freed, and so is what it did not read."""
    server = Server(model, slots=4, limits=Limits(seconds=0.5, body_seconds=0.2))
    body = json.dumps({"prompt": PROMPT, "n": 8, "max_tokens": 100, "policy": "ar", "stream": True})
    stuck = []

    async def ask() -> None:
        messages = [{"type": "http.request", "body": body.encode()}]
        never = asyncio.Event()

        async def receive():
            if messages:
                return messages.pop()
            return await never.wait()

        async def send(message):
            if message["type"] == "http.response.body":
                stuck.append(server.service.load)
                await never.wait()

        head = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
        await server.app(head | {"headers": [(b"content-type", b"application/json")]}, receive, send)
        assert server.metrics._requests["/v1/completions", 200] == 1

    async def lifetime() -> None:
        async with server._lifespan(None):
            await asyncio.wait_for(ask(), 60)
            while server.service.load:
                await asyncio.sleep(0.01)

    asyncio.run(lifetime())
    assert stuck
    assert stuck[0] == 8


def test_a_large_body_delays_no_other_request(model, monkeypatch):
    """While it is read, another request is answered."""
    reading, go = threading.Event(), threading.Event()
    honest = type(model).encode

    def encode(self, prompt, **options):
        if len(prompt) > 10_000:
            reading.set()
            assert go.wait(30)
        return honest(self, prompt, **options)

    monkeypatch.setattr(type(model), "encode", encode)
    with client_of(model) as client:
        ask = {"prompt": "1 " * 10_000, "max_tokens": 4}
        found = []
        asking = threading.Thread(target=lambda: found.append(client.post("/v1/completions", json=ask)))
        asking.start()
        try:
            assert reading.wait(30)
            assert client.get("/health").status_code == 200
        finally:
            go.set()
        asking.join(30)
        assert found[0].status_code == 400
        assert "context" in found[0].json()["error"]["message"]


def test_no_client_may_ask_for_rewriting_without_end(client):
    ask = {"prompt": PROMPT, "max_tokens": 8, "policy": "t2m", "edits": 2**31 - 1}
    answer = client.post("/v1/completions", json=ask)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "edits"


def test_the_cause_of_a_failed_step_appears_only_in_the_log(caplog):
    secret = "another client's prompt"
    model = random_model("a2d-qwen3", word_tokenizer())

    def broken(*_):
        raise RuntimeError(secret)

    model.logits = broken
    with client_of(model) as client:
        answer = client.post("/v1/completions", json={"prompt": "a b", "max_tokens": 4})
        assert answer.status_code == 500
        assert secret not in answer.text
        assert secret in caplog.text
        assert client.service.load == 0


def test_the_path_of_a_folder_is_not_revealed(tmp_path):
    class Named:
        name = str(tmp_path)

    assert served_name(Named()) == tmp_path.name


def test_a_client_that_vanishes_frees_its_rows(model):
    server = Server(model, slots=2)
    body = json.dumps({"prompt": PROMPT, "n": 200, "max_tokens": 100, "policy": "ar"})
    with listening(server) as (_, port):
        for stream in (False, True):
            asked = body[:-1] + (', "stream": true}' if stream else "}")
            with socket.create_connection(("127.0.0.1", port)) as connection:
                head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                connection.sendall(f"{head}Content-Length: {len(asked)}\r\n\r\n{asked}".encode())
                wait_for(lambda: server.service.load == 200)
            wait_for(lambda: server.service.load == 0)


def test_a_graceful_stop_delivers_what_was_accepted(model):
    import httpx

    server, found = Server(model, slots=4), []
    ask = {"prompt": PROMPT, "n": 12, "max_tokens": 24, "policy": "ar", "seed": 0}
    with listening(server) as (running, port):
        url = f"http://127.0.0.1:{port}/v1/completions"
        asking = threading.Thread(target=lambda: found.append(httpx.post(url, json=ask, timeout=60)))
        asking.start()
        wait_for(lambda: server.service.load)
        running.should_exit = True
        asking.join(60)
        assert found[0].status_code == 200
        assert len(found[0].json()["choices"]) == 12
        with pytest.raises(httpx.TransportError):
            httpx.post(url, json=ask)


def test_the_command_refuses_another_host_without_a_key_and_stops_at_sigterm(forked_processes):
    run = "from twotemp.cli import main; main()"
    command = [sys.executable, "-c", run, "serve", "--port", "1"]
    refused = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert "--api-key" in refused.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        command[-1] = str(probe.getsockname()[1])
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        assert any("rows at once" in line for line in lines)
        with socket.create_connection(("127.0.0.1", int(command[-1]))):
            pass
        running.terminate()
        assert running.wait(30) in (0, -signal.SIGTERM)
    finally:
        running.kill()
