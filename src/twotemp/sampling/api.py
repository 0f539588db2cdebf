"""The library's functions: prompts in, samples out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from twotemp.backends.local import LocalBackend
from twotemp.engine import Observer, Steps, StepView
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.policies.keywords import explain_keywords
from twotemp.records import Key, Policy, Request, Sample
from twotemp.sampling.prompts import Prompt, prompt_requests
from twotemp.sampling.samples import Samples
from twotemp.sampling.text import Prefix


class SamplingOptions(TypedDict, total=False):
    """Keywords that `sample` explains and the other functions share."""

    batch_size: int | None
    cache: str | None
    columns: int | None
    on_step: Callable[[StepView], None] | None
    observer: Observer | None


@dataclass(frozen=True)
class StreamEvent:
    """More text of a sample that is being written; with its last piece, the finished sample."""

    request: str  # the prompt's id
    index: int  # which of its n samples
    piece: str  # what is new
    text: str  # all of it so far
    sample: Sample | None = None


@explain_keywords
def sample(
    model: Denoiser,
    prompts: Prompt | Sequence[Prompt],
    policy: Policy | str,
    n: int = 1,
    length: int | None = None,
    block: int | None = None,
    seed: int = 0,
    *,
    ids: Sequence[str] | None = None,
    chat: bool | None = None,
    stop: Sequence[str] = (),
    eos_stop: bool = False,
    trace: bool = False,
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    on_step: Callable[[StepView], None] | None = None,
    observer: Observer | None = None,
) -> Samples:
    """Draw n samples per prompt.

    A sample's noise is addressed by (seed, id, index), so a sample is the same whatever n, batch_size and the other
    prompts are. A prompt that is given twice gets other samples the second time.

    Args:
        model: What `twotemp.load` or `twotemp.wrap` returns.
        prompts: One or several; each is a text, a list of chat messages {"role": ..., "content": ...}, or token ids
            (a list, a NumPy array, a tensor).
        policy: A `Policy`, or its spelling such as "tct:t_pos=0.2".
        n: Samples per prompt.
        length: Tokens to generate; None for a quarter of the model's context, at least 32 and at most 256.
        block: Width of the semi-autoregressive blocks (32; a block-causal model has its own).
        seed: Addresses the noise, together with ids.
        ids: One per prompt; by default a hash of the prompt's tokens.
        chat: None puts text into the model's chat format where it has one, False never.
        stop: Strings before which the text ends.
        eos_stop: End a row once everything up to its first EOS is written.
        trace: Record when and how surely each token was written.
        batch_size: Rows decoded together; None for what should fit into memory.
        cache: None is exact, "prefix" and "dual" are Fast-dLLM's approximations.
        columns: With batch_size, gives every forward pass one shape, so that a sample does not depend on its batch
            in bfloat16 either; it costs the padding.
        on_sample: Called with each sample when its row finishes.
        on_step: Called after every step with a `StepView`: the canvas, what was committed, how surely.
        observer: Sees the steps as well, and may keep time.

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
    requests = prompt_requests(
        model,
        prompts,
        policy,
        n,
        length,
        block,
        seed,
        ids=ids,
        chat=chat,
        stop=stop,
        eos_stop=eos_stop,
        trace=trace,
    )
    return _in_order(
        model,
        requests,
        on_sample,
        batch_size=batch_size,
        cache=cache,
        columns=columns,
        on_step=on_step,
        observer=observer,
    )


@explain_keywords
def stream(
    model: Denoiser,
    prompts: Prompt | Sequence[Prompt],
    policy: Policy | str,
    n: int = 1,
    length: int | None = None,
    block: int | None = None,
    seed: int = 0,
    *,
    ids: Sequence[str] | None = None,
    chat: bool | None = None,
    stop: Sequence[str] = (),
    eos_stop: bool = False,
    trace: bool = False,
    **options: Unpack[SamplingOptions],
) -> Iterator[StreamEvent]:
    """Yield the text of n samples per prompt while it is written.

    Text is yielded once nothing can change it: up to the first position that is still masked. Arguments are those of
    `sample`; n may be as large as you like.

    Yields:
        The events of all samples, as they happen. The last event of a sample has the sample itself.

    >>> import twotemp
    >>> events = list(twotemp.stream(twotemp.load("tiny"), "3 7 12 -> 33", "ar", length=8))
    >>> "".join(event.piece for event in events) == events[-1].sample.text
    True
    """
    requests = prompt_requests(
        model,
        prompts,
        policy,
        n,
        length,
        block,
        seed,
        ids=ids,
        chat=chat,
        stop=stop,
        eos_stop=eos_stop,
        trace=trace,
    )
    return _stream(_backend(model, **options), requests)


@explain_keywords
def infill(
    model: Denoiser,
    texts: Prompt | Sequence[Prompt],
    policy: Policy | str,
    n: int = 1,
    block: int | None = None,
    seed: int = 0,
    *,
    ids: Sequence[str] | None = None,
    stop: Sequence[str] = (),
    trace: bool = False,
    on_sample: Callable[[Sample], None] | None = None,
    **options: Unpack[SamplingOptions],
) -> Samples:
    """Fill the mask tokens inside texts, n times each.

    Args:
        texts: As the prompts of `sample`, with the model's mask token (or its id) where it shall write.
        model, policy, n, block, seed, ids, stop, trace, on_sample: See `sample`; so are the other keywords.

    Returns:
        The samples; their text is the whole row.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> row = model.encode("3 7 12 -> 33") + [model.mask_id] * 4
    >>> filled = twotemp.infill(model, row, "lc:t_token=0")
    >>> filled[0].text.startswith("3 7 12 -> 33")
    True
    """
    requests = prompt_requests(
        model, texts, policy, n, 0, block, seed, ids=ids, chat=False, stop=stop, trace=trace
    )
    return _in_order(model, requests, on_sample, **options)


def _backend(
    model: Denoiser,
    *,
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    on_step: Callable[[StepView], None] | None = None,
    observer: Observer | None = None,
) -> LocalBackend:
    if on_step is not None:
        if observer is not None:
            raise UserError(
                "give on_step or an observer, not both: an observer's `step` is called with the same view"
            )
        observer = Steps(on_step)
    return LocalBackend(model, batch_size=batch_size, cache=cache, columns=columns, observer=observer)


def _in_order(
    model: Denoiser,
    requests: Iterable[Request],
    on_sample: Callable[[Sample], None] | None,
    **options: Unpack[SamplingOptions],
) -> Samples:
    """Return all samples in the order of their requests."""
    backend = _backend(model, **options)
    wanted, samples = list(requests), {}
    for drawn in backend.sample(wanted):
        samples[drawn.key] = drawn
        if on_sample is not None:
            on_sample(drawn)
    return Samples((samples[request.key] for request in wanted), tokenizer=model.tokenizer)


def _stream(backend: LocalBackend, requests: Iterable[Request]) -> Iterator[StreamEvent]:
    prefixes: dict[Key, Prefix] = {}
    for request, event in backend.events(requests, watch=True):
        key = request.key
        if isinstance(event, Sample):
            prefix = prefixes.pop(key)
            # What is certain of an infilled row is what stands in its masks; its text is the whole row.
            piece = prefix.rest(event.text) if request.length else event.text
            yield StreamEvent(request.id, request.index, piece, event.text, event)
            continue
        if key not in prefixes:
            prefixes[key] = Prefix(backend.text, request)
        prefixes[key].write(event)
        if request.length and (piece := prefixes[key].take()):
            yield StreamEvent(request.id, request.index, piece, prefixes[key].text)
