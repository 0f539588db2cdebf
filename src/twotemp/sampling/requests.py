"""What surrounds decoding: prompts and problems become requests, and the token ids of a sample become its text.

Requests are made here and nowhere else; each is checked when it is made. `prompt_requests` reads what a caller of the
library may write: text, chat messages or token ids. `problem_requests` reads the problems of tasks, for evaluation,
GRPO, forks and drift. `finish` gives a sample its text, and `Prefix` knows how much of it is already certain.

Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from twotemp.errors import UserError
from twotemp.policies import AnyPolicy, Portfolio, parse_portfolio
from twotemp.records import Finish, Policy, Problem, Request, Sample, first_eos, integer

if TYPE_CHECKING:
    from twotemp.engine import RowStep
    from twotemp.models.base import Denoiser, LanguageModel

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]  # text, chat messages, or token ids
Length = int | Literal["auto"]
# Requests that a backend draws at a time: enough for freed slots to be refilled, few enough that a run that is
# stopped early has nearly as many samples of every policy and task.
CHUNK = 1024
# Tokens of an answer where no length is given: a quarter of the context, within these bounds.
LONGEST_ANSWER, SHORTEST_ANSWER = 256, 32
LABEL_CHARACTERS = 60  # of a prompt in error messages


# Problems.


@dataclass(frozen=True)
class PlannedSample:
    """A sample to draw of a problem."""

    problem: Problem
    policy: AnyPolicy  # a portfolio: its policy at `index`
    index: int = 0
    id: str | None = None  # of the request, which addresses its noise; None: the problem's


def encode_problem(model: LanguageModel, problem: Problem, chat: bool | None = None) -> list[int]:
    """Return the token ids of a problem's prompt: its question, and the prefill of its answer."""
    return model.encode(problem.prompt, prefill=problem.prefill, chat=chat)


def problem_requests(
    model: LanguageModel,
    planned: Iterable[PlannedSample],
    *,
    length: int,
    block: int | None = None,
    seed: int = 0,
    trace: bool = False,
    chat: bool | None = None,
    tag: str = "",
    eos_stop: bool = False,
) -> Iterator[Request]:
    """Yield a request for each sample of a problem.

    A problem that is asked several times in a row is encoded and checked once.

    Args:
        model: The model that is asked; its weights are not needed.
        planned: The samples to draw, read as requests are needed.
        length: Tokens of an answer.
        block: Width of the decoding blocks; None for the model's default.
        seed: Addresses the noise, together with each request's id and index.
        trace: Record the step and the confidence at which each token was written.
        chat: Use the chat format; None where the model has one.
        tag: The tag of all requests.
        eos_stop: End rows that are written from left to right at their EOS, which changes neither text nor NFE.
    """
    # Needs torch, which the grading of stored samples does not.
    from twotemp.engine.scheduler import check_request

    last: Problem | None = None
    prompt: tuple[int, ...] = ()
    for item in planned:
        new = item.problem is not last
        if new:
            last = item.problem
            prompt = tuple(encode_problem(model, item.problem, chat))
        policy = item.policy.for_sample(item.index)
        request = Request(
            id=item.problem.id if item.id is None else item.id,
            prompt=prompt,
            policy=policy,
            length=length,
            block=block,
            seed=seed,
            index=item.index,
            eos_stop=eos_stop and policy.left_to_right,
            trace=trace,
            tag=tag,
        )
        if new:
            check_request(request, model)
        yield request


# Prompts.


def prompt_requests(
    model: Denoiser,
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
) -> Iterator[Request]:
    """Yield the requests of `twotemp.sample` in the order of its samples; with length=0 those of `infill`.

    All prompts are checked before the first request is made, and requests are made as they are needed. The arguments
    are those of `twotemp.sample`.
    """
    from twotemp.engine.scheduler import check_request
    from twotemp.models.base import language_model

    text = language_model(model)
    listed = prompt_list(prompts)
    rows = [prompt_ids(text, prompt, chat) for prompt in listed]
    hashes = prompt_names(rows)
    names = hashes if ids is None else _given_names(ids, len(rows))
    labels = [_label(prompt, number, len(rows)) for number, prompt in enumerate(listed, start=1)]
    portfolio, strings = _policy(policy), _stop_strings(stop)
    firsts = [
        Request(
            id=name,
            prompt=row,
            policy=portfolio.for_sample(0),
            length=_length(text, row, length, extend),
            block=None if block is None else integer("block", block, least=1),
            seed=integer("seed", seed, least=None, most=None),
            eos_stop=eos_stop,
            extend=extend or length == "auto",
            trace=trace,
            stop=strings,
            label=label if name == digest else "",
        )
        for name, row, digest, label in zip(names, rows, hashes, labels)
    ]
    for first in firsts:
        for component in portfolio.components:
            check_request(replace(first, policy=component), model)
    indices = range(integer("n", n, least=1, most=None))
    return (
        replace(first, index=index, policy=portfolio.for_sample(index))
        for first in firsts
        for index in indices
    )


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt or several as a list. Flat integers are one prompt in token ids, flat messages one chat."""
    if isinstance(prompts, str):
        return [prompts]
    items = _list(prompts)
    if not items:
        raise UserError("no prompt given")
    single = isinstance(items[0], Mapping) or not hasattr(items[0], "__len__")
    return [items] if single else items


def prompt_ids(model: LanguageModel, prompt: Any, chat: bool | None) -> tuple[int, ...]:
    """Return a prompt's token ids."""
    if isinstance(prompt, str):
        return tuple(model.encode(prompt, chat=chat))
    items = _list(prompt)
    if items and all(isinstance(item, Mapping) for item in items):
        return tuple(model.encode(items, chat=chat))
    # For a model without a mask, an id that no token has marks the positions to fill.
    return tuple(integer("a token id", item, least=min(0, model.mask_id)) for item in items)


