"""The ASGI application: routes, access control, errors in OpenAI's form, and counters."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, time
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twotemp.backends import Service
from twotemp.backends.local import LocalService
from twotemp.backends.supervisor import Supervisor
from twotemp.engine import RowStep
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Sample
from twotemp.serialization import json_text
from twotemp.serving.bodies import (
    CompletionRequest,
    FieldError,
    Limits,
    ModelNotFound,
    parse_completion,
    read_json,
)
from twotemp.serving.playground import Playground
from twotemp.serving.replies import (
    ClientGone,
    EventStream,
    QueueFull,
    RequestFailed,
    RequestRows,
    ResponseBody,
    RowResult,
    RowStream,
    TimeLimit,
    error,
    row_result,
)

log = logging.getLogger("twotemp")
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]*)?")
T = TypeVar("T")
LARGE_BODY = 10_000  # bytes; parsing more in the event loop would delay other requests noticeably
WITHOUT_KEY = ("/", "/health")  # the page asks for the key itself
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Metrics:
    """Counters since the start, in Prometheus' text format, without prompts or names of clients."""

    MEDIA_TYPE = "text/plain; version=0.0.4"

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0

    def count(self, name: str, amount: int = 1) -> None:
        self._counts[name] += amount

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
        for name in ("samples", "tokens"):
            lines += [f"# TYPE twotemp_{name}_total counter", f"twotemp_{name}_total {self._counts[name]}"]
        lines += ["# TYPE twotemp_rows gauge", f"twotemp_rows {open_rows}"]
        return "\n".join(lines) + "\n"


