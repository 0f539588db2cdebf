"""Connections that send slowly, in great number, from other sites' pages, or in one direction only."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time

import pytest

import twotemp
from tests.helpers.serving_clients import CHAT, PROMPT, client_of, listening, wait_for
from twotemp.serving import Limits, Server, listener

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed the connection; never waits."""
    connection.setblocking(False)
    try:
        return connection.recv(1000) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def health(port: int) -> bytes:
    """Return the first bytes of the answer to /health on a new connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(1000)


def test_headers_that_never_end_are_given_up(model):
    """200 clients send a byte at a time; others are answered meanwhile."""
    with listening(Server(model, slots=2, limits=Limits(headers_seconds=2))) as (_, port):
        slow = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(200)]
        end = time.monotonic() + 8
        open_ones = list(slow)
        while open_ones and time.monotonic() < end:
            for connection in open_ones:
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            assert b" 200 " in health(port)
            time.sleep(0.2)
            open_ones = [connection for connection in open_ones if not is_closed(connection)]
        for connection in slow:
            connection.close()
    assert open_ones == []


def test_headers_are_waited_for_again_after_an_answer(model):
    with (
        listening(Server(model, slots=2, limits=Limits(headers_seconds=0.5))) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in connection.recv(1000)
        start = time.monotonic()
        while not is_closed(connection):
            assert time.monotonic() < start + 4  # uvicorn closes an idle connection after 5 s
            connection.send(b"G")
            time.sleep(0.1)


SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import twotemp
from twotemp.serving import Limits, Server
from twotemp.serving.listener import run
server = Server(twotemp.load("tiny"), slots=2, limits=Limits(headers_seconds=60))
run(server, "127.0.0.1", int(sys.argv[1]), [lambda: print("ready", flush=True)])
"""


def test_descriptors_do_not_run_out(tmp_path):
    """More connections than the process may have descriptors: the oldest idle ones make room."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-c", SERVE, str(port)]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert running.stdout.readline() == "ready\n"
            slow = []
            for _ in range(300):
                slow.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                slow[-1].sendall(b"G")
            for _ in range(5):
                assert b" 200 " in health(port)
            wait_for(lambda: sum(not is_closed(connection) for connection in slow) <= 64, 10)
            assert any(not is_closed(connection) for connection in slow)
        finally:
            running.terminate()
            running.wait(30)
    assert log.stat().st_size < 2000
    assert log.read_text().count("Too many connections") in (1, 2)


def test_accept_errors_are_logged_at_a_limited_rate(model, caplog):
    """Descriptors that others of the process use up: asyncio reports every attempt to accept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listening(Server(model, slots=2)) as (_, port):
        waiting = [socket.socket() for _ in range(5)]
        used = max(connection.fileno() for connection in waiting)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
        try:
            taken = []
            while len(taken) < 1000:
                try:
                    taken.append(socket.socket())
                except OSError:
                    break
            for connection in waiting:
                connection.connect(("127.0.0.1", port))
            time.sleep(1.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for connection in taken:
                connection.close()
        wait_for(lambda: b" 200 " in health(port))
        for connection in waiting:
            connection.close()
    assert [record.levelname for record in caplog.records if "out of system" in record.getMessage()] == [
        "ERROR"
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_stops_sending_gets_its_answer(model, monkeypatch, stream):
    monkeypatch.setattr(listener, "PROBE_SECONDS", 0.05)  # while the samples are drawn
    ask = {"prompt": PROMPT, "n": 4, "max_tokens": 100, "policy": "ar", "seed": 0, "stream": stream}
    body = json.dumps(ask)
    with (
        listening(Server(model, slots=2)) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert b"HTTP/1.1 200 OK" in answer
    assert answer.count(b'"finish_reason":"') == 4
    assert (b" 100 Continue" in answer) != stream


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(model, headers, status):
    with client_of(model, hosts=["localhost"]) as client:
        answer = client.post(
            "/v1/chat/completions", json={"messages": CHAT, "max_tokens": 4}, headers=headers
        )
        assert answer.status_code == status
        if status == 403:
            assert "pages of other sites" in answer.json()["error"]["message"]
        assert client.get("/health", headers=headers).status_code == 200
