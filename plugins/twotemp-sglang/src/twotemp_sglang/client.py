"""Drawing through an SGLang server that runs with twotemp's plug-in (`twotemp_sglang.server`).

The driver has the tokenizer and no weights. Requests go out in units, several at a time, under the same supervisor as
workers have: a unit whose connection breaks is sent again. Samples are drawn by the same noise as everywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request as Call
from urllib.request import urlopen

from twotemp.asking import finish
from twotemp.engine.batch import paper_nfe
from twotemp.engine.rows import block_of, check
from twotemp.errors import UserError, understood
from twotemp.evaluation.drawing import Chunk
from twotemp.executors.messages import Done, Draw, Drawn, Failed, Lost, News, Order, Ready
from twotemp.executors.supervisor import Supervisor
from twotemp.groups import refuse
from twotemp.models.base import LanguageModel
from twotemp.policies import policy
from twotemp.records import Request, Sample, Trace
from twotemp_sglang import NAME

T = TypeVar("T")
UNIT, CONNECTIONS = 64, 4  # samples of a unit, and units at the server at once
PATIENCE = 3600.0  # seconds for a unit, which may wait behind others
ASKING_SECONDS = 30.0  # for an answer about the server itself
START = f"python -m sglang.launch_server --model-path … --dllm-algorithm {NAME} --max-running-requests 256"
# What stands in for the weights, which are out of reach: how the model goes on, greedily, after its first tokens.
PROBE, PROBE_LENGTH = (0, 1, 2, 3), 32


class Served:
    """A `Drawer` whose model is with a server. Use it as a context manager."""

    def __init__(
        self, url: str, model: LanguageModel, *, unit: int | None = None, connections: int | None = None
    ) -> None:
        """model: what `load_text` gives: the tokenizer and the special ids of the checkpoint that is served."""
        if model.block_size is None:
            raise UserError(
                f"{model.name} is not block-causal, and SGLang decodes SDAR and LLaDA-2 only; draw with --workers or "
                "--ray"
            )
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url} is not the address of a server; give one such as http://localhost:30000")
        self._model, self._server = model, Server(url.rstrip("/"), model)
        probe = Request("twotemp's probe", PROBE, policy("ar", t_token=0.0), PROBE_LENGTH)
        facts = [model.config, model.eos_ids, model.forbidden_ids, model.block_size]
        try:
            self._server.check()
            facts += [sample.tokens for sample in self._server.draw([probe])]
        except OSError as error:
            raise UserError(f"the server at {url} does not serve ({error}); is it still starting?") from error
        self.name, self.encode = model.name, model.encode
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        ready = Ready(self.name, self.fingerprint)
        crew = Lines(self._server, ready)
        self._supervisor = Supervisor(crew, connections or CONNECTIONS, unit=unit or UNIT, patience=PATIENCE)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self._supervisor.close()

    @property
    def workers(self) -> int:
        return self._supervisor.workers

    @property
    def resent(self) -> int:
        return self._supervisor.resent

    def draw(self, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[T, Sample]]:
        for tag, sample in self._supervisor.draw(chunks):
            yield tag, finish(self._model, sample)


@dataclass(frozen=True)
class Server:
    """The HTTP interface of an SGLang server."""

    url: str
    model: LanguageModel

    def check(self) -> None:
        """Raise a UserError unless the server runs twotemp's policies."""
        with self._understood():
            decides = self._ask("/server_info", None, ASKING_SECONDS).get("dllm_algorithm")
        if decides != NAME:
            raise UserError(
                f"the server at {self.url} decides by {decides!r}; install twotemp-sglang there and start it: {START}"
            )

    def draw(self, requests: Sequence[Request]) -> list[Sample]:
        """Draw the samples of these requests with one call; they have no text."""
        for request in requests:
            check(request, self.model)
            refuse(request.policy, "SGLang")
            if not request.length or request.eos_stop:
                raise UserError(
                    f"request {request.id!r}: SGLang continues a prompt to its full length; infilling and stopping "
                    "at EOS are for --workers"
                )
        body = {
            "input_ids": [list(request.prompt) for request in requests],
            "sampling_params": [
                {
                    "max_new_tokens": request.length,
                    "ignore_eos": True,
                    "custom_params": {
                        "policy": request.policy.to_dict(),
                        "seed": request.seed,
                        "request": request.id,
                        "index": request.index,
                        "trace": request.trace,
                    },
                }
                for request in requests
            ],
        }
        with self._understood():
            answers = self._ask("/generate", body, PATIENCE)
            return [self._sample(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _understood(self) -> AbstractContextManager[None]:
        return understood(f"the answer of {self.url}", f"is it SGLang's? Start a server with: {START}")

    def _sample(self, request: Request, answer: dict[str, Any]) -> Sample:
        info, tokens = answer["meta_info"], tuple(answer["output_ids"])
        if len(tokens) != request.length or "twotemp_steps" not in info:
            raise UserError(
                f"the server at {self.url} answered {request.key} with {len(tokens)} of {request.length} tokens "
                f"({info.get('finish_reason')}); is its context long enough?"
            )
        steps, width = tuple(info["twotemp_steps"]), block_of(request, self.model)
        positions = tuple(range(len(request.prompt), len(request.prompt) + request.length))
        written = next((n for n, token in enumerate(tokens) if token in self.model.eos_ids), len(tokens))
        # Every whole block of the prompt that was not in the server's cache took one forward pass.
        forwards = (len(request.prompt) - info.get("cached_tokens", 0)) // width + info["twotemp_forwards"][
            -1
        ]
        return Sample(
            *(request.id, request.index, request.seed, request.policy, request.prompt, positions, tokens),
            nfe=paper_nfe(request, positions[:written], width, max(steps) + 1),
            forwards=forwards,
            processed=forwards * width,
            seconds=float(info.get("e2e_latency", 0.0)),
            finish="eos" if written < len(tokens) else "length",
            trace=Trace(steps, tuple(info["twotemp_confidence"]), tuple(info["twotemp_entropy"]))
            if request.trace
            else None,
        )

    def _ask(self, path: str, body: Any, seconds: float) -> Any:
        """Send a request and return the server's JSON.

        Raises:
            UserError: the server refuses the request, or there is no server.
            OSError: the connection broke or the server failed; the request may be sent again.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("SGLANG_API_KEY"):  # for a server that was started with --api-key
            headers["Authorization"] = f"Bearer {key}"
        try:
            with urlopen(Call(self.url + path, data, headers), timeout=seconds) as answer:
                return json.load(answer)
        except HTTPError as error:
            message = error.read().decode(errors="replace")[:500].strip()
            if error.code >= 500:
                raise OSError(f"HTTP {error.code}: {message}") from None
            raise UserError(
                f"the server at {self.url} refused {path} (HTTP {error.code}): {message}"
            ) from None
        except URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise UserError(f"no SGLang server answers at {self.url}; start one: {START}") from None
            raise OSError(str(error.reason)) from None
        except HTTPException as error:  # the connection ended in the middle of an answer
            raise OSError(repr(error)) from None


class Line:
    """A worker that only waits: a thread with one call to the server at a time."""

    def __init__(self, server: Server, ready: Ready, heard: SimpleQueue[tuple[Line, News]]) -> None:
        self._server, self._ready, self._heard = server, ready, heard
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        Thread(target=self._work, daemon=True).start()

    def send(self, order: Order) -> None:
        self._orders.put(order)

    def kill(self) -> None:
        self._orders.put(None)  # what it is waiting for, nobody will hear

    def _work(self) -> None:
        try:
            self._server.check()
            self._heard.put((self, self._ready))
            while isinstance(order := self._orders.get(), Draw):
                try:
                    self._heard.put((self, Drawn(tuple(self._server.draw(order.requests)))))
                    self._heard.put((self, Done()))
                except UserError as error:
                    self._heard.put((self, Failed(str(error), unit=True)))
        except UserError as error:
            self._heard.put((self, Failed(str(error))))
        except OSError as error:
            self._heard.put((self, Lost(str(error))))


class Lines:
    """A `Crew` of them."""

    def __init__(self, server: Server, ready: Ready) -> None:
        self._server, self._ready = server, ready
        self._heard: SimpleQueue[tuple[Line, News]] = SimpleQueue()

    def start(self, place: int) -> Line:
        return Line(self._server, self._ready, self._heard)

    def hear(self, workers: Sequence[Line], seconds: float) -> list[tuple[int, News]]:
        try:
            said = [self._heard.get(timeout=seconds)]
            while not self._heard.empty():
                said.append(self._heard.get())
        except Empty:
            return []
        places = {worker: number for number, worker in enumerate(workers)}
        return [(places[line], news) for line, news in said if line in places]

    def close(self) -> None:
        pass
