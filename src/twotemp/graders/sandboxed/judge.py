"""The process that runs the tests. No line of the program runs here: the judge asks for values and compares.

"passed" is a positive fact: this process says it at one place, after the last statement of the tests has
returned and while the channel to the program is whole, on a socket that only it and the server hold.
Whatever else happens is a failure of the program.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import random
import sys
import traceback
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

from .channel import Channel
from .mirrors import Mirrors, StandIn, StandInClass, original
from .values import decode, encode

_LONGEST_TEXT = 200  # characters of each part of a reason
_BY_NAME = (type, FunctionType, BuiltinFunctionType, MethodDescriptorType)


class Program(Channel):
    """The judge's end of the channel to the program."""

    def __init__(self, requests: int, replies: int) -> None:
        self._mirrors = Mirrors()
        self._mirrors.channel = self
        self._lent: dict[int, Any] = {}  # objects of the tests' that the program may call or iterate
        super().__init__(
            replies,
            requests,
            lambda value: encode(value, self._export),
            lambda data: decode(data, self._resolve),
            {
                "__call__": _call_test,
                "__iter__": lambda value, arguments, named: iter(value),
                "__next__": lambda value, arguments, named: next(value),
            },
        )

    def _export(self, value: Any) -> Any:
        if (tag := original(value)) is not None:
            return tag
        if (path := _path(value)) is not None:
            return {"global": path}
        if isinstance(value, BaseException):
            kind = next(base for base in type(value).__mro__ if base.__module__ == "builtins")
            return self._encode(kind(*value.args))
        number = id(value)
        self._lent[number] = value
        can = [name for name in ("__call__", "__iter__", "__next__") if hasattr(type(value), name)]
        return {"test": number, "can": can, "name": getattr(value, "__name__", None)}

    def _resolve(self, tag: dict[str, Any]) -> Any:
        if "test" in tag:
            return self._lent[tag["test"]]
        return self._mirrors.stand_in(tag, self._decode(tag.get("plain")))


def _call_test(function: Any, arguments: Any, named: Any) -> Any:
    try:
        return function(*arguments, **named)
    except AssertionError:
        raise AssertionError from None  # its message may name the value that was expected


def _path(value: Any) -> tuple[str, str] | None:
    """Where the program's process finds a function or class of the standard library; None for any other."""
    module = getattr(value, "__module__", None) or "builtins"
    if not isinstance(value, _BY_NAME) or module == "tests":
        return None
    try:
        found = operator.attrgetter(value.__qualname__)(sys.modules[module])
    except (AttributeError, KeyError):
        return None
    return (module, value.__qualname__) if found == value else None


class _Names(dict[str, Any]):
    """The tests' global names: their own, then Python's, then the program's (`names` before Python's)."""

    def __init__(self, program: Program, names: list[str]) -> None:
        super().__init__({"__name__": "tests"})
        self._program = program
        self._names = names
        self.functions: dict[str, Any] = {}  # of the program's, known from the start

    def __missing__(self, name: str) -> Any:
        if name.startswith("__") or (hasattr(builtins, name) and name not in self._names):
            raise KeyError(name)
        value = self.functions[name] if name in self.functions else self._program.ask("name", name)
        if name in sys.stdlib_module_names and name not in self._names:
            # What the program imported the tests have too, but as it is: not the program's idea of `math`.
            if type(value).__name__ != "module":
                raise NameError(f"name {name!r} is not defined: tests import what they use")
            return importlib.import_module(name)
        if isinstance(value, (StandIn, StandInClass)):
            self[name] = value
        return value


class _Module:
    """Stands in `sys.modules` for the tests: a real module cannot have names of our kind."""


def judge(program: Program, prelude: str, names: list[str], tests: str) -> dict[str, str]:
    """Run the tests with the program's names in place; return the verdict, with the reason for people."""
    random.seed(0)  # some tests draw their inputs
    namespace = _Names(program, names)
    module = _Module()
    module.__dict__ = namespace
    sys.modules["tests"] = module  # type: ignore[assignment]
    try:
        functions = program.wait()
        if type(functions) is not dict:
            raise TypeError("the program's functions are not a dict")
        namespace.functions = functions
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), namespace)
        for name in names:
            namespace.pop(name, None)
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), namespace)
    except BaseException as error:
        return {"outcome": "failed", "detail": program.broken or _reason(error, tests)}
    if program.broken is not None:  # and the tests swallowed what that raised
        return {"outcome": "failed", "detail": program.broken}
    return {"outcome": "passed", "detail": ""}


def _reason(error: BaseException, tests: str) -> str:
    """Return what went wrong, for people. The class, its name and its text may all be the program's."""
    parts = [type(error).__name__[:_LONGEST_TEXT] or "an exception without a name"]
    try:
        parts += [": ", str(error)[:_LONGEST_TEXT]] if str(error) else []
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<tests>"]
        if lines and lines[-1]:
            parts += [" in `", tests.splitlines()[lines[-1] - 1].strip()[:_LONGEST_TEXT], "`"]
    except BaseException:
        parts += [" (whose text cannot be read)"]
    return "".join(parts)