def prompt_names(rows: Iterable[Sequence[int]]) -> list[str]:
    """Return each prompt's id: a hash of its tokens, numbered where the same prompt is given again."""
    seen: Counter[str] = Counter()
    names = []
    for row in rows:
        digest = hashlib.blake2b(" ".join(map(str, row)).encode(), digest_size=8).hexdigest()
        seen[digest] += 1
        names.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
    return names


def _label(prompt: Any, number: int, count: int) -> str:
    """Return a name for a prompt in error messages."""
    last = prompt[-1] if len(prompt) else ""
    text = last.get("content", "") if isinstance(last, Mapping) else prompt
    excerpt = repr(text) if isinstance(text, str) else f"token ids {list(text)}"
    short = excerpt if len(excerpt) <= LABEL_CHARACTERS else excerpt[: LABEL_CHARACTERS - 3] + "..."
    return f"the prompt {short}" if count == 1 else f"prompt {number} of {count}, {short}"


def _policy(policy: AnyPolicy | str) -> AnyPolicy:
    if isinstance(policy, str):
        return parse_portfolio(policy)
    if not isinstance(policy, Policy | Portfolio):
        raise UserError(
            f'a policy is a Policy, a Portfolio or a spelling such as "tct:t_pos=0.2", not {policy!r}'
        )
    return policy


def _list(items: Any) -> list[Any]:
    """Return a list, a tuple, a NumPy array or a tensor as a list."""
    try:
        if isinstance(items, Mapping | Set | bytes):  # iterable, but never a prompt
            raise TypeError
        return list(items.tolist() if hasattr(items, "tolist") else items)
    except TypeError:
        raise UserError(
            f"a prompt is text, a list of messages, or a list of token ids, not {items!r}"
        ) from None


