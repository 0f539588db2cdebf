"""Who may come in, how an error is said, and what is counted on the way."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Mapping
from time import perf_counter

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("twotemp")
OPEN = ("/", "/health")  # without a key: the page asks for it


def error(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error in OpenAI's form."""
    said = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": said}, status, headers=headers)


class Metrics:
    """Counters since the start, in Prometheus' text format. No prompt and no name of a client is in them."""

    MEDIA_TYPE = "text/plain; version=0.0.4"

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0

    def count(self, what: str, many: int = 1) -> None:
        self._counts[what] += many

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests[path, status] += 1
        self._seconds += seconds

    def text(self, open_rows: int) -> str:
        lines = ["# TYPE twotemp_requests_total counter"]
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'twotemp_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += ["# TYPE twotemp_request_seconds summary"]
        lines += [f"twotemp_request_seconds_sum {self._seconds:.3f}"]
        lines += [f"twotemp_request_seconds_count {self._requests.total()}"]
        for what in ("samples", "tokens"):
            lines += [f"# TYPE twotemp_{what}_total counter", f"twotemp_{what}_total {self._counts[what]}"]
        lines += ["# TYPE twotemp_rows gauge", f"twotemp_rows {open_rows}"]
        return "\n".join(lines) + "\n"


class Guard:
    """Around the application: the key, the host's name, how long it may take, and a record of what was answered.

    A server without a key answers to loopback names alone: a web page elsewhere can make its own name point here,
    and would then be taken for ours by the browser.
    """

    PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions")

    def __init__(
        self,
        inner: ASGIApp,
        metrics: Metrics,
        api_key: str | None,
        hosts: frozenset[str] | None,
        patience: float,
    ) -> None:
        """patience: seconds; a client that does not read its answer would keep it in memory for ever."""
        self._inner, self._metrics, self._key, self._hosts = inner, metrics, api_key, hosts
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began, status = perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        app = self._refusal(scope) or self._inner
        try:
            async with asyncio.timeout(self._patience) as limit:
                await app(scope, receive, sent)
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("a client did not take its answer in time; it is given up")
        finally:
            path = scope["path"] if scope["path"] in self.PATHS else "other"
            self._metrics.request(path, status, perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            return error(403, "this server answers to loopback names only; start it with --host and a key")
        if self._key is None or scope["path"] in OPEN:
            return None
        given = headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("latin-1"), f"Bearer {self._key}".encode()):
            return error(401, "a key is needed: Authorization: Bearer ...", code="invalid_api_key")
        return None


def _host(header: str) -> str:
    """Return the name in a Host header, without its port; empty if it is malformed, as in `[::1].example.com`."""
    if header.startswith("["):
        name, _, rest = header[1:].partition("]")
        return name if not rest or rest.startswith(":") else ""
    return header.partition(":")[0].lower()
