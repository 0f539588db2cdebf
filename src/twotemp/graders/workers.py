"""Child processes that answer questions, and a pool of them that answers each distinct question once.

What a model wrote may hang, crash or exhaust the process that examines it, so child processes do that, and the
parent measures their time and kills them. A *worker* is the parent's side of such a child.
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

QuestionT = TypeVar("QuestionT", bound=Hashable)
AnswerT = TypeVar("AnswerT")
QuestionT_contra = TypeVar("QuestionT_contra", contravariant=True)
AnswerT_co = TypeVar("AnswerT_co", covariant=True)
T = TypeVar("T")

REMEMBERED = 200_000  # answers that a pool keeps; the oldest are dropped first

_PIPE_PART = select.PIPE_BUF  # a write no longer than this does not block on a pipe that polls as writable


@dataclass(frozen=True)
class Verdict:
    """A worker's verdict on an answer; `ungraded` if the worker itself failed."""

    outcome: Outcome
    detail: str = ""


class ChildDied(Exception):
    """The child ended, or was killed, before it answered."""


class Child:
    """A process that answers each question with one line of JSON, after a first line that says that it started.

    Args:
        command: The program and its arguments.
        environment: All of its environment variables.
        memory: Limit of its address space in bytes.
    """

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
        """Return the child's answer; raise ChildDied, or TimeoutError after killing the child."""
        deadline = time.monotonic() + seconds
        while question:
            self._wait_for(deadline, writing=True)
            try:
                question = question[os.write(self._in, question[:_PIPE_PART]) :]
            except OSError as error:
                raise self._died() from error
        return self._read(deadline)

    def ready(self, seconds: float) -> None:
        """Wait for the first line, which a child writes once it has started."""
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
            return ChildDied("it had been closed")
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return ChildDied(last[0] if last else f"it ended with status {self._process.returncode}")

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, which has half a second to end by itself."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=0.5)  # an idle child ends by itself when its input closes
        except subprocess.TimeoutExpired:
            self.kill()
        self._errors.close()


class GraderWorker(Protocol[QuestionT_contra, AnswerT_co]):
    """Answers one question at a time, in a child process."""

    def ask(self, question: QuestionT_contra) -> AnswerT_co: ...

    def close(self) -> None: ...


class GraderPool(Generic[QuestionT, AnswerT]):
    """Workers that are started when needed; a question that was answered before is not asked again.

    Workers are started and used on the pool's own threads only, which live until `close`: a child that dies
    with its parent dies when the *thread* that started it ends.

    Args:
        start: Starts a worker.
        size: The largest number of workers.
        keep: Whether an answer may be reused for the same question.
    """

    def __init__(
        self,
        start: Callable[[], GraderWorker[QuestionT, AnswerT]],
        size: int,
        keep: Callable[[AnswerT], bool] = lambda answer: True,
    ) -> None:
        self.size = size
        self._start = start
        self._keep = keep
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="grader")
        self._idle: SimpleQueue[GraderWorker[QuestionT, AnswerT]] = SimpleQueue()
        self._answers: dict[QuestionT, Future[AnswerT]] = {}
        self._lock = threading.Lock()

    def submit(self, question: QuestionT) -> Future[AnswerT]:
        """Return the future answer to a question."""
        with self._lock:
            if (known := self._answers.get(question)) is not None:
                return known
            if len(self._answers) >= REMEMBERED:
                del self._answers[next(iter(self._answers))]
            future = self._threads.submit(self._ask, question)
            self._answers[question] = future
        future.add_done_callback(lambda done: self._forget_unless_kept(question, done))
        return future

    def _ask(self, question: QuestionT) -> AnswerT:
        try:
            worker = self._idle.get_nowait()
        except Empty:  # there are `size` threads, so there are never more than `size` workers
            worker = self._start()
        try:
            return worker.ask(question)
        finally:
            self._idle.put(worker)

    def _forget_unless_kept(self, question: QuestionT, done: Future[AnswerT]) -> None:
        if done.cancelled() or done.exception() is not None or not self._keep(done.result()):
            with self._lock:
                self._answers.pop(question, None)

    def close(self) -> None:
        """Wait for the questions being answered, drop the others, and end all workers."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return


def usable_cpus() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(pending: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Yield results in order, while up to `ahead` later ones are being computed."""
    waiting: deque[Callable[[], T]] = deque()
    for result in pending:
        waiting.append(result)
        if len(waiting) > ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()
