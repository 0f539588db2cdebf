"""Child processes that answer questions, and a pool of them that answers each distinct question once.

What a model wrote may hang, crash or exhaust whoever looks at it, so it is looked at in a child process: the
parent holds the clock, and kills. A *worker* is the parent's side of such a child.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from twotemp import processes
from twotemp.records import Outcome

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")

REMEMBERED = 200_000  # answers a pool keeps; the oldest go first


_PIPE_PART = select.PIPE_BUF  # a write no longer than this does not block on a pipe that polls as writable


@dataclass(frozen=True)
class Verdict:
    """What a worker found out about an answer; `ungraded` if it could not."""

    outcome: Outcome
    detail: str = ""


class ChildDied(Exception):
    """The child ended, or was ended, before it answered."""


class Child:
    """A process that answers what it is sent with one line of JSON; its first line says that it has started."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], memory: int | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = processes.start(
            command,
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            memory=memory,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._buffer = b""

    def ask(self, question: bytes, seconds: float) -> dict[str, Any]:
        """The child's answer. TimeoutError (the child is then dead) or ChildDied otherwise."""
        deadline = time.monotonic() + seconds
        while question:
            self._wait_for(deadline, writing=True)
            try:
                question = question[os.write(self._in, question[:_PIPE_PART]) :]
            except OSError as error:
                raise self._died() from error
        return self._read(deadline)

    def ready(self, seconds: float) -> None:
        """Wait for the first line, which a child writes when it has started."""
        self._read(time.monotonic() + seconds)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._wait_for(deadline, writing=False)
            if not (chunk := os.read(self._out, 1 << 16)):
                raise self._died()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _wait_for(self, deadline: float, writing: bool) -> None:
        waiter = select.poll()
        waiter.register(self._in if writing else self._out, select.POLLOUT if writing else select.POLLIN)
        if not waiter.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.kill()
            raise TimeoutError("no answer in time")

    def _died(self) -> ChildDied:
        self.kill()
        if self._errors.closed:
            return ChildDied("it was closed")
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return ChildDied(last[0] if last else f"it ended with status {self._process.returncode}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=0.5)  # an idle child ends by itself when its input closes
        except subprocess.TimeoutExpired:
            self.kill()
        self._errors.close()


class Worker(Protocol[Q_contra, A_co]):
    def ask(self, question: Q_contra) -> A_co: ...

    def close(self) -> None: ...


class WorkerPool(Generic[Question, Answer]):
    """Up to `size` workers, started when needed; a question seen before is not asked again.

    Workers are started and used on the pool's own threads only, which live until `close`: a child bound to
    die with its parent dies when the *thread* that started it ends.
    """

    def __init__(
        self,
        start: Callable[[], Worker[Question, Answer]],
        size: int,
        keep: Callable[[Answer], bool] = lambda answer: True,
    ) -> None:
        self.size = size
        self._start = start
        self._keep = keep
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="grader")
        self._idle: SimpleQueue[Worker[Question, Answer]] = SimpleQueue()
        self._answers: dict[Question, Future[Answer]] = {}
        self._lock = threading.Lock()

    def submit(self, question: Question) -> Future[Answer]:
        with self._lock:
            if (known := self._answers.get(question)) is not None:
                return known
            if len(self._answers) >= REMEMBERED:
                del self._answers[next(iter(self._answers))]
            future = self._threads.submit(self._ask, question)
            self._answers[question] = future
        future.add_done_callback(lambda done: self._forget_unless_kept(question, done))
        return future

    def _ask(self, question: Question) -> Answer:
        try:
            worker = self._idle.get_nowait()
        except Empty:  # no more threads than `size`, so no more workers either
            worker = self._start()
        try:
            return worker.ask(question)
        finally:
            self._idle.put(worker)

    def _forget_unless_kept(self, question: Question, done: Future[Answer]) -> None:
        if done.cancelled() or done.exception() is not None or not self._keep(done.result()):
            with self._lock:
                self._answers.pop(question, None)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(pending: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Results in order, while up to `ahead` later items are already being worked on."""
    waiting: deque[Callable[[], T]] = deque()
    for result in pending:
        waiting.append(result)
        if len(waiting) > ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()
