"""The judge's stand-ins for what stays in the program's process: an object for an object, a class for a class.

A stand-in has the methods its original has, and each of them is a question to the program's process. One rule
decides which values a question may carry:

    The tests hand a value to the program only where they write a call, a subscript, an attribute or a format.
    Whatever Python invokes by itself, an operator, a conversion, a `with` block, runs in the program with the
    program's own objects and here, on plain built-in contents, with anybody else's.

So between two of its own objects a program says what `==`, `<` or `+` means. Between one of them and a value of
the tests it would be asked "is this what you should have answered?", and `__eq__` need only say yes. There a
stand-in acts as its contents would (an `IntEnum` is an int) and otherwise knows no such operator: `==` is
False, `+` a TypeError. A `with` block tells the program which class of exception leaves it, without what the
tests put into it, and a failed assertion leaves it whatever the program answers.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Generator
from functools import cache
from inspect import iscoroutine
from types import FunctionType
from typing import Any

from .candidate import CHANGING, CONTENTS, OPERATORS, SPECIAL, describe
from .channel import Channel

_LONGEST_NAME = 200  # characters of a class name
_IMMUTABLE = tuple(kind for kind in CONTENTS if kind is not BaseException)


class Mirrors:
    """The stand-ins of one program: there is one for each original, so that `is` means what it should."""

    channel: Channel

    def __init__(self) -> None:
        self._classes: dict[int | str, StandInClass] = {}
        self._objects: dict[int, Any] = {}

    def stand_in(self, tag: dict[str, Any], contents: Any) -> Any:
        """The stand-in for a tag of the program's."""
        if "class" in tag:
            return self._class(tag["class"])
        number = tag["object"]
        if number not in self._objects:
            kind: Any = self._class(tag["of"])
            if issubclass(kind, BaseException):
                made = kind.__new__(kind, *_exactly(tuple, contents))
            elif (base := next((b for b in _IMMUTABLE if issubclass(kind, b)), None)) is not None:
                made = base.__new__(kind, _exactly(base, contents))
            else:
                made = kind.__new__(kind)
            object.__setattr__(made, "_origin", (self.channel, number))
            if kind.__name__ == "coroutine":
                return _coroutine(made)
            self._objects[number] = made
        return self._objects[number]

    def _class(self, number: int | str) -> StandInClass:
        if number == "function":
            return _functions()
        if number not in self._classes:
            about = self.channel.ask("describe", _Original(number))
            self._classes[number] = _make_class((self.channel, number), **about)
        return self._classes[number]


class _Original:
    """A class of the program's that has no stand-in yet."""

    def __init__(self, number: int | str) -> None:
        self._origin = (None, number)


def original(value: Any) -> dict[str, Any] | None:
    """The tag of what a stand-in stands for; None if it is none."""
    if iscoroutine(value) and value.cr_code is _coroutine.__code__ and value.cr_frame is not None:
        value = value.cr_frame.f_locals["stand_in"]
    if isinstance(value, (StandIn, StandInClass, _Original)):
        return {"object": value._origin[1]}
    return None


def _ask(stand_in: Any, operation: str, *arguments: Any) -> Any:
    channel: Channel = stand_in._origin[0]
    return channel.ask(operation, *arguments)


