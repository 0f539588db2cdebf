"""Parse and check the JSON body of a request: OpenAI's fields and those of twotemp."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from jinja2 import TemplateError

from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError, unknown
from twotemp.models.base import LanguageModel, Message
from twotemp.policies import PRESETS, AnyPolicy, parse_portfolio, policy
from twotemp.records import PARAMETERS, Policy, Request
from twotemp.sampling.requests import prompt_requests

D = TypeVar("D", int, None)
DEFAULT_POLICY = "tct"
_INTEGERS = range(-(2**63), 2**63)
# Unsupported fields of OpenAI's API, with the neutral values that are accepted.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "audio": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
# Fields that have no effect, whatever their value: accepted, and named in the reply.
_IGNORED = tuple(
    "metadata parallel_tool_calls prediction prompt_cache_key prompt_cache_retention reasoning_effort "
    "safety_identifier user".split()
)
_INSTEAD = {
    "response_format": "text is not constrained to a format; ask for JSON in the prompt (instructor: Mode.MD_JSON)",
    "tools": "ask for the call in the prompt",
}
_SHARED = tuple("model n seed temperature top_p stop max_tokens stream stream_options logprobs".split())
_OURS = ("policy", "block", "trace", "eos_stop", "extend", "diffusing")
_NUMBERS = tuple(
    name for name, p in PARAMETERS.items() if not p.structural and name not in ("t_token", "top_p")
)
_COMPLETION = ("prompt", "suffix")
_CHAT = ("messages", "max_completion_tokens", "top_logprobs")


@dataclass(frozen=True)
class Limits:
    """Limits for each request, and for all clients together."""

    body_bytes: int = 1 << 20
    samples: int = 256  # of a request: n times its prompts
    length: int = 4096  # tokens to generate
    stops: int = 16
    edits: int = 64  # rewrites of a position: each may cost a step of the whole row
    text: int = 1000  # characters of a stop string or of a policy's spelling
    waiting: int = 1024  # unfinished rows of all clients; beyond that the answer is 429
    seconds: float = 600.0  # to draw the samples of a request
    headers_seconds: float = 10.0  # for a request's headers to arrive
    body_seconds: float = 30.0  # for its body


class FieldError(UserError):
    """A field of the body is not valid."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class ModelNotFound(UserError):
    """The body names a model that this server does not have."""


@dataclass(frozen=True)
class CompletionRequest:
    """What the body of a completion or chat completion asks for, checked."""

    chat: bool
    rows: tuple[Request, ...]  # sample i of prompt j is at j * n + i
    policy: AnyPolicy
    seed: int
    stream: bool
    diffusing: bool
    usage: bool  # at the end of a stream
    logprobs: bool
    trace: bool
    ignored: tuple[str, ...]  # fields of the body that have no effect


