"""What a client asked for: OpenAI's fields, and ours beside them, read with care. No HTTP here."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError, unknown
from twotemp.models.base import LanguageModel, Message
from twotemp.policies import PRESETS, parse, policy
from twotemp.records import PARAMETERS, Policy, Request
from twotemp.sampling.prompts import prompt_requests

DEFAULT_POLICY = "tct"
_INTEGERS = range(-(2**63), 2**63)
# Fields of OpenAI's that mean nothing here: they may be given, as long as they ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "service_tier": ("auto", "default"),
}
# Fields that have no effect here, whatever they say.
_IGNORED = ("metadata", "reasoning_effort")
_SHARED = ("model", "n", "seed", "temperature", "top_p", "stop", "max_tokens", "stream", "stream_options")
_OURS = ("policy", "block", "trace", "eos_stop", "diffusing")
_NUMBERS = tuple(
    name for name, p in PARAMETERS.items() if not p.structural and name not in ("t_token", "top_p")
)
_FIELDS = {
    False: (*_SHARED, "prompt", "suffix", "logprobs", "user", *_OURS, *_NUMBERS),
    True: (
        *_SHARED,
        "messages",
        "max_completion_tokens",
        "logprobs",
        "top_logprobs",
        "user",
        *_OURS,
        *_NUMBERS,
    ),
}


@dataclass(frozen=True)
class Limits:
    """What one client may ask for, and all of them together."""

    body_bytes: int = 1 << 20
    samples: int = 256  # n times the prompts of a request
    length: int = 4096  # tokens to generate
    stops: int = 16
    edits: int = 64  # rewrites of a position: each may cost a step of the whole row
    text: int = 1000  # characters of a stop string, and of a policy's spelling
    waiting: int = 1024  # rows accepted and not finished; beyond that the answer is 429
    seconds: float = 600.0  # to draw the samples of a request
    arriving: float = 30.0  # seconds for its body


class Field(UserError):
    """Something is wrong with one field."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class NoSuchModel(UserError):
    """The model that was named is not here."""


@dataclass(frozen=True)
class Wanted:
    """A request to sample, checked."""

    chat: bool
    requests: tuple[Request, ...]  # sample i of prompt j is at j * n + i
    policy: Policy
    seed: int
    stream: bool
    diffusing: bool
    usage: bool  # at the end of a stream
    logprobs: bool
    trace: bool


def read(text: bytes) -> dict[str, Any]:
    """A body's JSON object."""

    def refused(name: str) -> float:
        raise UserError(f"{name} is not JSON")

    try:
        data = json.loads(text.decode(), parse_constant=refused)
        if b"\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is a ValueError
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError("the body must be a JSON object")
    return data


def wanted(data: Mapping[str, Any], chat: bool, model: LanguageModel, name: str, limits: Limits) -> Wanted:
    """What the body of a completion (chat: of a chat completion) asks for; `name`: the model's, for clients."""
    given = {key: value for key, value in data.items() if value is not None}
    for key in given:
        if key in _IGNORED:
            continue
        if key in _NEUTRAL:
            if given[key] not in _NEUTRAL[key] or isinstance(given[key], bool) != isinstance(
                _NEUTRAL[key][0], bool
            ):
                raise Field(key, f"{key} is not supported; leave it out")
        elif key not in _FIELDS[chat]:
            raise Field(key, str(unknown("parameter", key, _FIELDS[chat])))
    if given.get("model", name) != name:
        raise NoSuchModel(str(unknown("model", str(given["model"]), [name])))
    n = _integer(given, "n", 1, least=1)
    assert n is not None
    seed = _integer(given, "seed", secrets.randbits(31))
    assert seed is not None
    length = _length(given, chat, limits)
    chosen = _policy(given, limits)
    diffusing = _flag(given, "diffusing")
    stream = _flag(given, "stream")
    if diffusing and not stream:
        raise Field("diffusing", "diffusing is for streams; add stream: true")
    trace, logprobs = _flag(given, "trace"), _logprobs(given, chat)
    prompt, fill = _prompt(given, chat, model, length)
    count = n * (
        len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
    )
    if count > limits.samples:
        raise Field("n", f"{count} samples are more than this server's limit of {limits.samples}")
    block = _integer(given, "block", None, least=1)
    try:
        requests = prompt_requests(
            model,
            prompt,
            chosen,
            n,
            0 if fill else length,
            block,
            seed,
            chat=chat,
            stop=_stop(given, limits),
            eos_stop=_flag(given, "eos_stop"),
            trace=trace or logprobs,
        )
    except TemplateError as error:  # many a chat template has its own idea of who speaks when
        raise Field("messages", f"the model's chat format refuses these messages: {error}") from None
    return Wanted(
        chat=chat,
        requests=tuple(requests),
        policy=chosen,
        seed=seed,
        stream=stream,
        diffusing=diffusing,
        usage=_usage(given),
        logprobs=logprobs,
        trace=trace,
    )


def _integer(
    given: Mapping[str, Any], name: str, otherwise: int | None, least: int | None = None
) -> int | None:
    value = given.get(name, otherwise)
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool) and value in _INTEGERS
    if not whole or (least is not None and value < least):
        raise Field(name, f"{name} must be an integer{'' if least is None else f' >= {least}'}")
    return int(value)


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise Field(name, f"{name} must be true or false")
    return value


