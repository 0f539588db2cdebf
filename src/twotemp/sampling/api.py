"""The library's functions, `sample`, `stream` and `infill`: prompts in, samples out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, SupportsIndex, TypeVar, Unpack, get_type_hints, overload

from twotemp.backends.local import LocalBackend
from twotemp.engine import EngineOptions, Observer, StepCallback, StepView
from twotemp.errors import UserError, unknown
from twotemp.models.base import Denoiser
from twotemp.models.load import load_name
from twotemp.policies import AnyPolicy
from twotemp.records import PARAMETERS, Key, Request, Sample
from twotemp.sampling.requests import Length, Prefix, Prompt, prompt_requests

P = ParamSpec("P")
R = TypeVar("R")
SHOWN = 8  # distinct answers of a prompt that are written out
REPLAYED = 4  # samples on the trace page in a notebook
# Keywords of `generate` in transformers, vLLM and diffusion samplers, and what they are called here.
RENAMED = {
    "temperature": "t_token in the policy's spelling, such as 'tct:t_token=0.8'",
    "max_new_tokens": "length",
    "max_tokens": "length",
    "max_length": "length (tokens of the answer alone)",
    "gen_length": "length",
    "num_return_sequences": "n",
    "num_samples": "n",
    "block_length": "block",
    "remasking": "policy, such as 'lc' or 'random'",
    "alg": "policy, such as 'dream' or 'entropy'",
    "do_sample": "t_token in the policy's spelling, such as 'lc:t_token=0' for the likeliest tokens",
}


class Samples(list[Sample]):
    """A list of samples with a short repr and, in a notebook, a table of the distinct answers per prompt.

    Where the samples have traces, the table is followed by their replay.
    """

    def __init__(self, samples: Iterable[Sample] = (), tokenizer: Any | None = None) -> None:
        super().__init__(samples)
        self._tokenizer = tokenizer

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        return Samples(items, self._tokenizer) if isinstance(index, slice) else items

    def answers(self) -> dict[str, Counter[str]]:
        """Return how often each answer was drawn, by prompt (request id)."""
        counts: dict[str, Counter[str]] = {}
        for sample in self:
            counts.setdefault(sample.request, Counter())[sample.text] += 1
        return counts

    def __repr__(self) -> str:
        lines = [f"Samples: {len(self)}"]
        for request, counts in self.answers().items():
            best = ", ".join(f"{text[:40]!r} x {count}" for text, count in counts.most_common(3))
            more = ", ..." if len(counts) > 3 else ""
            lines.append(f"  {request}: {len(counts)} distinct of {counts.total()}: {best}{more}")
        return "\n".join(lines[: SHOWN + 1] + ["  ..."] * (len(lines) > SHOWN + 1))

    def _repr_html_(self) -> str:
        parts = []
        for request, counts in self.answers().items():
            rows = "".join(
                f"<tr><td>{count}</td><td style='text-align:left'><pre>{escape(text)}</pre></td></tr>"
                for text, count in counts.most_common(SHOWN)
            )
            title = f"{escape(request)}: {len(counts)} distinct of {counts.total()}"
            parts.append(
                f"<table><caption>{title}</caption><tr><th>times</th><th>answer</th></tr>{rows}</table>"
            )
        if traced := [sample for sample in self if sample.trace is not None][:REPLAYED]:
            from twotemp.report.trace_page import page

            inside = escape(page(traced, self._tokenizer), quote=True)
            parts.append(f'<iframe srcdoc="{inside}" style="width:100%;height:32em;border:0"></iframe>')
        return "\n".join(parts)


@dataclass(frozen=True)
class StreamEvent:
    """More text of a sample that is being written; with its last piece, the finished sample."""

    request: str  # the prompt's id
    index: int  # which of its n samples
    piece: str  # what is new
    text: str  # all of it so far
    sample: Sample | None = None


class InfillOptions(EngineOptions, total=False):
    """Keywords of `infill`, which `sample` explains."""

    ids: Sequence[str] | None
    stop: Sequence[str]
    trace: bool
    on_step: Callable[[StepView], None] | None


class StreamOptions(InfillOptions, total=False):
    """Keywords of `stream`, which `sample` explains."""

    chat: bool | None
    eos_stop: bool
    extend: bool


def explain_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, wrapped so that an unknown keyword raises an error that says what to write instead.

    It is a UserError if another library or the policy has the keyword, and otherwise a TypeError, as in Python.
    """
    accepted = {*signature(function).parameters} - {"options"}
    if unpacked := get_type_hints(function).get("options"):
        (options,) = unpacked.__args__
        accepted |= options.__optional_keys__

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords.keys() - accepted:
            if name in PARAMETERS:
                advice = f"write it into the policy's spelling, such as 'tct:{name}=...'"
            elif name in RENAMED:
                ours = RENAMED[name].split()[0].rstrip(",")
                advice = f"use {RENAMED[name]}" if ours in {*accepted, *PARAMETERS} else "leave it out"
            else:
                raise TypeError(str(unknown(f"argument of {function.__name__}", name, accepted)))
            raise UserError(f"{function.__name__} has no {name}; {advice}")
        return function(*args, **keywords)

    return call