def read_json(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a body."""

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


def parse_completion(
    data: Mapping[str, Any], chat: bool, model: LanguageModel, name: str, limits: Limits
) -> CompletionRequest:
    """Return what a body asks for.

    Args:
        data: The JSON object.
        chat: Whether it is a chat completion.
        model: Encodes the prompts.
        name: The name of the model for clients.
        limits: What a client may ask for.
    """
    fields = {key: value for key, value in data.items() if value is not None}
    known = (*_SHARED, *(_CHAT if chat else _COMPLETION), *_OURS, *_NUMBERS)
    for key, value in fields.items():
        if key in _NEUTRAL:
            _check_neutral(key, value)
        elif key not in known and key not in _IGNORED:
            raise FieldError(key, str(unknown("parameter", key, known)))
    if fields.get("model", name) != name:
        raise ModelNotFound(str(unknown("model", str(fields["model"]), [name])))
    n = _integer(fields, "n", 1, least=1)
    seed = _integer(fields, "seed", secrets.randbits(31))
    length = _length(fields, chat, limits)
    requested = _policy(fields, limits)
    diffusing = _flag(fields, "diffusing")
    stream = _flag(fields, "stream")
    if diffusing and not stream:
        raise FieldError("diffusing", "diffusing is for streams; add stream: true")
    trace, logprobs = _flag(fields, "trace"), _logprobs(fields, chat)
    prompt, fill = _prompt(fields, chat, model, length)
    count = n * (
        len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
    )
    if count > limits.samples:
        raise FieldError("n", f"{count} samples are more than this server's limit of {limits.samples}")
    block = _integer(fields, "block", None, least=1)
    try:
        rows = prompt_requests(
            model,
            prompt,
            requested,
            n,
            0 if fill else length,
            block,
            seed,
            chat=chat,
            stop=_stop(fields, limits),
            eos_stop=_flag(fields, "eos_stop"),
            extend=_flag(fields, "extend"),
            trace=trace or logprobs,
        )
    except TemplateError as error:  # for instance where roles must alternate
        raise FieldError("messages", f"the model's chat format refuses these messages: {error}") from None
    return CompletionRequest(
        chat=chat,
        rows=tuple(rows),
        policy=requested,
        seed=seed,
        stream=stream,
        diffusing=diffusing,
        usage=_usage(fields),
        logprobs=logprobs,
        trace=trace,
        ignored=_ignored(fields, chat),
    )


def _ignored(fields: Mapping[str, Any], chat: bool) -> tuple[str, ...]:
    """Return the names of the fields that have no effect."""
    named = chat and any("name" in message for message in fields["messages"])
    return (*(key for key in fields if key in _IGNORED), *(("messages.name",) if named else ()))


def _check_neutral(name: str, value: Any) -> None:
    """Raise a FieldError if an unsupported field asks for something."""
    neutral = _NEUTRAL[name]
    if value not in neutral or isinstance(value, bool) != isinstance(neutral[0], bool):  # False == 0
        raise FieldError(name, f"{name} is not supported: {_INSTEAD.get(name, 'leave it out')}")


def _integer(fields: Mapping[str, Any], name: str, default: D, least: int | None = None) -> int | D:
    value = fields.get(name, default)
    if value is None:
        return default
    whole = isinstance(value, int) and not isinstance(value, bool) and value in _INTEGERS
    if not whole or (least is not None and value < least):
        raise FieldError(name, f"{name} must be an integer{'' if least is None else f' >= {least}'}")
    return int(value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(name, f"{name} must be true or false")
    return value


def _length(fields: Mapping[str, Any], chat: bool, limits: Limits) -> int | None:
    name = "max_completion_tokens" if chat and "max_completion_tokens" in fields else "max_tokens"
    length = _integer(fields, name, None, least=1)
    if length is not None and length > limits.length:
        raise FieldError(name, f"{name} must be at most {limits.length}")
    return length


def _policy(fields: Mapping[str, Any], limits: Limits) -> AnyPolicy:
    """Return the named policy, with parameters from other fields; `temperature` is T_token."""
    spec = fields.get("policy", DEFAULT_POLICY)
    if not isinstance(spec, str) or len(spec) > limits.text:
        raise FieldError("policy", 'policy must be a spelling such as "tct:t_pos=0.2"')
    numbers = {name: _number(name, fields[name]) for name in (*_NUMBERS, "top_p") if name in fields}
    if "temperature" in fields:
        numbers["t_token"] = _number("temperature", fields["temperature"])
    try:
        requested = _parse_policy(spec, tuple(numbers), *numbers.values())
    except UserError as error:
        raise FieldError("policy", str(error)) from None
    if any(component.edits > limits.edits for component in requested.components):
        raise FieldError("edits", f"edits must be at most {limits.edits}")
    return requested


@lru_cache(maxsize=256, typed=True)  # typed: 1 and 1.0 are equal, but only one of them is a K
def _parse_policy(spec: str, names: tuple[str, ...], *values: Any) -> AnyPolicy:
    """Return a policy or portfolio, the same object for the same arguments: such rows are batched with less work.

    The named parameters are set in every policy of a portfolio.
    """

    def change(base: Policy) -> Policy:
        spelled = {name: getattr(base, name) for name in PRESETS[base.name].settable}
        requested = policy(base.name, **spelled | dict(zip(names, values)))
        refuse_groups(requested, "a server")
        return requested

    return parse_portfolio(spec).map(change)


def _number(name: str, value: Any) -> Any:
    parameter = PARAMETERS["t_token" if name == "temperature" else name]
    if parameter.kind is float and value == "inf":  # JSON has no such number
        return float("inf")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < 2**31:
            raise FieldError(name, f"{name} is too large")
        return float(value) if parameter.kind is float else value
    if parameter.kind in (int, float):
        raise FieldError(name, f"{name} must be a number")
    if not isinstance(value, str | bool):
        raise FieldError(name, f"{name} must be a word, or true or false")
    return value


def _stop(fields: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    value = fields.get("stop", [])
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(string, str) and string for string in strings):
        raise FieldError("stop", "stop must be a string or a list of strings, none of them empty")
    if len(strings) > limits.stops or any(len(string) > limits.text for string in strings):
        raise FieldError("stop", f"at most {limits.stops} stop strings of {limits.text} characters")
    return tuple(strings)


def _usage(fields: Mapping[str, Any]) -> bool:
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or not set(options) <= {"include_usage"}:
        raise FieldError("stream_options", 'stream_options is {"include_usage": true}')
    return _flag(options, "include_usage")


def _logprobs(fields: Mapping[str, Any], chat: bool) -> bool:
    """Return whether logprobs are asked for. Only those of the committed tokens are known."""
    if _integer(fields, "top_logprobs", 0, least=0):
        raise FieldError(
            "top_logprobs", "only the committed token's logprob is known; leave top_logprobs out"
        )
    if chat or isinstance(fields.get("logprobs", False), bool):
        return _flag(fields, "logprobs")
    if _integer(fields, "logprobs", 0, least=0) > 1:
        raise FieldError("logprobs", "only the committed token's logprob is known; logprobs is 0 or 1")
    return True


def _prompt(
    fields: Mapping[str, Any], chat: bool, model: LanguageModel, length: int | None
) -> tuple[Any, bool]:
    """Return the prompt to sample from, and whether it holds the masks to fill."""
    if chat:
        return _messages(fields.get("messages")), False
    prompt = fields.get("prompt")
    if not isinstance(prompt, str | list) or not prompt:
        raise FieldError("prompt", "prompt must be a text, a list of texts, or token ids, and not empty")
    if isinstance(prompt, list) and not all(isinstance(part, str | list | int) for part in prompt):
        raise FieldError("prompt", "prompt must be a text, a list of texts, or token ids")
    suffix = fields.get("suffix", "")
    if not isinstance(suffix, str):
        raise FieldError("suffix", "suffix must be a text")
    if not suffix:
        return prompt, False
    if not isinstance(prompt, str) or length is None:
        raise FieldError(
            "suffix",
            "a suffix needs a prompt that is a single text, and max_tokens for the length of the infill",
        )
    return [*model.encode(prompt, chat=False), *[model.mask_id] * length, *model.tokens(suffix)], True


def _messages(messages: Any) -> list[Message]:
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise FieldError(
            "messages", 'messages must be a list of {"role": ..., "content": ...}, and not empty'
        )
    return [_message(message) for message in messages]


def _message(message: dict[str, Any]) -> Message:
    content, role = message.get("content"), message.get("role")
    if isinstance(content, list):  # OpenAI's parts
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(text if isinstance(text, str) else "" for text in texts)
        if not all(isinstance(text, str) for text in texts):
            raise FieldError("messages", "a message's content is text; other parts are not supported")
    if not isinstance(content, str) or not isinstance(role, str):
        raise FieldError("messages", 'a message is {"role": ..., "content": text}')
    rest = {key: value for key, value in message.items() if key != "name"}  # no chat template shows it
    return {**rest, "role": "system" if role == "developer" else role, "content": content}
