"""Draw the samples of an HTTP request and answer in OpenAI's form: whole, as a stream, or with an error."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from twotemp.backends import Event, Service
from twotemp.engine import RowStep
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.policies import spell
from twotemp.records import NO_MASK, Request, Sample, first_eos
from twotemp.report.trace_page import pieces
from twotemp.sampling.requests import Prefix, stop_index
from twotemp.serving.bodies import CompletionRequest, Limits

MASK = "░"  # a position of a canvas where nothing is written yet
_spelled = lru_cache(maxsize=256)(spell)  # clients repeat a small number of policies


class QueueFull(Exception):
    """More rows are waiting than the server accepts."""


class RequestFailed(Exception):
    """A row that was accepted could not be drawn."""


class ClientGone(Exception):
    """The client has closed its connection."""


class TimeLimit(Exception):
    """The samples were not drawn in time."""


class RequestRows:
    """The samples of one HTTP request while the service draws them; `close` frees those that still run."""

    def __init__(self, service: Service, request: CompletionRequest, limits: Limits) -> None:
        if service.load + len(request.rows) > limits.waiting:
            raise QueueFull
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.seconds
        self._events: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()  # None: the client has gone
        self._handles = {
            n: service.submit(row, self._listener(n), watch=request.stream)
            for n, row in enumerate(request.rows)
        }

    def _listener(self, number: int) -> Callable[[Event], None]:
        def listen(event: Event) -> None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

        return listen

    async def events(self) -> AsyncIterator[tuple[int, RowStep | Sample]]:
        """Yield (number, event) of all rows until the last of them has finished."""
        while self._handles:
            try:
                async with asyncio.timeout_at(self._deadline):
                    number, event = await self._events.get()
            except TimeoutError:
                raise TimeLimit from None
            if event is None:
                raise ClientGone
            if not isinstance(event, RowStep):
                self._handles.pop(number)
            if isinstance(event, UserError):
                raise RequestFailed(str(event))
            yield number, event

    @property
    def has_events(self) -> bool:
        """Whether `events` continues without waiting."""
        return not self._events.empty()

    def end(self) -> None:
        """End `events`: the client has gone."""
        self._events.put_nowait((-1, None))

    def close(self) -> None:
        for handle in self._handles.values():
            self._service.cancel(handle)
        self._handles = {}


class EventStream(StreamingResponse):
    """Server-sent events; however the response ends, its rows are freed."""

    def __init__(self, chunks: AsyncIterator[str], rows: RequestRows) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._rows = rows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rows.close()


def error(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error in OpenAI's form."""
    body = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": body}, status, headers=headers)


@dataclass(frozen=True)
class RowResult:
    """A sample as a client sees it."""

    text: str
    reason: str  # OpenAI's finish_reason: "stop" (end of text, or a stop string) or "length"
    tokens: int
    facts: dict[str, Any]  # the field `twotemp` of the choice
    logprobs: list[tuple[str, float]]


def row_result(model: LanguageModel, request: CompletionRequest, row: Request, sample: Sample) -> RowResult:
    """Return what the client receives for a finished sample of this row."""
    kept = first_eos(sample.tokens, model.eos_ids)
    text, stopped = sample.text, sample.finish == "stop"
    if not row.length:  # the client receives the text between its prompt and its suffix
        filled = model.decode(sample.tokens)
        text = filled[: stop_index(filled, row.stop)]
        stopped = len(text) < len(filled)
    facts: dict[str, Any] = {"nfe": sample.nfe, "forwards": sample.forwards}
    logprobs = []
    if sample.trace is not None:
        parts = pieces(sample.tokens, model.tokenizer)
        if request.trace:
            edits = [(step, index, _token_text(model, token)) for step, index, token in sample.trace.edits]
            facts["trace"] = {"tokens": parts, **sample.trace.to_dict()} | ({"edits": edits} if edits else {})
        logprobs = _until(text, list(zip(parts[:kept], sample.trace.confidence)))
    reason = "stop" if stopped or kept < len(sample.tokens) else "length"
    return RowResult(text, reason, kept, facts, logprobs)


def _token_text(model: LanguageModel, token: int) -> str | None:
    """Return a token's text; None for a mask."""
    return None if token == model.mask_id else model.decode([token], cut=False)