def _length(given: Mapping[str, Any], chat: bool, limits: Limits) -> int | None:
    name = "max_completion_tokens" if chat and "max_completion_tokens" in given else "max_tokens"
    length = _integer(given, name, None, least=1)
    if length is not None and length > limits.length:
        raise Field(name, f"{name} must be at most {limits.length}")
    return length


def _policy(given: Mapping[str, Any], limits: Limits) -> Policy:
    """The policy named, with the numbers that stand beside it; `temperature` is T_token."""
    spec = given.get("policy", DEFAULT_POLICY)
    if not isinstance(spec, str) or len(spec) > limits.text:
        raise Field("policy", 'policy must be a spelling such as "tct:t_pos=0.2"')
    numbers = {name: _number(name, given[name]) for name in (*_NUMBERS, "top_p") if name in given}
    if "temperature" in given:
        numbers["t_token"] = _number("temperature", given["temperature"])
    try:
        chosen = _chosen(spec, tuple(numbers), *numbers.values())
    except UserError as error:
        raise Field("policy", str(error)) from None
    if chosen.edits > limits.edits:
        raise Field("edits", f"edits must be at most {limits.edits}")
    return chosen


@lru_cache(maxsize=256, typed=True)  # typed: 1 and 1.0 are equal, but only one of them is a K
def _chosen(spec: str, names: tuple[str, ...], *values: Any) -> Policy:
    """Clients ask for few policies, many times; and rows that share one policy object are batched with less work."""
    base = parse(spec)
    spelled = {name: getattr(base, name) for name in PRESETS[base.name].settable}
    chosen = policy(base.name, **spelled | dict(zip(names, values)))
    refuse_groups(chosen, "a server")
    return chosen


def _number(name: str, value: Any) -> Any:
    parameter = PARAMETERS["t_token" if name == "temperature" else name]
    if parameter.kind is float and value == "inf":  # JSON has no such number
        return float("inf")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < 2**31:
            raise Field(name, f"{name} is too large")
        return float(value) if parameter.kind is float else value
    if parameter.kind in (int, float):
        raise Field(name, f"{name} must be a number")
    if not isinstance(value, str | bool):
        raise Field(name, f"{name} must be a word, or true or false")
    return value


def _stop(given: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    value = given.get("stop", [])
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(one, str) and one for one in strings):
        raise Field("stop", "stop must be a string or a list of strings, none of them empty")
    if len(strings) > limits.stops or any(len(one) > limits.text for one in strings):
        raise Field("stop", f"at most {limits.stops} stop strings of {limits.text} characters")
    return tuple(strings)


def _usage(given: Mapping[str, Any]) -> bool:
    options = given.get("stream_options", {})
    if not isinstance(options, dict) or not set(options) <= {"include_usage"}:
        raise Field("stream_options", 'stream_options is {"include_usage": true}')
    return _flag(options, "include_usage")


def _logprobs(given: Mapping[str, Any], chat: bool) -> bool:
    """Whether they are wanted. What is known is the token that was committed, not its rivals."""
    if _integer(given, "top_logprobs", 0, least=0):
        raise Field("top_logprobs", "only the committed token's logprob is known; leave top_logprobs out")
    if chat or isinstance(given.get("logprobs", False), bool):
        return _flag(given, "logprobs")
    if (_integer(given, "logprobs", 0, least=0) or 0) > 1:
        raise Field("logprobs", "only the committed token's logprob is known; logprobs is 0 or 1")
    return True


def _prompt(
    given: Mapping[str, Any], chat: bool, model: LanguageModel, length: int | None
) -> tuple[Any, bool]:
    """What to give to `sample`, and whether its masks are to be filled."""
    if chat:
        return _messages(given.get("messages")), False
    prompt = given.get("prompt")
    if not isinstance(prompt, str | list) or not prompt:
        raise Field("prompt", "prompt must be a text, a list of texts, or token ids, and not empty")
    if isinstance(prompt, list) and not all(isinstance(one, str | list | int) for one in prompt):
        raise Field("prompt", "prompt must be a text, a list of texts, or token ids")
    suffix = given.get("suffix", "")
    if not isinstance(suffix, str):
        raise Field("suffix", "suffix must be a text")
    if not suffix:
        return prompt, False
    if not isinstance(prompt, str) or length is None:
        raise Field(
            "suffix", "a suffix needs a prompt that is one text, and max_tokens: how much is to be filled in"
        )
    return [*model.encode(prompt, chat=False), *[model.mask_id] * length, *model.tokens(suffix)], True


def _messages(given: Any) -> list[Message]:
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise Field("messages", 'messages must be a list of {"role": ..., "content": ...}, and not empty')
    return [_message(one) for one in given]


def _message(given: dict[str, Any]) -> Message:
    content, role = given.get("content"), given.get("role")
    if isinstance(content, list):  # OpenAI's parts
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(text if isinstance(text, str) else "" for text in texts)
        if not all(isinstance(text, str) for text in texts):
            raise Field("messages", "a message's content is text; other parts are not supported")
    if not isinstance(content, str) or not isinstance(role, str):
        raise Field("messages", 'a message is {"role": ..., "content": text}')
    rest = {key: value for key, value in given.items() if key != "name"}  # no chat template shows it
    return {**rest, "role": "system" if role == "developer" else role, "content": content}
