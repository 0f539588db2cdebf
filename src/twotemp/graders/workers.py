"""Graders whose verdicts come from child processes, and the parent's side of such a child.

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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from twotemp import processes
from twotemp.graders.base import Grader
from twotemp.records import Grade, Outcome, Problem

QuestionT = TypeVar("QuestionT", bound=Hashable)

REMEMBERED = 200_000  # verdicts that a grader keeps; the oldest are dropped first

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


class GraderWorker(ABC, Generic[QuestionT]):
    """Asks one question at a time of a child process, which it starts when needed and replaces when it died."""

    child_name: str  # for messages
    control: QuestionT  # every healthy child answers "passed"

    def __init__(self) -> None:
        self._child: Child | None = None

    @abstractmethod
    def _ask(self, question: QuestionT) -> Verdict:
        """Return the child's verdict; start one if there is none."""

    def ask(self, question: QuestionT) -> Verdict:
        """Return the verdict; `ungraded` only if a child fails for the control as well."""
        why = ""
        for _ in range(2):  # a dead child may be the machine's fault
            try:
                return self._ask(question)
            except (ChildDied, TimeoutError) as error:
                self.close()
                why = str(error)
        # Either the question kills children or they die anyway: a fresh one and the control decide.
        try:
            self.start()
        except (ChildDied, TimeoutError, OSError):
            self.close()
            return Verdict("ungraded", f"{self.child_name} died twice: {why}")
        return Verdict("failed", f"it ended {self.child_name} twice: {why}")

    def start(self) -> None:
        """Start now rather than at the first question; raise ChildDied or TimeoutError if that fails."""
        if (verdict := self._ask(self.control)).outcome != "passed":
            raise ChildDied(f"its self-test failed: {verdict.detail}")

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None


class PooledGrader(Grader, Generic[QuestionT]):
    """A grader with a pool of workers. A question that was answered before is not asked again.

    Workers are started and used on the grader's own threads only, which live until `close`: a child that dies
    with its parent dies when the *thread* that started it ends.

    Args:
        start: Starts a worker.
        size: The largest number of workers; None: one for each usable core.
    """

    def __init__(self, start: Callable[[], GraderWorker[QuestionT]], size: int | None) -> None:
        self._size = size or usable_cpus()
        self._start = start
        self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="grader")
        self._idle: SimpleQueue[GraderWorker[QuestionT]] = SimpleQueue()
        self._verdicts: dict[QuestionT, Future[Verdict]] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def _start_grading(self, problem: Problem, text: str) -> Callable[[], Grade]:
        """Begin to grade a text; return a function that waits for the grade."""

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        """Yield the grades in order, while a few later ones are being computed."""
        waiting: deque[Callable[[], Grade]] = deque()
        for problem, text in items:
            waiting.append(self._start_grading(problem, text))
            if len(waiting) > 4 * (self._size - 1):
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    def _submit(self, question: QuestionT) -> Future[Verdict]:
        """Return the future verdict on a question."""
        with self._lock:
            if (known := self._verdicts.get(question)) is not None:
                return known
            if len(self._verdicts) >= REMEMBERED:
                del self._verdicts[next(iter(self._verdicts))]
            future = self._threads.submit(self._ask, question)
            self._verdicts[question] = future
        future.add_done_callback(lambda done: self._forget_unless_graded(question, done))
        return future

    def _ask(self, question: QuestionT) -> Verdict:
        try:
            worker = self._idle.get_nowait()
        except Empty:  # there are `_size` threads, so there are never more workers than that
            worker = self._start()
        try:
            return worker.ask(question)
        finally:
            self._idle.put(worker)

    def _forget_unless_graded(self, question: QuestionT, done: Future[Verdict]) -> None:
        if done.cancelled() or done.exception() is not None or done.result().outcome == "ungraded":
            with self._lock:
                self._verdicts.pop(question, None)

    def close(self) -> None:
        """Wait for the questions being answered, drop the others, and end all workers."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()


def usable_cpus() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
