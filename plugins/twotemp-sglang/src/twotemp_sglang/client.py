"""Drawing through an SGLang server that runs with twotemp's plug-in (`twotemp_sglang.server`).

The driver has the tokenizer and no weights. Requests are sent in units, several at a time. Samples are drawn by the
same noise as everywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException
from itertools import islice
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request as Call
from urllib.request import urlopen

from twotemp.backends.pool import cut
from twotemp.backends.supervisor import ATTEMPTS
from twotemp.engine.batch import paper_nfe
from twotemp.engine.scheduler import block_of, refuse_groups
from twotemp.errors import UserError, reading
from twotemp.models.base import LanguageModel
from twotemp.policies import policy
from twotemp.records import Request, Sample, Trace, first_eos
from twotemp.sampling.requests import finish
from twotemp_sglang import NAME

UNIT, CONNECTIONS = 64, 4  # samples of a unit, and units at the server at once
PATIENCE = 3600.0  # seconds for a unit, which may wait behind others
ASKING_SECONDS = 30.0  # for an answer about the server itself
START = f"python -m sglang.launch_server --model-path … --dllm-algorithm {NAME} --max-running-requests 256"
# What stands in for the weights, which are out of reach: how the model goes on, greedily, after its first tokens.
PROBE, PROBE_LENGTH = (0, 1, 2, 3), 32


class SglangBackend:
    """A `Backend` whose model is with a server. Use it as a context manager.

    Units of requests are sent over several connections at a time; one whose connection breaks is sent again.
    """

    def __init__(
        self, url: str, text: LanguageModel, *, unit: int | None = None, connections: int | None = None
    ) -> None:
        """Connect to a server.

        Args:
            url: Its address.
            text: What `load_text` returns: the tokenizer and the special ids of the checkpoint that is served.
            unit: Samples of a unit.
            connections: Units at the server at the same time.
        """
        if text.block_size is None:
            raise UserError(
                f"{text.name} is not block-causal, and SGLang decodes SDAR and LLaDA-2 only; draw with --workers or "
                "--ray"
            )
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url} is not the address of a server; give one such as http://localhost:30000")
        self.text, self.name, self.workers = text, text.name, connections or CONNECTIONS
        self.resent = 0  # requests of units that were sent again
        self._unit, self._server = unit or UNIT, Server(url.rstrip("/"), text)
        probe = Request("twotemp's probe", PROBE, policy("ar", t_token=0.0), PROBE_LENGTH)
        facts = [text.config, text.eos_ids, text.forbidden_ids, text.block_size]
        try:
            self._server.check()
            facts += [sample.tokens for sample in self._server.draw([probe])]
        except OSError as error:
            raise UserError(f"the server at {url} does not serve ({error}); is it still starting?") from error
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        self._threads = ThreadPoolExecutor(self.workers, "twotemp-sglang")

    def __enter__(self) -> SglangBackend:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """See `Backend.sample`."""
        units = cut(requests, self._unit)
        running = {self._threads.submit(self._draw, unit) for unit in islice(units, 2 * self.workers)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {self._threads.submit(self._draw, unit) for unit in islice(units, len(done))}
                for future in done:
                    yield from future.result()
        finally:
            for future in running:
                future.cancel()

    def _draw(self, unit: Sequence[Request]) -> list[Sample]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                samples = self._server.draw(unit)
                return [finish(self.text, request, sample) for request, sample in zip(unit, samples)]
            except OSError as error:
                self.resent += len(unit)
                if attempt == ATTEMPTS:
                    raise UserError(
                        f"{ATTEMPTS} calls in turn to the server at {self._server.url} failed ({error})"
                    ) from error
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class Server:
    """The HTTP interface of an SGLang server."""

    url: str
    model: LanguageModel

    def check(self) -> None:
        """Raise a UserError unless the server runs twotemp's policies."""
        with self._reading():
            decides = self._ask("/server_info", None, ASKING_SECONDS).get("dllm_algorithm")
        if decides != NAME:
            raise UserError(
                f"the server at {self.url} decides by {decides!r}; install twotemp-sglang there and start it: {START}"
            )

    def draw(self, requests: Sequence[Request]) -> list[Sample]:
        """Draw the samples of these requests with one call; they have no text."""
        for request in requests:
            refuse_groups(request.policy, "SGLang")
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
        with self._reading():
            answers = self._ask("/generate", body, PATIENCE)
            return [self._sample(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _reading(self) -> AbstractContextManager[None]:
        return reading(f"the answer of {self.url}", f"is it SGLang's? Start a server with: {START}")

    def _sample(self, request: Request, answer: dict[str, Any]) -> Sample:
        info, tokens = answer["meta_info"], tuple(answer["output_ids"])
        if len(tokens) != request.length or "twotemp_steps" not in info:
            raise UserError(
                f"the server at {self.url} answered {request.key} with {len(tokens)} of {request.length} tokens "
                f"({info.get('finish_reason')}); is its context long enough?"
            )
        steps, width = tuple(info["twotemp_steps"]), block_of(request, self.model)
        positions = tuple(range(len(request.prompt), len(request.prompt) + request.length))
        written = first_eos(tokens, self.model.eos_ids)
        # Whole blocks of the prompt that the server had not seen before are a pass each.
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
