"""Grade in a thread while the device draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from threading import Condition, Thread

from twotemp.evaluation.work import CellWork, batched
from twotemp.records import Grade, Sample
from twotemp.sampling.prompts import CHUNK

MOST_WAITING = 4 * CHUNK  # samples in the queue; beyond that, drawing waits for grading


class Grading:
    """A context manager: samples that are `put` have been graded when it exits.

    Samples are stored before they are put here, so whatever stops a run (an error, Ctrl-C, a kill) costs only grades,
    which the next run adds. An error of the grader is raised by the next `put`, or on exit.
    """

    def __init__(self, works: Sequence[CellWork], on_grades: Callable[[str, Sequence[Grade]], None]) -> None:
        """Prepare the thread.

        Args:
            works: The cells of the run; samples that earlier runs stored and did not grade are graded first.
            on_grades: Called with (policy, grades), in the thread.
        """
        self._works, self._on_grades = works, on_grades
        self._waiting: dict[CellWork, list[Sample]] = {}
        self._changed = Condition()
        self._ending = self._stopped = self._ended = False
        self._error: BaseException | None = None
        # A daemon, so that a hanging grader does not keep a stopped process alive.
        self._thread = Thread(target=self._run, name="grading", daemon=True)

    def __enter__(self) -> Grading:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._changed:
            self._ending, self._stopped = True, kind is not None
            self._changed.notify_all()
            # Not `Thread.join`: after an interrupt it considers the thread finished (Python 3.11).
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
        """Whether the grader will be idle after the samples it is grading now."""
        return not self._waiting

    @property
    def failed(self) -> bool:
        """Whether the grader raised an error, which `put` will raise."""
        return self._error is not None

    def put(self, work: CellWork, samples: Sequence[Sample]) -> None:
        """Queue stored samples of a cell; wait while the queue is full."""
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
            for work, samples in chain(self._backlog(), self._queued()):
                work.grade(samples, partial(self._on_grades, work.name), lambda: self._stopped)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _backlog(self) -> Iterator[tuple[CellWork, list[Sample]]]:
        for work in self._works:
            for samples in batched(work.pending(), CHUNK):
                if self._stopped:
                    return
                yield work, samples

    def _queued(self) -> Iterator[tuple[CellWork, list[Sample]]]:
        """Yield all queued samples of one cell at a time: large batches keep a grader's workers busy."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if self._stopped or not self._waiting:
                    return
                work = next(iter(self._waiting))
                samples = self._waiting.pop(work)
                self._changed.notify_all()
            yield work, samples
