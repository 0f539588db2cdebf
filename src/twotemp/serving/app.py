"""HTTP: routes, errors in OpenAI's form, and the limits of what one client may do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from twotemp.backends import Event, Service
from twotemp.backends.local import LocalService
from twotemp.backends.supervisor import Supervisor
from twotemp.engine import Written
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Sample
from twotemp.serialization import json_text
from twotemp.serving.bodies import Field, Limits, NoSuchModel, Wanted, read, wanted
from twotemp.serving.guard import Guard, Metrics, error
from twotemp.serving.playground import Playground
from twotemp.serving.replies import Answer, Replies, RowStream, answer

log = logging.getLogger("twotemp")
T = TypeVar("T")
LARGE = 10_000  # bytes of a body: to understand more takes so long that others would notice


class Busy(Exception):
    """More rows wait than the server takes."""


class RequestFailed(Exception):
    """A row that was accepted could not be drawn."""


class Gone(Exception):
    """The client went away."""


class Late(Exception):
    """The time limit has passed."""


class RequestRows:
    """The samples of one HTTP request while the service draws them; `close` frees those that still run."""

    def __init__(self, service: Service, want: Wanted, limits: Limits) -> None:
        if service.load + len(want.requests) > limits.waiting:
            raise Busy
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.seconds
        self._events: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()  # None: the client has gone
        self._handles = {
            n: service.submit(request, self._listener(n), watch=want.stream)
            for n, request in enumerate(want.requests)
        }

    def _listener(self, number: int) -> Callable[[Event], None]:
        def listen(event: Event) -> None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

        return listen

    async def events(self) -> AsyncIterator[tuple[int, Written | Sample]]:
        """Yield (number, event) of all rows until the last of them has finished."""
        while self._handles:
            try:
                async with asyncio.timeout_at(self._deadline):
                    number, event = await self._events.get()
            except TimeoutError:
                raise Late from None
            if event is None:
                raise Gone
            if not isinstance(event, Written):
                self._handles.pop(number)
            if isinstance(event, UserError):
                raise RequestFailed(str(event))
            yield number, event

    def leave(self) -> None:
        """End `events`: the client has gone."""
        self._events.put_nowait((-1, None))

    def close(self) -> None:
        for handle in self._handles.values():
            self._service.cancel(handle)
        self._handles = {}


class EventStream(StreamingResponse):
    """Server-sent events; whichever way it ends, its rows are freed."""

    def __init__(self, chunks: AsyncIterator[str], rows: RequestRows) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._rows = rows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rows.close()


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
        self._born = int(time())
        self._starting = service or LocalService(model, slots, cache)
        self._service: Service | None = None
        self._page = page = Playground(model, self.name)
        routes = [
            Route("/", page.html),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/playground/about", page.about),
            Route("/playground/grade", self._grade, methods=["POST"]),
        ]
        handlers: dict[Any, Callable[[HttpRequest, Any], Awaitable[Response]]] = {
            HTTPException: _http_error,
            UserError: _user_error,
            Busy: _busy,
            RequestFailed: _failed,
            Gone: _left,
            ClientDisconnect: _left,
            Late: _late,
            Exception: _unexpected,
        }
        inner = Starlette(routes=routes, lifespan=self._life, exception_handlers=handlers)
        # A request may take its time to arrive, to be drawn and to be read by its client.
        patience = self.limits.seconds + 2 * self.limits.arriving
        self.app = Guard(inner, self.metrics, api_key, None if hosts is None else frozenset(hosts), patience)

    @asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        self._service = service = self._starting.__enter__()
        try:
            yield
        finally:
            # The ASGI server has given up the requests that are still open.
            await asyncio.to_thread(service.close, drop=True)
            self._page.close()

    @property
    def service(self) -> Service:
        if self._service is None:
            raise UserError("the server has not started")
        return self._service

    # What is there.

    async def _health(self, _request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "model": self.name})

    async def _metrics(self, _request: HttpRequest) -> Response:
        return PlainTextResponse(
            self.metrics.text(open_rows=self.service.load), media_type=Metrics.MEDIA_TYPE
        )

    async def _models(self, _request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _one_model(self, request: HttpRequest) -> Response:
        if request.path_params["name"] != self.name:
            raise NoSuchModel(f"no model {request.path_params['name']!r}; did you mean {self.name!r}?")
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self._born, "owned_by": "twotemp"}

    # Sampling.

    async def _completions(self, request: HttpRequest) -> Response:
        return await self._sample(request, chat=False)

    async def _chat(self, request: HttpRequest) -> Response:
        return await self._sample(request, chat=True)

    async def _sample(self, request: HttpRequest, chat: bool) -> Response:
        want = await self._understood(
            request, lambda data: wanted(data, chat, self.model, self.name, self.limits)
        )
        rows = RequestRows(self.service, want, self.limits)
        replies = Replies(want, self.name)
        if want.stream:
            return EventStream(self._chunks(want, rows, replies), rows)
        gone = asyncio.ensure_future(_gone(request))
        gone.add_done_callback(lambda _: rows.leave())
        try:
            answers = await self._collected(want, rows)
        finally:
            gone.cancel()
            rows.close()
        return Response(json_text(replies.whole(answers)), media_type="application/json")

    async def _collected(self, want: Wanted, rows: RequestRows) -> list[Answer]:
        answers: dict[int, Answer] = {}
        async for number, event in rows.events():
            assert isinstance(event, Sample)  # no row is watched
            answers[number] = self._answer(want, number, event)
        return [answers[number] for number in range(len(answers))]

    async def _chunks(self, want: Wanted, rows: RequestRows, replies: Replies) -> AsyncIterator[str]:
        streams = [RowStream(self.model, want, request) for request in want.requests]
        answers: dict[int, Answer] = {}
        try:
            async for number, event in rows.events():
                if isinstance(event, Written):
                    if (more := streams[number].step(event)) is not None:
                        yield _event(replies.part(number, *more))
                else:
                    last = answers[number] = self._answer(want, number, event)
                    yield _event(replies.last(number, streams[number].rest(last.text), last))
        except RequestFailed as failure:
            yield _event({"error": {"message": str(failure), "type": "server_error"}})
        except Late:
            yield _event({"error": {"message": "the time limit has passed", "type": "timeout"}})
        if want.usage:
            yield _event(replies.total(list(answers.values())))
        yield "data: [DONE]\n\n"

    def _answer(self, want: Wanted, number: int, sample: Sample) -> Answer:
        finished = answer(self.model, want, want.requests[number], sample)
        self.metrics.count("samples")
        self.metrics.count("tokens", finished.tokens)
        return finished

    async def _grade(self, request: HttpRequest) -> Response:
        data = await self._understood(request, lambda data: data)
        return JSONResponse(await self._page.grades(data))

    async def _understood(self, request: HttpRequest, meaning: Callable[[dict[str, Any]], T]) -> T:
        """What a body means; of a large one, beside the loop."""
        text = await self._body(request)
        if len(text) <= LARGE:
            return meaning(read(text))
        return await asyncio.to_thread(lambda: meaning(read(text)))

    async def _body(self, request: HttpRequest) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a page of somebody else's cannot send this without asking first
            raise HTTPException(415, "the content type must be application/json")
        text = bytearray()
        try:
            async with asyncio.timeout(self.limits.arriving):
                async for part in request.stream():
                    text += part
                    if len(text) > self.limits.body_bytes:
                        raise HTTPException(413, f"the body exceeds {self.limits.body_bytes} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self.limits.arriving:g} s") from None
        return bytes(text)


async def _gone(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> str:
    return f"data: {json_text(data, compact=True)}\n\n"


def served_name(model: LanguageModel) -> str:
    """The name clients use. Of a folder only its last part: where it lies is nobody's business."""
    return Path(model.name).resolve().name if Path(model.name).exists() else model.name