def _until(text: str, parts: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the tokens that make up the text, each with the log of its confidence."""
    logprobs, length = [], 0
    for part, confidence in parts:
        if length >= len(text):
            break
        logprobs.append((part, math.log(max(confidence, 1e-30))))
        length += len(part)
    return logprobs


class ResponseBody:
    """The JSON of one response."""

    def __init__(self, request: CompletionRequest, name: str) -> None:
        self._request, self._chat = request, request.chat
        self._head = {
            "id": ("chatcmpl-" if request.chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": name,
        }
        self._facts: dict[str, Any] = {"policy": _spelled(request.policy), "seed": request.seed}
        if request.ignored:
            self._facts["ignored"] = request.ignored

    def complete(self, results: Sequence[RowResult]) -> dict[str, Any]:
        """Return the body of a response that is not a stream."""
        choices = []
        for index, sample in enumerate(results):
            message = {"message": {"role": "assistant", "content": sample.text}}
            choices.append(self._choice(index, message if self._chat else {"text": sample.text}, sample))
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": choices,
            "usage": self.usage(results),
            "twotemp": self._facts,
        }

    def text_chunk(self, index: int, text: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a chunk with more text of a choice that continues; if it is diffusing, with its whole text."""
        content = {"delta": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": index, **content, "finish_reason": None, "logprobs": None}
        return self._chunk([choice | ({"twotemp": facts} if facts else {})])

    def last_chunk(self, index: int, text: str, sample: RowResult) -> dict[str, Any]:
        """Return the chunk that ends a choice."""
        content = {"delta": {"content": text}} if self._chat else {"text": text}
        return self._chunk([self._choice(index, content, sample)])

    def usage_chunk(self, results: Sequence[RowResult]) -> dict[str, Any]:
        """Return the chunk that reports the usage."""
        return {**self._chunk([]), "usage": self.usage(results)}

    def usage(self, results: Sequence[RowResult]) -> dict[str, int]:
        prompts = {row.id: len(row.prompt) for row in self._request.rows}
        read, written = sum(prompts.values()), sum(sample.tokens for sample in results)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "twotemp": self._facts}

    def _choice(self, index: int, content: dict[str, Any], sample: RowResult) -> dict[str, Any]:
        return {
            "index": index,
            **content,
            "finish_reason": sample.reason,
            "logprobs": self._logprobs(sample) if self._request.logprobs else None,
            "twotemp": sample.facts,
        }

    def _logprobs(self, sample: RowResult) -> dict[str, Any]:
        """Return the logprobs of tokens when they were committed, given the canvas, not the tokens to their left."""
        if self._chat:
            entries = [(t, p, list(t.encode(errors="replace"))) for t, p in sample.logprobs]
            return {
                "content": [{"token": t, "logprob": p, "bytes": b, "top_logprobs": []} for t, p, b in entries]
            }
        offsets, length = [], 0
        for token, _ in sample.logprobs:
            offsets.append(length)
            length += len(token)
        return {
            "tokens": [token for token, _ in sample.logprobs],
            "token_logprobs": [value for _, value in sample.logprobs],
            "text_offset": offsets,
            "top_logprobs": None,
        }


class RowStream:
    """One row of a stream: the committed prefix, which only grows, or (diffusing) the whole canvas each time."""

    def __init__(self, model: LanguageModel, diffusing: bool, row: Request) -> None:
        self._model, self._diffusing = model, diffusing
        self._prefix = Prefix(model, row)

    def write(self, step: RowStep) -> tuple[str, dict[str, Any] | None] | None:
        """Return the text and facts to send after a step, if any."""
        placed = self._prefix.write(step)
        if self._diffusing:
            commits = [(index, _token_text(self._model, token), p) for index, token, p in placed]
            noise = [(index, _token_text(self._model, token)) for index, token in self._prefix.noise(step)]
            facts = {"step": step.step, "commits": commits}
            return self._canvas(), facts | ({"noise": noise} if noise else {})
        piece = self._prefix.take()
        return (piece, None) if piece else None

    def rest(self, text: str) -> str:
        """Return what is still to be sent of the final text."""
        return text if self._diffusing else self._prefix.rest(text)

    def _canvas(self) -> str:
        """Return the text with `MASK` for each mask, surrounded by the tokenizer's spaces between words."""
        tokenizer, ended = self._model.tokenizer, set(self._model.eos_ids)
        assert tokenizer is not None
        if self._model.mask_id == NO_MASK:
            # Noise has no text; what stands between it is decoded piece by piece.
            shown = (token for token in self._prefix.canvas if token not in ended)
            runs = (list(run) for _, run in groupby(shown, lambda token: token is None))
            return "".join(
                MASK * len(run)
                if run[0] is None
                else self._model.decode([t for t in run if t is not None], cut=False)
                for run in runs
            )
        ids = [self._model.mask_id if t is None else t for t in self._prefix.canvas if t not in ended]
        text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return text.replace(str(tokenizer.convert_ids_to_tokens(self._model.mask_id)), MASK)
