"""The front door: text (or token ids) in, samples out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from twotemp.engine import Ledger, run
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.models.text import decode, encode
from twotemp.records import Policy, Request, Sample

Prompt = str | Sequence[int]


def sample(
    model: Denoiser,
    prompts: Prompt | Sequence[Prompt],
    policy: Policy,
    n: int = 1,
    length: int = 256,
    block: int | None = None,
    seed: int = 0,
    *,
    chat: bool = True,
    eos_stop: bool = False,
    trace: bool = False,
    batch_size: int | None = None,
    cache: str | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    ledger: Ledger | None = None,
) -> list[Sample]:
    """Draw n samples a prompt; sample i of prompt j is at index j * n + i.

    prompts: one text or several, or token ids. Text becomes a user turn of the model's chat template unless
    chat=False. block: width of the semi-autoregressive blocks (32; a block-causal model has its own).
    Sample (prompt, i) is the same whatever n, the other prompts and batch_size are. cache: None is exact,
    "prefix" and "dual" are Fast-dLLM's approximations; a `ledger` says where the time went.
    """
    requests = make_requests(
        model, _listed(prompts), policy, n, length, block, seed, chat=chat, eos_stop=eos_stop, trace=trace
    )
    return _in_order(
        stream(model, requests, batch_size=batch_size, cache=cache, ledger=ledger), requests, on_sample
    )


def infill(
    model: Denoiser,
    texts: Prompt | Sequence[Prompt],
    policy: Policy,
    n: int = 1,
    block: int | None = None,
    seed: int = 0,
    *,
    trace: bool = False,
    batch_size: int | None = None,
    cache: str | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    ledger: Ledger | None = None,
) -> list[Sample]:
    """Fill the mask tokens inside given texts (the model's own mask token, or its id) n times each."""
    requests = make_requests(model, _listed(texts), policy, n, 0, block, seed, chat=False, trace=trace)
    return _in_order(
        stream(model, requests, batch_size=batch_size, cache=cache, ledger=ledger), requests, on_sample
    )


def make_requests(
    model: Denoiser,
    prompts: Sequence[Prompt],
    policy: Policy,
    n: int,
    length: int,
    block: int | None,
    seed: int,
    *,
    chat: bool = True,
    eos_stop: bool = False,
    trace: bool = False,
) -> list[Request]:
    if n < 1:
        raise UserError(f"n must be >= 1, not {n}")
    return [
        Request(
            id=str(number),
            prompt=tuple(encode(model, prompt, chat=chat) if isinstance(prompt, str) else prompt),
            policy=policy,
            length=length,
            block=block,
            seed=seed,
            index=index,
            eos_stop=eos_stop,
            trace=trace,
        )
        for number, prompt in enumerate(prompts)
        for index in range(n)
    ]


def stream(
    model: Denoiser,
    requests: Sequence[Request],
    *,
    batch_size: int | None = None,
    cache: str | None = None,
    ledger: Ledger | None = None,
) -> Iterator[Sample]:
    """Samples with their text, as rows finish."""
    for found in run(model, requests, batch_size=batch_size, cache=cache, observer=ledger):
        yield found if model.tokenizer is None else replace(found, text=text_of(model, found))


def text_of(model: Denoiser, found: Sample) -> str:
    """What the sample says: the answer up to the first EOS, or the whole text where masks inside were filled."""
    if found.positions[0] >= len(found.prompt):
        return decode(model, found.tokens)
    row = list(found.prompt)
    for position, token in zip(found.positions, found.tokens):
        row[position] = token
    return decode(model, row)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several. A flat list of ints is one prompt in token ids."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts)
    if not listed:
        raise UserError("no prompt given")
    return [listed] if isinstance(listed[0], int) else listed  # type: ignore[list-item, return-value]


def _in_order(samples: Iterator[Sample], requests: Sequence[Request], on_sample) -> list[Sample]:
    place = {(r.id, r.index): number for number, r in enumerate(requests)}
    ordered: list[Sample | None] = [None] * len(requests)
    for found in samples:
        ordered[place[found.request, found.index]] = found
        if on_sample is not None:
            on_sample(found)
    return ordered  # type: ignore[return-value]