def _call(stand_in: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return _ask(stand_in, "call", stand_in, arguments, named)
    except StopIteration as error:
        # `all(map(check, cases))` would take it for the end of the cases.
        raise RuntimeError("the program raised StopIteration") from error


class StandInClass(type):
    _origin: tuple[Channel, int]

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return _call(cls, *arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        return _ask(cls, "getattr", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        _ask(cls, "setattr", cls, name, value)

    def __bool__(cls) -> bool:
        return True

    # For enumerations, and `Stack[int]`.
    def __iter__(cls) -> Any:
        return _ask(cls, "special", "__iter__", cls)

    def __len__(cls) -> Any:
        return _ask(cls, "special", "__len__", cls)

    def __getitem__(cls, key: Any) -> Any:
        return _ask(cls, "call", operator.getitem, (cls, key), {})


class StandIn:
    _origin: tuple[Channel, int]

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return _ask(self, "getattr", self, "__dict__")

    def __getattr__(self, name: str) -> Any:
        return _ask(self, "getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # an exception's traceback is ours
            object.__setattr__(self, name, value)
        else:
            _ask(self, "setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _ask(self, "delattr", self, name)

    def __copy__(self) -> Any:
        return _ask(self, "call", copy.copy, (self,), {})

    def __deepcopy__(self, memo: Any) -> Any:
        return _ask(self, "call", copy.deepcopy, (self,), {})


async def _coroutine(stand_in: Any) -> Any:
    return await stand_in


class _Doc:
    """A function's own documentation, and that of its class."""

    def __init__(self, doc: str | None) -> None:
        self._doc = doc

    def __get__(self, stand_in: Any, kind: type) -> Any:
        return self._doc if stand_in is None else _ask(stand_in, "getattr", stand_in, "__doc__")


def _make_class(
    origin: tuple[Channel, int | str] | None,
    name: str,
    module: str,
    doc: str | None,
    base: type,
    bases: list[type],
    can: list[str],
    hashable: bool,
) -> StandInClass:
    members: dict[str, Any] = {"__module__": module, "__doc__": _Doc(doc), "_origin": origin}
    for method in can:
        if method in SPECIAL or not method.startswith(
            "_"
        ):  # what Python itself calls at other times stays ours
            members[method] = _member(method, base)
    if not hashable:
        members["__hash__"] = None
    if base in CHANGING:
        members["__class__"] = property(lambda self: base)
    if not any(issubclass(one, StandIn) for one in bases):
        bases = [StandIn, *bases]
    if (base in _IMMUTABLE or issubclass(base, BaseException)) and not any(
        issubclass(b, base) for b in bases
    ):
        bases = [*bases, base]
    return StandInClass(name[:_LONGEST_NAME], tuple(bases), members)


@cache
def _functions() -> StandInClass:
    """The class of every program's functions."""
    return _make_class(None, **describe(FunctionType))


def _member(name: str, base: type) -> Any:
    if name not in SPECIAL:
        return property(lambda self: _ask(self, "getattr", self, name))
    if name == "__call__":
        return _call
    if name == "__await__":
        return _await
    if name == "__exit__":
        return _exit
    if name == "__aexit__":
        return _aexit
    if name in OPERATORS:
        return _operator(name, base)
    return lambda self, *arguments: _ask(self, "special", name, self, *arguments)


def _await(self: Any) -> Generator[None, None, Any]:
    return _ask(self, "await", self)
    yield


def _leaving(error: BaseException | None) -> tuple[Any, Any, None]:
    """Return the arguments of `__exit__`: of an exception of the tests, its built-in class and no more."""
    if error is None:
        return None, None, None
    if original(error) is not None:
        return type(error), error, None
    kind = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
    return kind, kind.__new__(kind), None  # type: ignore[call-overload]


def _exit(self: Any, kind: Any, error: BaseException | None, traceback: Any) -> bool:
    handled = bool(_ask(self, "special", "__exit__", self, *_leaving(error)))
    return handled and not isinstance(error, AssertionError)


async def _aexit(self: Any, kind: Any, error: BaseException | None, traceback: Any) -> bool:
    handled = bool(await _ask(self, "special", "__aexit__", self, *_leaving(error)))
    return handled and not isinstance(error, AssertionError)


def _operator(name: str, base: type) -> Callable[..., Any]:
    # Looked up on the built-in type, never on a value: a value's own attributes are the program's to choose.
    method = getattr(base, name, None)

    def apply(self: Any, *operands: Any) -> Any:
        if all(isinstance(operand, (StandIn, StandInClass)) for operand in operands):
            return _ask(self, "special", name, self, *operands)
        if base in CHANGING and method is not None:
            return method(_exactly(base, _ask(self, "plain", self)), *operands)
        if base in _IMMUTABLE and method is not None:
            return method(self, *operands)
        if name == "__contains__":
            return any(item is operands[0] or item == operands[0] for item in self)
        if name == "__round__":
            raise TypeError(f"{type(self).__name__} cannot be rounded to a number of digits")
        return NotImplemented

    return apply


def _exactly(kind: type, contents: Any) -> Any:
    """Return `contents` if they are of exactly this built-in type, whose methods then are Python's own."""
    if type(contents) is not kind:
        raise TypeError(f"the contents of an object derived from {kind.__name__} are not a {kind.__name__}")
    return contents
