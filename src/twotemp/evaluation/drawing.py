"""Who draws the samples of an evaluation: this process, and whatever else keeps the same protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar, Unpack

from twotemp.asking import Draw, Encoder
from twotemp.records import Request, Sample

if TYPE_CHECKING:
    from twotemp.models.base import Denoiser
    from twotemp.sampling import Drawing

T = TypeVar("T")
# Requests to draw one after the other, and what the caller calls them: ids need only be unique within a chunk.
Chunk = tuple[T, Iterable[Request]]


class Drawer(Encoder, Protocol):
    """Draws samples, wherever the model is; its `encode` is the model's."""

    @property
    def name(self) -> str:
        """The model's."""
        ...

    @property
    def workers(self) -> int:
        """How many draw at the same time."""
        ...

    @property
    def fingerprint(self) -> str:
        """The model's: samples of other weights never mix in a run."""
        ...

    def draw(self, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[T, Sample]]:
        """Samples with their text and their chunk's name, as they are finished. Chunks may be as many as you like:
        they are asked for as work runs out, which need not be at the end of the one before."""
        ...


class InProcess:
    """The model is in this process."""

    workers = 1

    def __init__(self, model: Denoiser, **drawing: Unpack[Drawing]) -> None:
        """drawing: as in `twotemp.sample`."""
        from twotemp.models.base import language_model

        self._model, self._drawing = model, drawing
        self.model = text = language_model(model)
        self.name, self.fingerprint, self.encode = model.name, text.fingerprint, text.encode

    def draw(self, chunks: Iterable[Chunk[T]]) -> Iterator[tuple[T, Sample]]:
        from twotemp import sampling

        for name, requests in chunks:
            for sample in sampling.draw(self._model, requests, **self._drawing):
                yield name, sample


def plain(drawer: Drawer) -> Draw:
    """The drawer for requests that are wanted together, and whose samples need no names."""
    return lambda requests: (sample for _, sample in drawer.draw([(None, requests)]))
