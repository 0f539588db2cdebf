"""The process that runs the program a model wrote, and then does with it what the judge asks.

That program may read, replace or break everything here. It does not matter: this process holds no test and no
expected value, and its only channel leads to the judge, to whom it can only give values.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections import deque
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from .channel import Channel
from .values import SHARED, decode, encode, shared_name

# What an object may be asked to do through Python's own syntax and functions; the judge uses the same list.
_COMPARING = "eq ne lt le gt ge contains round"  # `round` may have an operand, the number of digits
_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_NUMERIC = "int float complex index trunc floor ceil abs neg pos invert"
_OTHERS = (
    "bool len length_hint getitem setitem delitem missing iter next reversed call enter exit await aiter anext "
    "aenter aexit str repr format bytes hash"
)
OPERATORS = {f"__{name}__" for name in _COMPARING.split()} | {
    f"__{side}{name}__" for side in ("", "r", "i") for name in _ARITHMETIC.split()
}
NUMERIC = {f"__{name}__" for name in _NUMERIC.split()}
SPECIAL = OPERATORS | NUMERIC | {f"__{name}__" for name in _OTHERS.split()}

# How to get the contents of an object derived from a built-in type without running a method of the program.
CONTENTS: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    tuple: lambda value: tuple(tuple.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    BaseException: lambda value: tuple(value.args),
}
CHANGING: dict[type, Callable[[Any], Any]] = {
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    bytearray: lambda value: bytearray(bytearray.__iter__(value)),
    deque: lambda value: deque(deque.__iter__(value), value.maxlen),
}


def serve(code: str, requests: int, replies: int) -> None:
    """Run the program, then answer the judge until killed.

    Args:
        code: The source of the program.
        requests: File descriptor from which the judge's questions are read.
        replies: File descriptor to which answers are written.
    """
    # Not "__main__", because only the definitions are wanted. dataclasses and pickle look for a real module.
    module = sys.modules["program"] = ModuleType("program")
    if "asyncio" in code:
        _without_sockets()
    objects = _Objects()
    channel = Channel(
        requests,
        replies,
        lambda value: encode(value, objects.export),
        lambda data: decode(data, objects.resolve),
        _OPERATIONS | {"name": lambda name: _name(module, name)},
    )
    objects.channel = channel
    channel.answer(lambda: _load(code, vars(module)))
    channel.serve()


def _load(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the program and return its functions, so that the judge need not ask for them one by one."""
    exec(compile(code, "<program>", "exec", dont_inherit=True), names)
    return {name: value for name, value in names.items() if type(value) is FunctionType}


class _Objects:
    """The references between this process and the judge, in both directions."""

    channel: Channel

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id, which stays taken while the object is kept
        self._tests: dict[int, Any] = {}

    def export(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _TestObject):
            return {"test": value._number}
        if isinstance(value, type):
            return {"class": self._keep(value)}
        if type(value) is FunctionType:  # the most frequent reference, which the judge need not ask about
            return {"object": self._keep(value), "of": "function"}
        tag = {"object": self._keep(value), "of": self._keep(type(value))}
        for base, contents in CONTENTS.items():
            if issubclass(type(value), base):
                return tag | {"plain": encode(contents(value), self.export)}
        return tag

    def resolve(self, tag: dict[str, Any]) -> Any:
        if "object" in tag:
            return self._kept[tag["object"]]
        if "global" in tag:
            module, name = tag["global"]
            return operator.attrgetter(name)(importlib.import_module(module))
        number = tag["test"]
        if number not in self._tests:
            self._tests[number] = _test_object_class(tuple(tag["can"]))(self.channel, number, tag["name"])
        return self._tests[number]

    def _keep(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        return number


def describe(kind: type) -> dict[str, Any]:
    """Return what the judge needs to know to make the stand-in for a class; shared classes by name."""
    known = {*CONTENTS, *CHANGING, *(shared for shared in SHARED if issubclass(shared, BaseException))}
    base = next((b for b in kind.__mro__ if b in known), object)
    # The stand-in of a mutable object asks for everything, so that it never shows an earlier state.
    inherited = object if base in CHANGING else base
    names = SPECIAL | {name for name in dir(inherited) if not name.startswith("__")}
    return {
        "name": kind.__name__,
        "module": str(kind.__module__),
        "doc": kind.__doc__ if isinstance(kind.__doc__, str) else None,
        "base": shared_name(base),
        "bases": [
            shared_name(b) or b
            for b in kind.__bases__
            if kind is not base and (b.__module__ == "program" or issubclass(b, BaseException))
        ],
        "can": [name for name in names if getattr(kind, name, None) is not getattr(inherited, name, None)],
        "hashable": kind.__hash__ is not None,
    }


def _plain(value: Any) -> Any:
    kind = type(value)
    return next((contents(value) for base, contents in CHANGING.items() if issubclass(kind, base)), value)


def _special(name: str, value: Any, *arguments: Any) -> Any:
    return getattr(type(value), name)(value, *arguments)


def _name(module: ModuleType, name: str) -> Any:
    try:
        return vars(module)[name]
    except KeyError:
        raise NameError(f"name {name!r} is not defined") from None


def _await(value: Any) -> Any:
    _without_sockets()
    import asyncio

    async def result() -> Any:
        return await value

    return asyncio.run(result())


def _without_sockets() -> None:
    """Make event loops work without the socket through which other threads wake them: there are no threads."""
    import selectors
    from asyncio import selector_events

    loop: Any = selector_events.BaseSelectorEventLoop
    loop._make_self_pipe = loop._close_self_pipe = loop._write_to_self = lambda self: None
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc, assignment]


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, arguments, named: function(*arguments, **named),
    "special": _special,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "describe": describe,
    "plain": _plain,
    "await": _await,
}


class _TestObject:
    """A function, iterator or other object of the tests. It can be called or iterated, and nothing else."""

    def __init__(self, channel: Channel, number: int, name: str | None) -> None:
        self._channel = channel
        self._number = number
        if name is not None:
            self.__name__ = self.__qualname__ = name


@cache
def _test_object_class(can: tuple[str, ...]) -> type[_TestObject]:
    def method(name: str) -> Callable[..., Any]:
        return lambda self, *arguments, **named: self._channel.ask(name, self, arguments, named)

    return type(
        "function" if "__call__" in can else "object", (_TestObject,), {name: method(name) for name in can}
    )
