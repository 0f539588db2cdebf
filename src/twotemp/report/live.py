"""Serve the viewer of a run on loopback, and read the run again when its files have changed."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from twotemp.errors import UserError
from twotemp.report.blocks import sentences
from twotemp.report.pages import compose, content_security_policy
from twotemp.report.viewer import View
from twotemp.serialization import json_text

HOST = "127.0.0.1"
_REST = 3  # after reading a run, wait this many times as long as that took


class LiveRun:
    """The newest view of a run that may still be growing."""

    def __init__(self, runs: list[Path], read: Callable[[], View]) -> None:
        self._runs, self._read, self._lock = runs, read, Lock()
        self._files: object = None
        self._next = 0.0
        self.version = 0
        self.view = View("", "evaluation", [])

    def refresh(self) -> None:
        """Read the run again if its files have changed since the last time."""
        with self._lock:
            files = self._signature()
            if files == self._files or time.monotonic() < self._next:
                return
            began = time.monotonic()
            try:
                self.view = self._read()
            except UserError as error:  # nothing is graded yet, or a file is being written
                self.view = View(
                    self._runs[0].name, "evaluation", [sentences("Nothing to show yet", [str(error)])]
                )
            self._files, self.version = files, self.version + 1
            self._next = time.monotonic() + _REST * (time.monotonic() - began)

    def _signature(self) -> object:
        paths = sorted(
            path
            for run in self._runs
            for path in run.rglob("*")
            if path.suffix in (".zst", ".json", ".jsonl")
        )
        return [(path, stat.st_size, stat.st_mtime_ns) for path in paths if (stat := path.stat())]

    def overview(self) -> bytes:
        """Return the newest overview as JSON."""
        self.refresh()
        status = "" if self.view.run is None else f"{len(self.view.run.questions)} questions, live"
        return json_text(self.view.overview(version=self.version, status=status), compact=True).encode()

    def question(self, version: str, number: str) -> bytes | None:
        """Return a question's samples, compressed; None if the run has been read again since."""
        chunks = self.view.run.chunks if self.view.run else []
        if version != str(self.version) or not number.isdecimal() or int(number) >= len(chunks):
            return None
        return base64.b64decode(chunks[int(number)])


def server(live: LiveRun, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on loopback; it answers only to loopback names, so that no other site can read the run."""
    connect = "connect-src 'self'"
    page = compose("viewer", rules=(connect,), source="viewer_live.js")
    policy = content_security_policy(page, connect, "frame-ancestors 'none'")

    class Handler(BaseHTTPRequestHandler):
        """Answers GET requests."""

        def do_GET(self) -> None:
            names = {f"{name}:{made.server_port}" for name in (HOST, "localhost")}
            if self.headers.get("Host") not in names:
                return self._reply(403, b'{"error": "unknown host"}')
            path = self.path.partition("?")[0].strip("/")
            if path == "":
                return self._reply(200, page.encode(), "text/html; charset=utf-8")
            if path == "overview":
                return self._reply(200, live.overview())
            match path.split("/"):
                case ["question", version, number]:
                    packed = live.question(version, number)
                    if packed is not None:
                        return self._reply(200, packed, encoding="gzip")
                    return self._reply(
                        409, b'{"error": "the run has new samples; this page shows them in a moment"}'
                    )
            return self._reply(404, b'{"error": "no such page"}')

        def _reply(
            self, status: int, body: bytes, kind: str = "application/json", encoding: str = ""
        ) -> None:
            self.send_response(status)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
            headers |= {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
            for name, value in headers.items():
                self.send_header(name, value)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Keep requests out of the terminal."""

    made = ThreadingHTTPServer((HOST, port), Handler)
    made.daemon_threads = True
    return made
