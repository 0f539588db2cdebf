"""The text of a row while it is written: what is certain of it already, and whether a stop string ended it."""

from __future__ import annotations

from collections.abc import Sequence

from twotemp.engine.observer import Written
from twotemp.models.base import LanguageModel
from twotemp.records import Request


class Prefix:
    """The answer of a watched row: tokens by position, in whatever order they come.

    Text is certain from the left: up to the first mask or end of text, but not what may yet turn out to be a
    stop string. In an infilled row the answer is what stands in the masks. Where the policy edits, nothing is certain
    before the end.
    """

    def __init__(self, model: LanguageModel, request: Request, stop: Sequence[str] = ()) -> None:
        self._model, self._stop = model, tuple(stop)
        self._edits = request.policy.edit != "never"
        given = len(request.prompt)
        # Beyond what was asked for lies the rest of a block-causal model's last block.
        self.positions: Sequence[int] = (
            range(given, given + request.length)
            if request.length
            else [n for n, token in enumerate(request.prompt) if token == model.mask_id]
        )
        self._at = {position: n for n, position in enumerate(self.positions)}
        self.canvas: list[int | None] = [None] * len(self.positions)  # None: a mask
        self.steps = 0
        self.length = 0  # tokens of the prefix, without the end of text
        self.text = ""
        self.stopped = False  # before a stop string; the text is final

    def write(self, written: Written) -> list[tuple[int, int, float]]:
        """Take a step in; what of it belongs to the answer: (place in it, token, confidence)."""
        found = [(self._at[p], token, surely) for p, token, surely in written.commits if p in self._at]
        for place, token, _ in found:
            self.canvas[place] = None if token == self._model.mask_id else token
        self.steps = written.step + 1
        before = self.length
        while not self._edits and self.length < len(self.canvas) and self._inside(self.canvas[self.length]):
            self.length += 1
        if self.length > before and self._model.tokenizer is not None:
            self.text, self.stopped = settle(self._decoded(), self._stop)
        return found

    @property
    def tokens(self) -> list[int]:
        return [token for token in self.canvas[: self.length] if token is not None]

    def _inside(self, token: int | None) -> bool:
        return token is not None and token not in self._model.eos_ids

    def _decoded(self) -> str:
        # A character may be spread over tokens, the last of which are not there yet.
        return self._model.decode(self.tokens).rstrip("\ufffd")


def settle(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The part of a text that whatever follows cannot change, and whether a stop string ends it.

    >>> settle("one. tw", ["two"])
    ('one. ', False)
    >>> settle("one. two", ["two"])
    ('one. ', True)
    """
    end = len(text)
    found = min((place for string in stop if (place := text.find(string)) >= 0), default=end)
    first = min((_begun(text, string) for string in stop), default=end)
    return (text[:first], False) if first < found else (text[:found], found < end)


def _begun(text: str, string: str) -> int:
    """Where the end of the text may be the beginning of the string; its length if nowhere."""
    place = max(0, len(text) - len(string) + 1)
    while (place := text.find(string[0], place)) >= 0:
        if string.startswith(text[place:]):
            return place
        place += 1
    return len(text)
