"""A channel between two processes that question each other over a pair of pipes, in JSON frames.

    ask    [operation, arguments...]     answered by exactly one of
    value  the result
    raised the exception

While one side waits for an answer it answers the questions of the other side, so calls nest in both directions:
a test calls the program, which calls a function of the tests, which calls the program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LARGEST_FRAME = 64 << 20  # bytes
# Python calls while a value is converted, so that a value nested as deeply as Python allows can cross.
_CONVERSION_DEPTH = 20_000


class ChannelClosed(BaseException):
    """The other process ended or wrote an invalid frame. A test's `except Exception` must not catch it."""


class Channel:
    """One end of a channel.

    Args:
        reading: File descriptor of the pipe to read frames from.
        writing: File descriptor of the pipe to write frames to.
        encode: Turns a value into JSON.
        decode: Turns JSON back into a value.
        operations: The operations that the other side may ask for, by name.
    """

    def __init__(
        self,
        reading: int,
        writing: int,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        operations: dict[str, Callable[..., Any]],
    ) -> None:
        self.broken: str | None = None  # the reason, once the channel is broken
        self._reading = reading
        self._writing = writing
        self._encode = encode
        self._decode = decode
        self._operations = operations

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Send a question and return its answer, or raise the exception that answers it."""
        with _deep_recursion():
            content = [operation, *map(self._encode, arguments)]
        self._send("ask", content)
        return self.wait()

    def wait(self) -> Any:
        """Return the answer to the last question; answer the other side's questions until it arrives."""
        while True:
            kind, content = self._receive()
            if kind == "ask":
                self._answer(content)
                continue
            with _deep_recursion():
                value = self._decode(content)
            if kind == "value":
                return value
            raise (
                value
                if isinstance(value, BaseException)
                else TypeError("raised a value that is no exception")
            )

    def serve(self) -> None:
        """Answer questions until the other side ends."""
        while True:
            self._answer(self._receive()[1])

    def answer(self, action: Callable[[], Any]) -> None:
        """Send what an action returns or raises."""
        # BaseException: a program that calls sys.exit() has raised an exception like any other.
        try:
            value = action()
            with _deep_recursion():
                kind, content = "value", self._encode(value)
        except ChannelClosed:
            raise
        except BaseException as error:
            kind, content = "raised", self._encode(error)
        self._send(kind, content)

    def _answer(self, question: Any) -> None:
        operation, *arguments = question

        def act() -> Any:
            with _deep_recursion():
                values = [self._decode(argument) for argument in arguments]
            return self._operations[operation](*values)

        self.answer(act)

    def _send(self, kind: str, content: Any) -> None:
        with _deep_recursion():
            data = json.dumps([kind, content]).encode()
        data = len(data).to_bytes(8, "little") + data
        try:
            while data:
                data = data[os.write(self._writing, data) :]
        except OSError as error:
            raise self._break("the other side ended") from error

    def _receive(self) -> tuple[str, Any]:
        try:
            size = int.from_bytes(read_exactly(self._reading, 8), "little")
            if size > LARGEST_FRAME:
                raise self._break("a result is too large")
            data = read_exactly(self._reading, size)
            with _deep_recursion():
                kind, content = json.loads(data)
        except (EOFError, OSError) as error:
            raise self._break("the other side ended") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise self._break("an invalid frame") from error
        return kind, content

    def close(self) -> None:
        """Close both pipes, so that nothing left of this conversation can speak in the next one."""
        os.close(self._reading)
        os.close(self._writing)
        self._reading = self._writing = -1

    def _break(self, why: str) -> ChannelClosed:
        self.broken = f"the program ended early or broke its channel ({why})"
        return ChannelClosed(why)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _CONVERSION_DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def read_exactly(descriptor: int, size: int) -> bytes:
    """Return the next `size` bytes of a pipe or socket; raise EOFError if it ends before."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