class Guard:
    """Middleware that checks the key and where a request comes from, limits its time, and counts it.

    A server without a key answers to loopback names only. Otherwise another site could point its own name to this
    machine (DNS rebinding), and a browser would treat the server as part of that site.
    """

    PATHS = ("/", "/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions")

    def __init__(
        self,
        inner: ASGIApp,
        metrics: Metrics,
        api_key: str | None,
        hosts: frozenset[str] | None,
        connection_seconds: float,
    ) -> None:
        """Wrap an application.

        Args:
            inner: The application.
            metrics: Counts the requests.
            api_key: Clients must send it; None for no key.
            hosts: The host names that the server answers to; None for any.
            connection_seconds: Seconds for a request and its answer; after that the connection is closed.
        """
        self._inner, self._metrics, self._key, self._hosts = inner, metrics, api_key, hosts
        self._connection_seconds = connection_seconds

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
            async with asyncio.timeout(self._connection_seconds) as limit:
                await app(scope, receive, sent)
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("a client did not read its answer in time; its connection is closed")
        finally:
            path = scope["path"] if scope["path"] in self.PATHS else "other"
            self._metrics.request(path, status, perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            return error(403, "this server answers to loopback names only; start it with --host and a key")
        if scope["method"] not in SAFE_METHODS and not is_same_site(headers):
            message = (
                "pages of other sites may not use this server; send the request from a program or a proxy"
            )
            return error(403, message, code="cross_site_request")
        if self._key is None or scope["path"] in WITHOUT_KEY:
            return None
        header = headers.get("authorization", "")
        if not hmac.compare_digest(header.encode("latin-1"), f"Bearer {self._key}".encode()):
            return error(401, "a key is needed: Authorization: Bearer ...", code="invalid_api_key")
        return None


def is_same_site(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from the server's own page, or from no page at all.

    Browsers send Sec-Fetch-Site to loopback and TLS addresses, and scripts cannot change it. Otherwise the origin
    must be the host of the request.
    """
    if site := headers.get("sec-fetch-site"):
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()


def _host(header: str) -> str:
    """Return the name in a Host header, without its port; empty if it is malformed, as in `[::1].example.com`."""
    match = _HOST.fullmatch(header.strip().lower())
    return (match["address"] or match["name"]) if match else ""


class Server:
    """The application of one model. `app` is what an ASGI server runs."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        slots: int,
        cache: str | None = None,
        limits: Limits | None = None,
        api_key: str | None = None,
        hosts: Iterable[str] | None = None,
        service: LocalService | Supervisor | None = None,
    ) -> None:
        """Make the application.

        Args:
            model: Encodes prompts and decodes text; without a service it also decodes the rows.
            slots: Rows decoded together, without a service.
            cache: See `twotemp.sample`; without a service.
            limits: What clients may ask for.
            api_key: Clients must send it.
            hosts: The names under which browsers may reach the server; None for any.
            service: Draws the samples; the server closes it. None for this process.
        """
        self.model, self.limits, self.metrics = model, limits or Limits(), Metrics()
        self.name = served_name(model)
        self._about = {"id": self.name, "object": "model", "created": int(time()), "owned_by": "twotemp"}
        self._unstarted = service or LocalService(model, slots, cache)
        self._service: Service | None = None
        self._page = page = Playground(model, self.name)
        routes = [
            Route("/", page.html),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/completions", partial(self._sample, chat=False), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._sample, chat=True), methods=["POST"]),
            Route("/v1/responses{rest:path}", _no_responses, methods=["GET", "POST", "DELETE"]),
            Route("/playground/about", page.about),
            Route("/playground/grade", self._grade, methods=["POST"]),
        ]
        failures = (
            HTTPException,
            UserError,
            QueueFull,
            TimeLimit,
            ClientGone,
            ClientDisconnect,
            RequestFailed,
        )
        handlers = dict.fromkeys([*failures, Exception], _error)
        inner = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        # For the body to arrive, the samples to be drawn and the answer to be read.
        connection_seconds = self.limits.seconds + 2 * self.limits.body_seconds
        self.app = Guard(
            inner, self.metrics, api_key, None if hosts is None else frozenset(hosts), connection_seconds
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self._service = service = self._unstarted.__enter__()
        try:
            yield
        finally:
            # The ASGI server has already given up on the requests that are still open.
            await asyncio.to_thread(service.close, drop=True)
            self._page.close()

    @property
    def service(self) -> Service:
        if self._service is None:
            raise UserError("the server has not started")
        return self._service

    async def _health(self, _request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "model": self.name})

    async def _metrics(self, _request: HttpRequest) -> Response:
        text = self.metrics.text(open_rows=self.service.load)
        return PlainTextResponse(text, media_type=Metrics.MEDIA_TYPE)

    async def _models(self, _request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._about]})

    async def _one_model(self, request: HttpRequest) -> Response:
        if request.path_params["name"] != self.name:
            raise ModelNotFound(f"no model {request.path_params['name']!r}; did you mean {self.name!r}?")
        return JSONResponse(self._about)

    # Sampling.

    async def _sample(self, http: HttpRequest, chat: bool) -> Response:
        parse = partial(parse_completion, chat=chat, model=self.model, name=self.name, limits=self.limits)
        request = await self._parsed(http, parse)
        rows = RequestRows(self.service, request, self.limits)
        body = ResponseBody(request, self.name)
        if request.stream:
            return EventStream(self._chunks(request, rows, body), rows)
        disconnect = asyncio.ensure_future(_disconnect(http))
        disconnect.add_done_callback(lambda _: rows.end())
        try:
            results = await self._collected(request, rows)
        finally:
            disconnect.cancel()
            rows.close()
        return JSONResponse(body.complete(results))

    async def _collected(self, request: CompletionRequest, rows: RequestRows) -> list[RowResult]:
        results: dict[int, RowResult] = {}
        async for number, event in rows.events():
            assert isinstance(event, Sample)  # no row is watched
            results[number] = self._finish_row(request, number, event)
        return [results[number] for number in range(len(results))]

    async def _chunks(
        self, request: CompletionRequest, rows: RequestRows, body: ResponseBody
    ) -> AsyncIterator[str]:
        """Yield server-sent events; those that are available together are sent together.

        Waiting after every piece lets the loop notice that the client has gone before more is written.
        """
        streams = [RowStream(self.model, request.diffusing, row) for row in request.rows]
        results: dict[int, RowResult] = {}
        text = ""
        try:
            async for number, event in rows.events():
                if isinstance(event, RowStep):
                    if (more := streams[number].write(event)) is not None:
                        text += _event(body.text_chunk(number, *more))
                else:
                    last = results[number] = self._finish_row(request, number, event)
                    text += _event(body.last_chunk(number, streams[number].rest(last.text), last))
                if text and not rows.has_events:
                    yield text
                    text = ""
        except RequestFailed as failure:
            text += _event({"error": {"message": str(failure), "type": "server_error"}})
        except TimeLimit:
            text += _event({"error": {"message": "the time limit has passed", "type": "timeout"}})
        if request.usage:
            text += _event(body.usage_chunk(list(results.values())))
        yield text + "data: [DONE]\n\n"

    def _finish_row(self, request: CompletionRequest, number: int, sample: Sample) -> RowResult:
        finished = row_result(self.model, request, request.rows[number], sample)
        self.metrics.count("samples")
        self.metrics.count("tokens", finished.tokens)
        return finished

    async def _grade(self, request: HttpRequest) -> Response:
        data = await self._parsed(request, lambda data: data)
        return JSONResponse(await self._page.grades(data))

    async def _parsed(self, request: HttpRequest, parse: Callable[[dict[str, Any]], T]) -> T:
        """Return the parsed body; a large one is parsed in a thread."""
        text = await self._body(request)
        if len(text) <= LARGE_BODY:
            return parse(read_json(text))
        return await asyncio.to_thread(lambda: parse(read_json(text)))

    async def _body(self, request: HttpRequest) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which a page of another site cannot send unasked
            raise HTTPException(415, "the content type must be application/json")
        text = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    text += part
                    if len(text) > self.limits.body_bytes:
                        raise HTTPException(413, f"the body exceeds {self.limits.body_bytes} bytes")
        except TimeoutError:
            raise HTTPException(
                408, f"the body did not arrive within {self.limits.body_seconds:g} s"
            ) from None
        return bytes(text)


async def _disconnect(request: HttpRequest) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> str:
    return f"data: {json_text(data, compact=True)}\n\n"


def served_name(model: LanguageModel) -> str:
    """Return the model's name for clients: the last part of a path, which does not reveal the folder."""
    return Path(model.name).resolve().name if Path(model.name).exists() else model.name


async def _no_responses(_request: HttpRequest) -> Response:
    # OpenAI's client would retry a 501.
    raise HTTPException(404, "the Responses API is not supported; use /v1/chat/completions")


async def _error(_request: HttpRequest, failure: Exception) -> Response:
    """Return the response to a request that raised an exception."""
    match failure:
        case HTTPException():
            return error(failure.status_code, failure.detail, headers=failure.headers)
        case ModelNotFound():
            return error(404, str(failure), param="model", code="model_not_found")
        case UserError():
            return error(400, str(failure), param=failure.name if isinstance(failure, FieldError) else None)
        case QueueFull():
            message = "too many samples are waiting; try again in a moment, or ask for fewer"
            return error(429, message, kind="rate_limit_error", headers={"retry-after": "1"})
        case TimeLimit():
            return error(504, "the time limit has passed; ask for fewer or shorter samples", kind="timeout")
        case ClientGone() | ClientDisconnect():
            return Response(status_code=499)  # only counted
        case RequestFailed():
            return error(500, str(failure), kind="server_error")
    return error(500, "internal error; see the log of the server", kind="server_error")
