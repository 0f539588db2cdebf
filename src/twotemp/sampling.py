"""The front door: prompts in, samples out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from operator import index as whole
from typing import Any, TypedDict, Unpack

from twotemp.asking import finish
from twotemp.engine import Observer, Steps, StepView, run
from twotemp.engine.rows import check
from twotemp.errors import UserError
from twotemp.groups import parts
from twotemp.models.base import Denoiser, LanguageModel, Message, language_model
from twotemp.policies import parse
from twotemp.policies.keywords import explain_keywords
from twotemp.records import Policy, Request, Sample
from twotemp.samples import Samples

Prompt = str | Sequence[Message] | Sequence[int]
# Tokens of an answer, unless said otherwise: a quarter of the context, but no more and no fewer than these.
MOST, LEAST = 256, 32
# Requests the engine sees at once. It sorts them by length and holds them all, so there is a limit for huge n.
CHUNK = 8192


class Drawing(TypedDict, total=False):
    """The keywords of `draw`, which `sample` explains."""

    stop: Sequence[str]
    batch_size: int | None
    cache: str | None
    columns: int | None
    on_step: Callable[[StepView], None] | None
    observer: Observer | None


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
    """Draw n samples per prompt; sample i of prompt j is at index j * n + i.

    prompts: one or several; each is a text, a list of chat messages {"role": ..., "content": ...}, or token ids (a
    list, a NumPy array, a tensor).
    policy: a `Policy`, or its spelling such as "tct:t_pos=0.2".
    length: tokens to generate; None: a quarter of the model's context, at least 32 and at most 256.
    block: width of the semi-autoregressive blocks (32; a block-causal model has its own).
    seed, ids: a sample's noise is addressed by (seed, id, i), and a prompt's id is a hash of its tokens unless you
    name it. So a sample is the same whatever n, batch_size and the other prompts are; a prompt that is given twice
    gets other samples the second time.
    chat: None puts text into the model's chat format where it has one, False never.
    stop: strings before which the text ends; eos_stop: end a row once everything up to its first EOS is written.
    cache: None is exact, "prefix" and "dual" are Fast-dLLM's approximations.
    columns: with batch_size, gives every forward pass one shape, so that in bfloat16, too, a sample does not depend
    on the batch it was drawn in; it costs the padding.
    on_sample(sample) is called as rows finish, on_step(view) after every step with a
    `StepView`: the canvas, what was committed, how surely. An `observer` sees the steps too, and may keep time.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> samples = twotemp.sample(model, "3 7 12 -> 33", "tct:t_pos=0.2", n=4, length=16)
    >>> len(samples), samples[0].policy.t_pos
    (4, 0.2)
    >>> samples[3].text == twotemp.sample(model, "3 7 12 -> 33", "tct:t_pos=0.2", n=8, length=16)[3].text
    True
    """
    requests = requests_for(
        model, prompts, policy, n, length, block, seed, ids=ids, chat=chat, eos_stop=eos_stop, trace=trace
    )
    return _collected(
        model,
        requests,
        on_sample,
        stop=stop,
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
    eos_stop: bool = False,
    trace: bool = False,
    **drawing: Unpack[Drawing],
) -> Iterator[Sample]:
    """As `sample`, but yields each sample as soon as it is finished; n may be as large as you like.

    stop, batch_size, cache, columns, on_step and observer are keywords here, too.

    >>> import twotemp
    >>> endless = twotemp.stream(twotemp.load("tiny"), "3 7 12 -> 33", "lc", n=10**8, length=8, batch_size=2)
    >>> next(endless).index in (0, 1)
    True
    """
    requests = requests_for(
        model, prompts, policy, n, length, block, seed, ids=ids, chat=chat, eos_stop=eos_stop, trace=trace
    )
    return draw(model, requests, **drawing)


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
    trace: bool = False,
    on_sample: Callable[[Sample], None] | None = None,
    **drawing: Unpack[Drawing],
) -> Samples:
    """Fill the mask tokens inside given texts (the model's own mask token, or its id) n times each.

    batch_size, cache, columns, on_step and observer are keywords here, too: see `sample`.

    >>> import twotemp
    >>> model = twotemp.load("tiny")
    >>> row = model.encode("3 7 12 -> 33") + [model.mask_id] * 4
    >>> filled = twotemp.infill(model, row, "lc:t_token=0")
    >>> filled[0].text.startswith("3 7 12 -> 33")
    True
    """
    requests = requests_for(model, texts, policy, n, 0, block, seed, ids=ids, chat=False, trace=trace)
    return _collected(model, requests, on_sample, **drawing)


def requests_for(
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
    eos_stop: bool = False,
    trace: bool = False,
) -> Iterator[Request]:
    """What `sample` draws (with length=0 `infill`), in the order of its samples. All prompts are checked at once."""
    text = language_model(model)
    rows = [row_of(text, prompt, chat) for prompt in listed(prompts)]
    names = names_of(rows) if ids is None else _given(ids, len(rows))
    chosen = as_policy(policy)
    firsts = [
        Request(
            id=name,
            prompt=row,
            policy=chosen,
            length=_room(text, row) if length is None else whole_number("length", length),
            block=None if block is None else whole_number("block", block, least=1),
            seed=whole_number("seed", seed, least=None),
            eos_stop=eos_stop,
            trace=trace,
        )
        for name, row in zip(names, rows)
    ]
    for first in firsts:
        check(first, model)
    times = range(whole_number("n", n, least=1))
    return (replace(first, index=index) for first in firsts for index in times)


def draw(
    model: Denoiser,
    requests: Iterable[Request],
    *,
    stop: Sequence[str] = (),
    batch_size: int | None = None,
    cache: str | None = None,
    columns: int | None = None,
    on_step: Callable[[StepView], None] | None = None,
    observer: Observer | None = None,
) -> Iterator[Sample]:
    """Samples with their text, as rows finish. The one place where requests meet the engine."""
    text, strings = language_model(model), _strings(stop)
    if on_step is not None:
        if observer is not None:
            raise UserError(
                "give on_step or an observer, not both: an observer's `step` is called with the same view"
            )
        observer = Steps(on_step)
    batch_size = None if batch_size is None else whole_number("batch_size", batch_size, least=1)
    columns = None if columns is None else whole_number("columns", columns, least=1)
    return (
        finish(text, one, strings)
        for some in parts(requests, CHUNK)
        for one in run(model, some, batch_size=batch_size, cache=cache, columns=columns, observer=observer)
    )


def _collected(
    model: Denoiser,
    requests: Iterable[Request],
    on_sample: Callable[[Sample], None] | None,
    **drawing: Unpack[Drawing],
) -> Samples:
    """All samples, in the order of their requests."""
    wanted, found = list(requests), {}
    for one in draw(model, wanted, **drawing):
        found[one.key] = one
        if on_sample is not None:
            on_sample(one)
    return Samples((found[request.key] for request in wanted), tokenizer=model.tokenizer)


# What a caller may write.


def as_policy(policy: Policy | str) -> Policy:
    if isinstance(policy, str):
        return parse(policy)
    if not isinstance(policy, Policy):
        raise UserError(f'a policy is a Policy or a spelling such as "tct:t_pos=0.2", not {policy!r}')
    return policy


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list. Flat ints are one prompt in token ids, flat messages one chat."""
    if isinstance(prompts, str):
        return [prompts]
    several = _plain(prompts)
    if not several:
        raise UserError("no prompt given")
    one = isinstance(several[0], Mapping) or not hasattr(several[0], "__len__")
    return [several] if one else several


def row_of(model: LanguageModel, prompt: Any, chat: bool | None) -> tuple[int, ...]:
    """A prompt's token ids."""
    if isinstance(prompt, str):
        return tuple(model.encode(prompt, chat=chat))
    items = _plain(prompt)
    if items and all(isinstance(item, Mapping) for item in items):
        return tuple(model.encode(items, chat=chat))
    return tuple(whole_number("a token id", item) for item in items)


def _plain(items: Any) -> list[Any]:
    """A list from a list, a tuple, a NumPy array or a tensor."""
    try:
        if isinstance(items, Mapping | Set | bytes):  # lists of something, but not of what was meant
            raise TypeError
        return list(items.tolist() if hasattr(items, "tolist") else items)
    except TypeError:
        raise UserError(
            f"a prompt is text, a list of messages, or a list of token ids, not {items!r}"
        ) from None


def _room(model: LanguageModel, row: Sequence[int]) -> int:
    if model.max_length is None:
        return MOST
    left = model.max_length - len(row)
    if left < 1:
        raise UserError(
            f"the prompt's {len(row)} tokens leave no room for an answer in {model.name!r}'s context of "
            f"{model.max_length}; shorten it"
        )
    return min(MOST, max(LEAST, model.max_length // 4), left)


def names_of(rows: Iterable[Sequence[int]]) -> list[str]:
    """A prompt's id: a hash of its tokens; with a number where it is given again."""
    seen: Counter[str] = Counter()
    names = []
    for row in rows:
        digest = hashlib.blake2b(" ".join(map(str, row)).encode(), digest_size=8).hexdigest()
        seen[digest] += 1
        names.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
    return names


def _given(ids: Sequence[str], count: int) -> list[str]:
    names = [ids] if isinstance(ids, str) else list(ids)
    if len(names) != count or len(set(names)) != count or not all(isinstance(name, str) for name in names):
        raise UserError(f"ids must be {count} different strings, one per prompt, not {ids!r}")
    return names


def _strings(stop: Sequence[str]) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    if not all(isinstance(string, str) and string for string in strings):
        raise UserError(f"stop must be a list of strings, none of them empty, not {stop!r}")
    return strings


def whole_number(name: str, value: Any, least: int | None = 0) -> int:
    """An integer, of Python's or NumPy's kind, but neither a flag nor a float."""
    try:
        number = whole(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        bound = "" if least is None else f" >= {least}"
        raise UserError(f"{name} must be an integer{bound}, not {value!r}")
    return number