@explain_keywords
def sample(
    model: Denoiser | str | Path,
    prompts: Prompt | Sequence[Prompt],
    policy: AnyPolicy | str,
    n: int = 1,
    length: Length | None = None,
    block: int | None = None,
    seed: int = 0,
    *,
    ids: Sequence[str] | None = None,
    chat: bool | None = None,
    stop: Sequence[str] = (),
    eos_stop: bool = False,
    extend: bool = False,
    trace: bool = False,
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    on_step: Callable[[StepView], None] | None = None,
    observer: Observer | None = None,
) -> Samples:
    """Draw n samples per prompt.

    A sample's noise is addressed by (seed, id, index), so a sample does not depend on n, batch_size or the other
    prompts. A prompt that is given twice gets different samples the second time.

    Args:
        model: What `twotemp.load` or `twotemp.wrap` returns, or a name that `load` takes; the model that was named
            last is kept for the next call. Load it yourself to choose its device or dtype.
        prompts: One or several; each is a text, a list of chat messages {"role": ..., "content": ...}, or token ids
            (a list, a NumPy array, a tensor).
        policy: A `Policy` or `Portfolio`, or its spelling such as "tct:t_pos=0.2" or "lc + tlc:t_pos=0.5".
        n: Samples per prompt.
        length: Tokens to generate; None for a quarter of the model's context, at least 32 and at most 256; "auto" to
            add blocks until the text ends (see `extend`).
        block: Width of the semi-autoregressive blocks (32; a block-causal model has its own).
        seed: Addresses the noise, together with ids.
        ids: One per prompt; by default a hash of the prompt's tokens.
        chat: None puts text into the model's chat format where it has one, False never.
        stop: The text ends before the first of these strings.
        eos_stop: End a row once everything up to its first EOS is written.
        extend: Let rows end with the block being written, and add blocks until one has an EOS or `length` is reached.
            Block-causal models and iLLaDA were trained this way; for other models it is an approximation.
        trace: Record the step and the confidence at which each token was written.
        batch_size: Rows decoded together; None for what should fit into memory.
        cache: None is exact, "prefix" and "dual" are Fast-dLLM's approximations.
        columns: With batch_size, gives every forward pass one shape, so that a sample does not depend on its batch
            even in bfloat16. The price is computing the padding.
        on_sample: Called with each sample when its row finishes.
        on_step: Called after every step with a `StepView`: the canvas, the committed tokens and their confidence.
        observer: Called around every turn and after every step; takes the place of `on_step`.

    Returns:
        The samples; sample i of prompt j is at index j * n + i.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> samples = twotemp.sample(model, "3 7 12 -> 33", "tct:t_pos=0.2", n=4, length=16)
    >>> len(samples), samples[0].policy.t_pos
    (4, 0.2)
    >>> samples[3].text == twotemp.sample(model, "3 7 12 -> 33", "tct:t_pos=0.2", n=8, length=16)[3].text
    True
    """
    options = StreamOptions(ids=ids, chat=chat, stop=stop, eos_stop=eos_stop, extend=extend, trace=trace)
    options |= {"batch_size": batch_size, "cache": cache, "columns": columns}
    options |= {"on_step": on_step, "observer": observer}
    return _in_order(*_prepare(model, prompts, policy, n, length, block, seed, **options), on_sample)