# Errors.


async def _http_error(_request: HttpRequest, failure: HTTPException) -> Response:
    return error(failure.status_code, failure.detail, headers=failure.headers)


async def _user_error(_request: HttpRequest, failure: UserError) -> Response:
    if isinstance(failure, NoSuchModel):
        return error(404, str(failure), param="model", code="model_not_found")
    return error(400, str(failure), param=failure.name if isinstance(failure, Field) else None)


async def _busy(_request: HttpRequest, _failure: Busy) -> Response:
    message = "too many samples wait already; try again in a moment, or ask for fewer"
    return error(429, message, kind="rate_limit_error", headers={"retry-after": "1"})


async def _failed(_request: HttpRequest, failure: RequestFailed) -> Response:
    return error(500, str(failure), kind="server_error")


async def _left(_request: HttpRequest, _failure: Exception) -> Response:
    return Response(status_code=499)  # nobody reads this


async def _late(_request: HttpRequest, _failure: Late) -> Response:
    return error(504, "the time limit has passed; ask for fewer or shorter samples", kind="timeout")


async def _unexpected(_request: HttpRequest, _failure: Exception) -> Response:
    return error(500, "an error of the server; its log says more", kind="server_error")


def run(server: Server, host: str, port: int, on_start: Sequence[Callable[[], None]] = ()) -> None:
    """Serve until SIGINT or SIGTERM: then what was accepted is delivered, and nothing new taken."""
    import uvicorn

    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for call in on_start:
                call()

    seconds = int(server.limits.seconds)
    config = uvicorn.Config(
        server.app,
        host,
        port,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=seconds,
    )
    Announced(config).run()
