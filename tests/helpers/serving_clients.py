"""Start servers for tests: with a client in this process, or on a real port."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("httpx", reason="needs httpx, Starlette's test client")
from starlette.testclient import TestClient

from twotemp.serving import Server
from twotemp.serving.listener import ListenConfig, Listener

PROMPT = "20 10 15 -> 45"
CHAT = [{"role": "user", "content": PROMPT}]


@contextmanager
def client_of(model, **options):
    """Yield a test client of a server of this model."""
    server = Server(model, slots=8, **options)
    with TestClient(server.app, base_url="http://localhost", raise_server_exceptions=False) as client:
        client.service = server.service
        yield client


@contextmanager
def listening(server):
    """Run the server on a free port as `twotemp serve` does; yield the listener and the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = Listener(ListenConfig(server, "127.0.0.1", port))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield running, port
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_for(condition, seconds: float = 30) -> None:
    """Wait until the condition is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
