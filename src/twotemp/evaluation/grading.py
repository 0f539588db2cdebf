"""Grading beside drawing: a thread judges what is stored while the device draws on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from threading import Condition, Thread

from twotemp.evaluation.work import CellWork, parts
from twotemp.records import Grade, Sample
from twotemp.sampling.prompts import CHUNK

MOST_WAITING = 4 * CHUNK  # samples; drawing waits for grading beyond that


class Grading:
    """A context: samples that are `put` are graded by the time it ends.

    Samples are stored before they come here, so whatever stops a run (an error, Ctrl-C, a kill) costs only verdicts,
    which the next run makes up for. The grader's own error is raised to whoever puts next, or at the end.
    """

    def __init__(self, works: Sequence[CellWork], told: Callable[[str, Sequence[Grade]], None]) -> None:
        """works: whose earlier samples wait to be graded, first of all; told(policy, grades) is called in the
        thread."""
        self._works, self._told = works, told
        self._waiting: dict[CellWork, list[Sample]] = {}
        self._changed = Condition()
        self._ending = self._stopped = self._ended = False
        self._error: BaseException | None = None
        # A daemon, so that a grader that hangs does not keep a stopped process alive.
        self._thread = Thread(target=self._run, name="grading", daemon=True)

    def __enter__(self) -> Grading:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._changed:
            self._ending, self._stopped = True, kind is not None
            self._changed.notify_all()
            # Not `Thread.join`: interrupted once, it takes the thread for ended ever after (Python 3.11).
            try:
                self._changed.wait_for(lambda: self._ended)
            except BaseException:  # Ctrl-C while the last samples are graded
                self._stopped = True
                self._changed.wait_for(lambda: self._ended)
                raise
        if kind is None and self._error is not None:
            raise self._error

    @property
    def hungry(self) -> bool:
        """Has the grader nothing to do after what it is at?"""
        return not self._waiting

    @property
    def failed(self) -> bool:
        """Will `put` raise?"""
        return self._error is not None

    def put(self, work: CellWork, samples: Sequence[Sample]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._room())
            if self._error is not None:
                raise self._error
            self._waiting.setdefault(work, []).extend(samples)
            self._changed.notify_all()

    def _room(self) -> bool:
        return sum(map(len, self._waiting.values())) < MOST_WAITING

    def _run(self) -> None:
        try:
            for work, samples in chain(self._backlog(), self._taken()):
                work.grade(samples, partial(self._told, work.name), lambda: self._stopped)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _backlog(self) -> Iterator[tuple[CellWork, list[Sample]]]:
        for work in self._works:
            for samples in parts(work.waiting(), CHUNK):
                if self._stopped:
                    return
                yield work, samples

    def _taken(self) -> Iterator[tuple[CellWork, list[Sample]]]:
        """All that waits of one cell, again and again: the more there is, the better a grader's workers are used."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if self._stopped or not self._waiting:
                    return
                work = next(iter(self._waiting))
                samples = self._waiting.pop(work)
                self._changed.notify_all()
            yield work, samples
