"""HTTP: routes, errors in OpenAI's form, and the limits of what one client may do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from twotemp.engine import Service, Stopped, Written
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.records import Request, Sample
from twotemp.serialization import json_text
from twotemp.serving.bodies import Field, Limits, NoSuchModel, Wanted, read, wanted
from twotemp.serving.crew import Crew
from twotemp.serving.guard import Guard, Metrics, error
from twotemp.serving.playground import Playground
from twotemp.serving.replies import Answer, Replies, Writing, answer

log = logging.getLogger("twotemp")
T = TypeVar("T")
LARGE = 10_000  # bytes of a body: to understand more takes so long that others would notice


class Busy(Exception):
    """More rows wait than the server takes."""


class Failed(Exception):
    """A row that was accepted could not be drawn."""


class Gone(Exception):
    """The client went away."""


class Late(Exception):
    """The time limit has passed."""


class Decoder(Protocol):
    """A `Service`, or a `Crew` of them."""

    @property
    def load(self) -> int: ...
    def submit(
        self, request: Request, on_event: Callable[[Any], None], *, watch: bool, stop: Sequence[str]
    ) -> Any: ...
    def cancel(self, job: Any, /) -> None: ...
    def close(self, *, drop: bool) -> None: ...


class Drawing:
    """The rows of one HTTP request in the service's hands; `close` frees those that still run."""

    def __init__(self, service: Decoder, want: Wanted, limits: Limits) -> None:
        if service.load + len(want.requests) > limits.waiting:
            raise Busy
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.seconds
        self._events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()  # None: nobody is there any more
        # A row with a trace runs to its end: whoever wants to see how it was written wants to see all of it.
        stop = () if want.trace or want.logprobs else want.stop
        self._jobs = {
            n: service.submit(request, self._listener(n), watch=want.stream, stop=stop)
            for n, request in enumerate(want.requests)
        }

    def _listener(self, number: int) -> Callable[[Any], None]:
        def listen(event: Any) -> None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

        return listen

    async def events(self) -> AsyncIterator[tuple[int, Written | Sample | Stopped]]:
        while self._jobs:
            try:
                async with asyncio.timeout_at(self._deadline):
                    number, event = await self._events.get()
            except TimeoutError:
                raise Late from None
            if event is None:
                raise Gone
            if not isinstance(event, Written):
                self._jobs.pop(number)
            if isinstance(event, UserError):
                raise Failed(str(event))
            yield number, event

    def leave(self) -> None:
        """Nobody waits for the events."""
        self._events.put_nowait((-1, None))

    def close(self) -> None:
        for job in self._jobs.values():
            self._service.cancel(job)
        self._jobs = {}


class Stream(StreamingResponse):
    """Server-sent events; whichever way it ends, its rows are freed."""

    def __init__(self, chunks: AsyncIterator[str], drawing: Drawing) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._drawing = drawing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._drawing.close()


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
        crew: Crew | None = None,
    ) -> None:
        """hosts: the names under which browsers may reach it (None: any). crew: who decodes, if not this process
        alone."""
        self.model, self.limits, self.metrics = model, limits or Limits(), Metrics()
        self.name = served_name(model)
        self._born = int(time())
        self._decoder = crew or Service(model, slots, cache)
        self._service: Decoder | None = None
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
            Failed: _failed,
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
        self._service = self._decoder.__enter__()
        try:
            yield
        finally:
            # Whoever is still there by now was given up by the ASGI server: nobody waits for it.
            await asyncio.to_thread(self._decoder.close, drop=True)
            self._page.close()

    @property
    def service(self) -> Decoder:
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
        drawing = Drawing(self.service, want, self.limits)
        replies = Replies(want, self.name)
        if want.stream:
            return Stream(self._chunks(want, drawing, replies), drawing)
        gone = asyncio.ensure_future(_gone(request))
        gone.add_done_callback(lambda _: drawing.leave())
        try:
            answers = await self._collected(want, drawing)
        finally:
            gone.cancel()
            drawing.close()
        return Response(json_text(replies.whole(answers)), media_type="application/json")

    async def _collected(self, want: Wanted, drawing: Drawing) -> list[Answer]:
        found: dict[int, Answer] = {}
        async for number, event in drawing.events():
            assert not isinstance(event, Written)
            found[number] = self._answer(want, number, event)
        return [found[number] for number in range(len(found))]

    async def _chunks(self, want: Wanted, drawing: Drawing, replies: Replies) -> AsyncIterator[str]:
        rows = [Writing(self.model, want, request) for request in want.requests]
        found: dict[int, Answer] = {}
        try:
            async for number, event in drawing.events():
                if isinstance(event, Written):
                    if (more := rows[number].step(event)) is not None:
                        yield _event(replies.part(number, *more))
                else:
                    one = found[number] = self._answer(want, number, event)
                    yield _event(replies.last(number, rows[number].rest(one.text), one))
        except Failed as failure:
            yield _event({"error": {"message": str(failure), "type": "server_error"}})
        except Late:
            yield _event({"error": {"message": "the time limit has passed", "type": "timeout"}})
        if want.usage:
            yield _event(replies.total(list(found.values())))
        yield "data: [DONE]\n\n"

    def _answer(self, want: Wanted, number: int, event: Sample | Stopped) -> Answer:
        one = answer(self.model, want, want.requests[number], event)
        self.metrics.count("samples")
        self.metrics.count("tokens", one.tokens)
        return one

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


async def _failed(_request: HttpRequest, failure: Failed) -> Response:
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
