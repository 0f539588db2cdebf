"""The one seam between problems and samples: how a problem is asked, and what of a sample is its answer.

All that draws samples of problems (evaluation, GRPO, forks, drift, the verifier) makes its requests here; graders and
reward models read `answer` of a sample's text, which `finish` writes. No torch: the model does the encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from twotemp.records import Policy, Problem, Request, Sample

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel, Message

# Draws samples of requests, in any order: the engine on this device, or whoever has the weights.
Draw = Callable[[Sequence[Request]], Iterable[Sample]]


class Encoder(Protocol):
    """Whatever turns a prompt into token ids as `LanguageModel.encode` does."""

    def encode(
        self, prompt: str | Sequence[Message], *, prefill: str = "", chat: bool | None = None
    ) -> list[int]: ...


@dataclass(frozen=True)
class Ask:
    """One sample to draw of a problem."""

    problem: Problem
    policy: Policy
    index: int = 0
    id: str | None = None  # of the request, which addresses its noise; None: the problem's own


def encode(model: Encoder, problem: Problem, chat: bool | None = None) -> list[int]:
    """The prompt of a problem: its question, and what of the answer is given."""
    return model.encode(problem.prompt, prefill=problem.prefill, chat=chat)


def requests(
    model: Encoder,
    asks: Iterable[Ask],
    *,
    length: int,
    block: int | None = None,
    seed: int = 0,
    trace: bool = False,
    chat: bool | None = None,
) -> Iterator[Request]:
    """A request for each ask, made when it is needed; a problem asked several times in a row is encoded once."""
    last: Problem | None = None
    prompt: tuple[int, ...] = ()
    for ask in asks:
        if ask.problem is not last:
            last = ask.problem
            prompt = tuple(encode(model, last, chat))
        yield Request(
            id=ask.problem.id if ask.id is None else ask.id,
            prompt=prompt,
            policy=ask.policy,
            length=length,
            block=block,
            seed=seed,
            index=ask.index,
            trace=trace,
        )


def finish(model: LanguageModel, sample: Sample, stop: Sequence[str] = ()) -> Sample:
    """The sample with its text: the answer, or the whole row where masks inside a text were filled.

    It ends at the first end-of-text token that was *generated* (a prompt may hold others, between its turns), and
    before the first of the stop strings. Without a tokenizer there is no text.
    """
    if model.tokenizer is None:
        return sample
    if sample.positions[0] >= len(sample.prompt):
        text = model.decode(sample.tokens)
    else:
        row = list(sample.prompt)
        for position, token in zip(sample.positions, sample.tokens):
            row[position] = token
        ended = (p for p, token in zip(sample.positions, sample.tokens) if token in model.eos_ids)
        text = model.decode(row[: next(ended, len(row))], cut=False)
    ends = [place for string in stop if (place := text.find(string)) >= 0]
    return replace(sample, text=text[: min(ends)] if ends else text)


def answer(problem: Problem, text: str | None) -> str:
    """What a grader or a reward model reads: the assistant's whole turn, as a prefill may open the code block that
    the text closes."""
    return problem.prefill + (text or "")
