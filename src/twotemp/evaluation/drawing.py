"""Who draws the samples of an evaluation: this process, and whatever else keeps the same protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from twotemp.records import Request, Sample

if TYPE_CHECKING:
    from twotemp.engine import Observer
    from twotemp.models.base import Denoiser, Message


T = TypeVar("T")
# Requests to draw one after the other, and what the caller calls them: ids need only be unique within a chunk.
Chunk = tuple[T, Iterable[Request]]


class Drawer(Protocol):
    """Draws samples, wherever the model is."""

    @property
    def name(self) -> str:
        """The model's."""
        ...

    @property
    def fingerprint(self) -> str:
        """The model's: samples of other weights never mix in a run."""
        ...

    def encode(
        self, prompt: str | Sequence[Message], *, prefill: str = "", chat: bool | None = None
    ) -> list[int]:
        """See `LanguageModel.encode`."""
        ...

    def draw(self, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[T, Sample]]:
        """Samples with their text and their chunk's name, as they are finished. Chunks may be as many as you like:
        they are asked for as work runs out, which need not be at the end of the one before."""
        ...


class InProcess:
    """The model is in this process."""

    def __init__(
        self,
        model: Denoiser,
        *,
        batch_size: int | None = None,
        cache: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        from twotemp.models.base import language_model

        self._model, self._batch_size, self._cache, self._observer = model, batch_size, cache, observer
        text = language_model(model)
        self.name, self.fingerprint, self.encode = model.name, text.fingerprint, text.encode

    def draw(self, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[T, Sample]]:
        from twotemp import sampling

        for name, requests in chunks:
            for sample in sampling.draw(
                self._model, requests, batch_size=self._batch_size, cache=self._cache, observer=self._observer
            ):
                yield name, sample
