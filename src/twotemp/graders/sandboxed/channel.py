"""Two processes that ask each other for things over a pair of pipes, as JSON frames.

    ask    [operation, arguments...]     answered by exactly one of
    value  the result
    raised the exception

While one side waits for its answer it answers the other's questions, so calls may nest in both directions:
a test calls the program, which calls a function of the test's, which calls the program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LARGEST_FRAME = 64 << 20  # bytes
_DEEP = 20_000  # Python calls while a value is converted, so that one nested as deep as Python allows crosses


class ChannelClosed(BaseException):
    """The other process ended, or wrote something that is no frame. Not for a test's `except Exception`."""


class Channel:
    """One end. `encode` and `decode` turn values into JSON and back; `operations` are what may be asked of us."""

    def __init__(
        self,
        reading: int,
        writing: int,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        operations: dict[str, Callable[..., Any]],
    ) -> None:
        self.broken: str | None = None  # why, once it is
        self._reading = reading
        self._writing = writing
        self._encode = encode
        self._decode = decode
        self._operations = operations

    def ask(self, operation: str, *arguments: Any) -> Any:
        with _deep():
            content = [operation, *map(self._encode, arguments)]
        self._send("ask", content)
        return self.wait()

    def wait(self) -> Any:
        """The answer to what was asked last; answers the other side meanwhile."""
        while True:
            kind, content = self._receive()
            if kind == "ask":
                self._answer(content)
                continue
            with _deep():
                value = self._decode(content)
            if kind == "value":
                return value
            raise value if isinstance(value, BaseException) else TypeError("an exception that is none")

    def serve(self) -> None:
        """Answer until the other side ends."""
        while True:
            self._answer(self._receive()[1])

    def answer(self, action: Callable[[], Any]) -> None:
        # BaseException: SystemExit is a program that ended instead of returning, and that is all it is.
        try:
            value = action()
            with _deep():
                kind, content = "value", self._encode(value)
        except ChannelClosed:
            raise
        except BaseException as error:
            kind, content = "raised", self._encode(error)
        self._send(kind, content)

    def _answer(self, question: Any) -> None:
        operation, *arguments = question

        def act() -> Any:
            with _deep():
                values = [self._decode(argument) for argument in arguments]
            return self._operations[operation](*values)

        self.answer(act)

    def _send(self, kind: str, content: Any) -> None:
        with _deep():
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
            with _deep():
                kind, content = json.loads(data)
        except (EOFError, OSError) as error:
            raise self._break("the other side ended") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise self._break("not a frame") from error
        return kind, content

    def close(self) -> None:
        """For good: whatever is left of this conversation must not speak in the next one."""
        os.close(self._reading)
        os.close(self._writing)
        self._reading = self._writing = -1

    def _break(self, why: str) -> ChannelClosed:
        self.broken = f"the program ended early, or broke its channel ({why})"
        return ChannelClosed(why)


@contextmanager
def _deep() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
