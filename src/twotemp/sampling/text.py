"""From tokens to text: `finish` gives a sample its text, and `Prefix` knows how much of it is already certain.

Importing this module does not import torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from twotemp.records import Finish, Problem, Request, Sample, first_eos

if TYPE_CHECKING:
    from twotemp.engine import RowStep
    from twotemp.models.base import LanguageModel


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
        end = len(self.canvas)
        if step.final is not None:
            end = bisect_left(self._positions, step.final)
        while not self._edits and self.length < end and self._is_text(self.canvas[self.length]):
            self.length += 1
        if self.length > before and self._model.tokenizer is not None:
            self.text, self.stopped = settle(self._decoded(), self._stop)
        return commits

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
    index = max(0, len(text) - len(string) + 1)
    while (index := text.find(string[0], index)) >= 0:
        if string.startswith(text[index:]):
            return index
        index += 1
    return len(text)
