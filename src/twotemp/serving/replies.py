"""What a client is told: samples in OpenAI's form, whole or as they are written."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from twotemp.engine import Written
from twotemp.models.base import LanguageModel
from twotemp.policies import spell
from twotemp.records import Request, Sample, first_eos
from twotemp.report.trace_page import pieces
from twotemp.sampling.text import Prefix, stop_index
from twotemp.serving.bodies import Wanted

MASK = "░"  # a position of a canvas where nothing is written yet
_spelled = lru_cache(maxsize=256)(spell)  # clients ask for few policies, many times


@dataclass(frozen=True)
class Answer:
    """A sample as a client sees it."""

    text: str
    reason: str  # OpenAI's: stop (end of text, or a stop string) or length
    tokens: int
    facts: dict[str, Any]  # ours
    logprobs: list[tuple[str, float]]


def answer(model: LanguageModel, wanted: Wanted, request: Request, sample: Sample) -> Answer:
    """Return what a client is told about a finished sample."""
    kept = first_eos(sample.tokens, model.eos_ids)
    text, stopped = sample.text, sample.finish == "stop"
    if not request.length:  # a client gets what stands between its prompt and its suffix
        filled = model.decode(sample.tokens)
        text = filled[: stop_index(filled, request.stop)]
        stopped = len(text) < len(filled)
    facts: dict[str, Any] = {"nfe": sample.nfe, "forwards": sample.forwards}
    logprobs = []
    if sample.trace is not None:
        parts = pieces(sample.tokens, model.tokenizer)
        if wanted.trace:
            edits = [(step, index, _token_text(model, token)) for step, index, token in sample.trace.edits]
            facts["trace"] = {"tokens": parts, **sample.trace.to_dict()} | ({"edits": edits} if edits else {})
        logprobs = _until(text, list(zip(parts[:kept], sample.trace.confidence)))
    reason = "stop" if stopped or kept < len(sample.tokens) else "length"
    return Answer(text, reason, kept, facts, logprobs)


def _token_text(model: LanguageModel, token: int) -> str | None:
    """Return a token's text; None for a mask."""
    return None if token == model.mask_id else model.decode([token], cut=False)


def _until(text: str, parts: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The tokens that make up the text, with the log of each one's confidence."""
    found, length = [], 0
    for part, surely in parts:
        if length >= len(text):
            break
        found.append((part, math.log(max(surely, 1e-30))))
        length += len(part)
    return found


class Replies:
    """The JSON of one response."""

    def __init__(self, wanted: Wanted, name: str) -> None:
        self._wanted, self._chat = wanted, wanted.chat
        self._head = {
            "id": ("chatcmpl-" if wanted.chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": name,
        }
        self._ours = {"policy": _spelled(wanted.policy), "seed": wanted.seed}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        said = []
        for index, one in enumerate(answers):
            content = (
                {"message": {"role": "assistant", "content": one.text}} if self._chat else {"text": one.text}
            )
            said.append(self._choice(index, content, one))
        kind = "chat.completion" if self._chat else "text_completion"
        return {
            **self._head,
            "object": kind,
            "choices": said,
            "usage": self.usage(answers),
            "twotemp": self._ours,
        }

    def part(self, index: int, text: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        """More text of a choice that goes on; of a diffusing one, the whole of it."""
        content = {"delta": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": index, **content, "finish_reason": None, "logprobs": None}
        return self._chunk([choice | ({"twotemp": facts} if facts else {})])

    def last(self, index: int, text: str, one: Answer) -> dict[str, Any]:
        content = {"delta": {"content": text}} if self._chat else {"text": text}
        return self._chunk([self._choice(index, content, one)])

    def total(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {**self._chunk([]), "usage": self.usage(answers)}

    def usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        prompts = {r.id: len(r.prompt) for r in self._wanted.requests}
        asked, written = sum(prompts.values()), sum(one.tokens for one in answers)
        return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "twotemp": self._ours}

    def _choice(self, index: int, content: dict[str, Any], one: Answer) -> dict[str, Any]:
        logprobs = self._logprobs(one) if self._wanted.logprobs else None
        return {
            "index": index,
            **content,
            "finish_reason": one.reason,
            "logprobs": logprobs,
            "twotemp": one.facts,
        }

    def _logprobs(self, one: Answer) -> dict[str, Any]:
        """Of each token when it was committed: given what stood on the canvas then, not what stands to its left."""
        if self._chat:
            entries = [(t, p, list(t.encode(errors="replace"))) for t, p in one.logprobs]
            return {
                "content": [{"token": t, "logprob": p, "bytes": b, "top_logprobs": []} for t, p, b in entries]
            }
        offsets, length = [], 0
        for token, _ in one.logprobs:
            offsets.append(length)
            length += len(token)
        return {
            "tokens": [token for token, _ in one.logprobs],
            "token_logprobs": [value for _, value in one.logprobs],
            "text_offset": offsets,
            "top_logprobs": None,
        }


class RowStream:
    """One row of a stream: the committed prefix, which only grows, or (diffusing) the whole canvas each time."""

    def __init__(self, model: LanguageModel, wanted: Wanted, request: Request) -> None:
        self._model, self._diffusing = model, wanted.diffusing
        self._prefix = Prefix(model, request)

    def step(self, written: Written) -> tuple[str, dict[str, Any] | None] | None:
        """Return the text and facts to send after a step, if any."""
        placed = self._prefix.write(written)
        if self._diffusing:
            commits = [(index, _token_text(self._model, token), p) for index, token, p in placed]
            return self._canvas(), {"step": written.step, "commits": commits}
        piece = self._prefix.take()
        return (piece, None) if piece else None

    def rest(self, text: str) -> str:
        """Return what is still to be sent of the final text."""
        return text if self._diffusing else self._prefix.rest(text)

    def _canvas(self) -> str:
        """Text with a sign for each mask. What a tokenizer puts between words it puts around the sign, too."""
        tokenizer, ended = self._model.tokenizer, set(self._model.eos_ids)
        assert tokenizer is not None
        ids = [self._model.mask_id if t is None else t for t in self._prefix.canvas if t not in ended]
        text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return text.replace(str(tokenizer.convert_ids_to_tokens(self._model.mask_id)), MASK)