@explain_keywords
def stream(
    model: Denoiser | str | Path,
    prompts: Prompt | Sequence[Prompt],
    policy: AnyPolicy | str,
    n: int = 1,
    length: Length | None = None,
    block: int | None = None,
    seed: int = 0,
    **options: Unpack[StreamOptions],
) -> Iterator[StreamEvent]:
    """Yield the text of n samples per prompt while it is written.

    Text is yielded once nothing can change it: up to the first position that is still masked. Arguments are those of
    `sample`.

    Yields:
        The events of all samples, as they happen. The last event of a sample has the sample itself.

    >>> import twotemp
    >>> events = list(twotemp.stream(twotemp.load("tiny"), "3 7 12 -> 33", "ar", length=8))
    >>> "".join(event.piece for event in events) == events[-1].sample.text
    True
    """
    return _stream(*_prepare(model, prompts, policy, n, length, block, seed, **options))


@explain_keywords
def infill(
    model: Denoiser | str | Path,
    texts: Prompt | Sequence[Prompt],
    policy: AnyPolicy | str,
    n: int = 1,
    block: int | None = None,
    seed: int = 0,
    *,
    on_sample: Callable[[Sample], None] | None = None,
    **options: Unpack[InfillOptions],
) -> Samples:
    """Fill the mask tokens inside texts, n times each.

    Args:
        texts: Like the prompts of `sample`, with the model's mask token (or its id) wherever it should write.
        model, policy, n, block, seed, on_sample: See `sample`; so are the other keywords.

    Returns:
        The samples; their text is the whole row.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> row = model.encode("3 7 12 -> 33") + [model.mask_id] * 4
    >>> filled = twotemp.infill(model, row, "lc:t_token=0")
    >>> filled[0].text.startswith("3 7 12 -> 33")
    True
    """
    return _in_order(*_prepare(model, texts, policy, n, 0, block, seed, chat=False, **options), on_sample)


def _prepare(
    model: Denoiser | str | Path,
    prompts: Prompt | Sequence[Prompt],
    policy: AnyPolicy | str,
    n: int,
    length: Length | None,
    block: int | None,
    seed: int,
    *,
    on_step: Callable[[StepView], None] | None = None,
    **options: Any,
) -> tuple[LocalBackend, Iterator[Request]]:
    """Return the backend and the requests of a call. Options that are not the engine's go to `prompt_requests`."""
    decoding: Any = {name: options.pop(name) for name in EngineOptions.__annotations__ if name in options}
    if on_step is not None:
        if decoding.get("observer") is not None:
            raise UserError(
                "give on_step or an observer, not both: an observer's `step` is called with the same view"
            )
        decoding["observer"] = StepCallback(on_step)
    model = load_name(model)
    return LocalBackend(model, **decoding), prompt_requests(
        model, prompts, policy, n, length, block, seed, **options
    )


def _in_order(
    backend: LocalBackend, requests: Iterable[Request], on_sample: Callable[[Sample], None] | None
) -> Samples:
    """Return all samples in the order of their requests."""
    wanted, samples = list(requests), {}
    for drawn in backend.sample(wanted):
        samples[drawn.key] = drawn
        if on_sample is not None:
            on_sample(drawn)
    return Samples((samples[request.key] for request in wanted), backend.text.tokenizer)


def _stream(backend: LocalBackend, requests: Iterable[Request]) -> Iterator[StreamEvent]:
    prefixes: dict[Key, Prefix] = {}
    for request, event in backend.events(requests, watch=True):
        key = request.key
        if isinstance(event, Sample):
            prefix = prefixes.pop(key)
            # The prefix of an infilled row covers only its masks, but its text is the whole row: send it at once.
            piece = prefix.rest(event.text) if request.length else event.text
            yield StreamEvent(request.id, request.index, piece, event.text, event)
            continue
        if key not in prefixes:
            prefixes[key] = Prefix(backend.text, request)
        prefixes[key].write(event)
        if request.length and (piece := prefixes[key].take()):
            yield StreamEvent(request.id, request.index, piece, prefixes[key].text)
