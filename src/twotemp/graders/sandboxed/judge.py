"""The process that runs the tests. No line of the program runs here: the judge asks for values and compares.

So there is nothing to forge. A program can neither see the tests, nor patch what they use, nor report for
them; "passed" is written by this process alone, after the last test, to a pipe that only it holds.
"""

from __future__ import annotations

import builtins
import random
import traceback
from collections.abc import Iterator
from typing import Any

from .values import ChannelClosed, decode, encode, receive, send


class ProgramError(Exception):
    """The program raised something that is no built-in exception, or ended."""


class Program:
    """The judge's end of the channel to the program."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests = requests
        self._replies = replies

    def loaded(self) -> None:
        """Wait for the program's own top-level code to finish; raises what it raised."""
        self._reply()

    def ask(self, operation: str, *arguments: Any) -> Any:
        send(self._requests, [operation, *(encode(argument, _reference) for argument in arguments)])
        return self._reply()

    def _reply(self) -> Any:
        reply = receive(self._replies)
        if "value" in reply:
            return decode(reply["value"], lambda tag: Remote(self, tag))
        kind = getattr(builtins, reply["raised"], None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                raised: Exception = kind(reply["text"])
            except TypeError:  # UnicodeDecodeError and its like want more than a text
                raised = ProgramError(f"{reply['raised']}: {reply['text']}")
            raise raised
        raise ProgramError(f"{reply['raised']}: {reply['text']}")


class Remote:
    """An object of the program's. Comparing it is comparing identity: its own `__eq__` is not asked."""

    def __init__(self, program: Program, tag: dict[str, Any]) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_tag", tag)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._program.ask("call", self, arguments, named)

    def __getattr__(self, name: str) -> Any:
        return self._program.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask("setattr", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._program.ask("list", self))


def _reference(value: Any) -> Any:
    if isinstance(value, Remote):
        return value._tag
    raise TypeError(f"a test cannot pass a {type(value).__name__} to a program")


def judge(program: Program, prelude: str, names: list[str], tests: str) -> dict[str, str]:
    """Run the tests with the program's `names` in place. The verdict, with the reason for people."""
    random.seed(0)  # some tests draw their inputs
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        program.loaded()
        exec(compile(prelude, "<prelude>", "exec"), namespace)
        namespace.update((name, Remote(program, {"name": name})) for name in names)
        exec(compile(tests, "<tests>", "exec"), namespace)
    except ChannelClosed as error:
        return {"outcome": "failed", "detail": f"the program ended early, or broke its channel ({error})"}
    except Exception as error:
        return {"outcome": "failed", "detail": _reason(error, tests)}
    return {"outcome": "passed", "detail": ""}


def _reason(error: Exception, tests: str) -> str:
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<tests>"
    ]
    where = f" in `{tests.splitlines()[lines[-1] - 1].strip()[:200]}`" if lines and lines[-1] else ""
    return f"{type(error).__name__}{': ' if str(error) else ''}{str(error)[:200]}{where}"