def _length(model: LanguageModel, row: Sequence[int], length: Length | None, extend: bool) -> int:
    if not (length is None or length == "auto"):
        return integer("length", length)
    auto = length == "auto"
    if auto and not (extend or model.extends or model.block_size):
        raise UserError(
            f"{model.name!r} was trained with masks after the block it writes, so length='auto', which leaves them "
            "out, only approximates it: add extend=True (--extend) to use it nevertheless, or give a length"
        )
    if model.max_length is None:
        if auto:
            raise UserError(
                f"{model.name!r} has no context length that could end a row; give the largest length"
            )
        return LONGEST_ANSWER
    left = model.max_length - len(row)
    if left < 1:
        raise UserError(
            f"the prompt's {len(row)} tokens leave no room for an answer in {model.name!r}'s context of "
            f"{model.max_length}; shorten it"
        )
    return left if auto else min(LONGEST_ANSWER, max(SHORTEST_ANSWER, model.max_length // 4), left)


def _given_names(ids: Sequence[str], count: int) -> list[str]:
    names = [ids] if isinstance(ids, str) else list(ids)
    if len(names) != count or len(set(names)) != count or not all(isinstance(name, str) for name in names):
        raise UserError(f"ids must be {count} different strings, one per prompt, not {ids!r}")
    return names


def _stop_strings(stop: Sequence[str]) -> tuple[str, ...]:
    strings = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    if not all(isinstance(string, str) and string for string in strings):
        raise UserError(f"stop must be a list of strings, none of them empty, not {stop!r}")
    return strings


# Text.


def assistant_turn(problem: Problem, text: str) -> str:
    """Return the assistant's whole turn, with its prefill, for graders and reward models.

    A prefill may open the code block that the text closes.
    """
    return problem.prefill + text


def stop_index(text: str, stop: Sequence[str]) -> int:
    """Return where the first stop string begins, or the length of the text if it contains none."""
    return min((index for string in stop if (index := text.find(string)) >= 0), default=len(text))


def finish(model: LanguageModel, request: Request, sample: Sample) -> Sample:
    """Return the engine's sample with its text, why it ended, and the request's tag.

    The text is the answer, or the whole row where masks inside a text were filled. It ends at the first end-of-text
    token that was *generated* (a prompt may hold others, between its turns), and before the first stop string.
    Without a tokenizer it is the token ids, separated by spaces.
    """
    if model.tokenizer is None:
        return replace(sample, text=" ".join(map(str, sample.tokens)), tag=request.tag)
    if request.length:
        text = model.decode(sample.tokens)
    else:
        row = list(sample.prompt)
        for position, token in zip(sample.positions, sample.tokens):
            row[position] = token
        written = first_eos(sample.tokens, model.eos_ids)
        end = sample.positions[written] if written < len(sample.tokens) else len(row)
        text = model.decode(row[:end], cut=False)
    end = stop_index(text, request.stop)
    reason: Finish = "stop" if end < len(text) else sample.finish
    return replace(sample, text=text[:end], finish=reason, tag=request.tag)


class Prefix:
    """The part of a row's answer that nothing can change any more, while its steps arrive.

    - It ends before the first mask or end of text, and before an ending that may yet become a stop string.
    - In an infilled row, the answer is what was written in place of the masks.
    - If the policy edits, nothing is certain before the row ends.
    - Without a mask, a canvas is certain once it has ended.
    """

    def __init__(self, model: LanguageModel, request: Request) -> None:
        self._model, self._stop = model, request.stop
        self._edits = request.policy.edit != "never"
        given = len(request.prompt)
        # A block-causal model also writes the rest of its last block, which is no part of the answer.
        self._positions: Sequence[int] = (
            range(given, given + request.length)
            if request.length
            else [n for n, token in enumerate(request.prompt) if token == model.mask_id]
        )
        self._index = {position: n for n, position in enumerate(self._positions)}
        self.canvas: list[int | None] = [None] * len(self._positions)  # None: a mask
        self.steps = 0
        self.length = 0  # tokens of the prefix, without the end of text
        self.text = ""
        self.stopped = False  # a stop string has ended the text, which is final
        self._taken = 0  # characters that `take` has returned

    def write(self, step: RowStep) -> list[tuple[int, int, float]]:
        """Take in a step and return what it wrote into the answer: (index, token, confidence)."""
        commits = [
            (self._index[position], token, confidence)
            for position, token, confidence in step.commits
            if position in self._index
        ]
        for index, token, _ in commits:
            self.canvas[index] = None if token == self._model.mask_id else token
        self.steps = step.step + 1
        before = self.length
        end = len(self.canvas) if step.final is None else bisect_left(self._positions, step.final)
        while not self._edits and self.length < end and self._is_text(self.canvas[self.length]):
            self.length += 1
        if self.length > before and self._model.tokenizer is not None:
            self.text, self.stopped = settle(self._decoded(), self._stop)
        return commits

    def noise(self, step: RowStep) -> list[tuple[int, int]]:
        """Return the random tokens that a step left in the answer: (index, token)."""
        return [(self._index[position], token) for position, token in step.noise if position in self._index]

    def take(self) -> str:
        """Return the certain text that was not returned before."""
        piece = self.text[self._taken :]
        self._taken = max(self._taken, len(self.text))
        return piece

    def rest(self, text: str) -> str:
        """Return the part of the final text that `take` has not returned."""
        return text[self._taken :]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for token in self.canvas[: self.length] if token is not None)

    @property
    def positions(self) -> tuple[int, ...]:
        """The columns of `tokens` in the row."""
        return tuple(self._positions[: self.length])

    def _is_text(self, token: int | None) -> bool:
        return token is not None and token not in self._model.eos_ids

    def _decoded(self) -> str:
        # A character may be spread over several tokens, of which the last are still missing.
        return self._model.decode(self.tokens).rstrip("\ufffd")


def settle(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the part of a text that later tokens cannot change, and whether a stop string ends it.

    >>> settle("one. tw", ["two"])
    ('one. ', False)
    >>> settle("one. two", ["two"])
    ('one. ', True)
    """
    end = stop_index(text, stop)
    begun = min((_begun(text, string) for string in stop), default=len(text))
    return (text[:begun], False) if begun < end else (text[:end], end < len(text))


def _begun(text: str, string: str) -> int:
    """Return the index from which the text may be the beginning of the string; its length if there is none."""
    ends = range(max(0, len(text) - len(string) + 1), len(text))
    return next((n for n in ends if text[n] == string[0] and string.startswith(text[n:])), len(text))
