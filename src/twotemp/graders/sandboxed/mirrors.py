"""The judge's stand-ins for what stays in the program's process: an object for an object, a class for a class.

A stand-in has the methods of its original, and each of them is a question to the program's process. One rule
decides which values a question may carry:

    The tests hand a value to the program only where they write a call, a subscript, an attribute or a format.
    Everything that Python invokes by itself (an operator, a conversion, a `with` block) runs in the program for
    the program's own objects, and here, on plain built-in contents, for all other operands.

So between two of its own objects a program decides what `==`, `<` or `+` means. Between one of them and a value of
the tests it would be asked "is this what you should have answered?", and `__eq__` need only say yes. There a
stand-in acts as its contents would (an `IntEnum` is an int) and otherwise has no such operator: `==` is False, `+` a
TypeError. A `with` block tells the program the class of the exception that leaves it, without what the tests put
into it, and drops no exception if it contains an assertion.

A second rule keeps an answer from contradicting itself: an object that converts to a number (`float(x)`, `abs(x)`)
converts to the same number every time, and one derived from a list (or another built-in type that can change) has the
same contents until the tests ask the program something else: in `[1] <= x <= [1]` it is not first small, then large.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Generator
from functools import cache
from inspect import iscoroutine
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .candidate import CHANGING, CONTENTS, NUMERIC, OPERATORS, SPECIAL, describe
from .values import EXCEPTIONS, SHARED_BY_NAME, shared_exception

if TYPE_CHECKING:
    from .judge import ProgramChannel

_LONGEST_NAME = 200  # characters of a class name
_IMMUTABLE = tuple(kind for kind in CONTENTS if kind is not BaseException)
_BASES = {object, *CONTENTS, *CHANGING, *EXCEPTIONS}
_DESCRIPTION: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "module": (str,),
    "doc": (str, type(None)),
    "base": (str,),
    "bases": (list,),
    "can": (list,),
    "hashable": (bool,),
}


class Mirrors:
    """The stand-ins of one program. There is one for each original, so that `is` means what it should."""

    channel: ProgramChannel

    def __init__(self) -> None:
        self._classes: dict[int | str, StandInClass] = {}
        self._objects: dict[int, Any] = {}

    def stand_in(self, tag: dict[str, Any], contents: Any) -> Any:
        """Return the stand-in for a reference made by the program."""
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
            object.__setattr__(made, "_conversions", {})
            object.__setattr__(made, "_contents", (-1, None))
            if kind.__name__ == "coroutine":
                return _coroutine(made)
            self._objects[number] = made
        return self._objects[number]

    def _class(self, number: int | str) -> StandInClass:
        if number == "function":
            return _functions()
        if number not in self._classes:
            description = _checked(self.channel.ask("describe", _Original(number)))
            self._classes[number] = _make_class((self.channel, number), **description)
        return self._classes[number]


class _Original:
    """A class of the program that has no stand-in yet."""

    def __init__(self, number: int | str) -> None:
        self._origin = (None, number)


def original(value: Any) -> dict[str, Any] | None:
    """Return the reference to what a stand-in stands for; None if the value is no stand-in."""
    if iscoroutine(value) and value.cr_code is _coroutine.__code__ and value.cr_frame is not None:
        value = value.cr_frame.f_locals["stand_in"]
    if isinstance(value, (StandIn, StandInClass, _Original)):
        return {"object": value._origin[1]}
    return None


def _ask(stand_in: Any, operation: str, *arguments: Any, ends: tuple[type[BaseException], ...] = ()) -> Any:
    channel: ProgramChannel = stand_in._origin[0]
    return channel.ask(operation, *arguments, ends=ends)


def _call(stand_in: Any, *arguments: Any, **named: Any) -> Any:
    return _ask(stand_in, "call", stand_in, arguments, named)


def _attribute(stand_in: Any, name: str) -> Any:
    return _ask(stand_in, "getattr", stand_in, name)


class StandInClass(type):
    """The class of the stand-ins for classes."""

    _origin: tuple[ProgramChannel, int]

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return _call(cls, *arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        return _attribute(cls, name)

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
    """The base of the stand-ins for objects."""

    _origin: tuple[ProgramChannel, int]
    _conversions: dict[str, Any]
    _contents: tuple[int, Any]  # and after how many other questions they were asked for

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return _ask(self, "getattr", self, "__dict__")

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # the traceback of an exception is the judge's
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
    """The documentation of a function, and of its class."""

    def __init__(self, doc: str | None) -> None:
        self._doc = doc

    def __get__(self, stand_in: Any, kind: type) -> Any:
        return self._doc if stand_in is None else _ask(stand_in, "getattr", stand_in, "__doc__")


def _checked(description: Any) -> dict[str, Any]:
    """Return the description of a class, with the classes it names, if it has the form that `describe` gives it.

    The program wrote it. A class of the tests or of the library among the bases would run its own methods on the
    program's answers.
    """
    if type(description) is not dict or description.keys() != _DESCRIPTION.keys():
        raise TypeError("the description of a class has the wrong fields")
    for name, kinds in _DESCRIPTION.items():
        if type(description[name]) not in kinds:
            raise TypeError(f"the {name} in the description of a class is of the wrong type")
    base = SHARED_BY_NAME.get(description["base"])
    if base not in _BASES or any(type(name) is not str for name in description["can"]):
        raise TypeError("the description of a class names something that is not offered")
    bases = [SHARED_BY_NAME.get(b) if type(b) is str else b for b in description["bases"]]
    if any(type(b) is not StandInClass and (type(b) is not type or b not in EXCEPTIONS) for b in bases):
        raise TypeError("a base in the description of a class is not a class of the program")
    return {**description, "base": base, "bases": bases}


def _make_class(
    origin: tuple[ProgramChannel, int | str] | None,
    name: str,
    module: str,
    doc: str | None,
    base: type,
    bases: list[type],
    can: list[str],
    hashable: bool,
) -> StandInClass:
    """Make the stand-in for a class.

    Args:
        origin: The channel to the program and the number of the class there.
        name: Its `__name__`; likewise `module` and `doc`.
        base: The built-in type whose contents its objects have; `object` if none.
        bases: Its direct bases among the program's classes and the shared exceptions.
        can: The methods and attributes that it defines or overrides.
        hashable: Whether its objects are.

    Returns:
        The class.
    """
    members: dict[str, Any] = {"__module__": module, "__doc__": _Doc(doc), "_origin": origin}
    for method in can:
        # Other underscored names are called by Python at times that no test chose.
        if method in SPECIAL or not method.startswith("_"):
            members[method] = _member(method, base)
    if not hashable:
        members["__hash__"] = None
    if base in CHANGING:
        members["__class__"] = property(lambda self: base)
    if not any(issubclass(b, StandIn) for b in bases):
        bases = [StandIn, *bases]
    if (base in _IMMUTABLE or issubclass(base, BaseException)) and not any(
        issubclass(b, base) for b in bases
    ):
        bases = [*bases, base]
    return StandInClass(name[:_LONGEST_NAME], tuple(bases), members)


@cache
def _functions() -> StandInClass:
    """Return the class of the functions of every program."""
    return _make_class(None, **_checked(describe(FunctionType)))


def _member(name: str, base: type) -> Any:
    """Return the method or property of a stand-in that has this name."""
    if name not in SPECIAL:
        return property(lambda self: _attribute(self, name))
    if name in _METHODS:
        return _METHODS[name]
    if name in OPERATORS:
        return _operator(name, base)
    if name in NUMERIC:
        return lambda self: _convert(self, name)
    return lambda self, *arguments: _ask(self, "special", name, self, *arguments)


def _next(self: Any) -> Any:
    return _ask(self, "special", "__next__", self, ends=(StopIteration,))


def _await(self: Any) -> Generator[None, None, Any]:
    return _ask(self, "await", self, ends=(StopAsyncIteration,))  # of an `__anext__`
    yield


def _convert(self: Any, name: str) -> Any:
    """Return the first answer of a conversion: a root that is another number each time is no root."""
    if name not in self._conversions:
        self._conversions[name] = _ask(self, "special", name, self)
    return self._conversions[name]


def _leaving(error: BaseException | None) -> tuple[Any, Any, None]:
    """Return the arguments of `__exit__`: of an exception of the tests, no more than its built-in class."""
    if error is None:
        return None, None, None
    if original(error) is not None:
        return type(error), error, None
    kind = shared_exception(error)
    return kind, kind.__new__(kind), None


def _exit(self: Any, kind: Any, error: BaseException | None, traceback: Any) -> bool:
    droppable = _droppable(self, error)
    return bool(_ask(self, "special", "__exit__", self, *_leaving(error))) and droppable


def _aexit(self: Any, kind: Any, error: BaseException | None, traceback: Any) -> Any:
    droppable = _droppable(self, error)  # here, where the caller is the block that is left

    async def leave() -> bool:
        return bool(await _ask(self, "special", "__aexit__", self, *_leaving(error))) and droppable

    return leave()


def _droppable(stand_in: Any, error: BaseException | None) -> bool:
    if error is None or isinstance(error, AssertionError):
        return False
    channel: ProgramChannel = stand_in._origin[0]
    return channel.may_drop_exception()


_METHODS: dict[str, Any] = {
    "__call__": _call,
    "__next__": _next,
    "__await__": _await,
    "__exit__": _exit,
    "__aexit__": _aexit,
}


def _operator(name: str, base: type) -> Callable[..., Any]:
    # Looked up on the built-in type, never on a value: the attributes of a value are the program's to choose.
    method = getattr(base, name, None)

    def apply(self: Any, *operands: Any) -> Any:
        if name == "__round__" and not operands:
            return _convert(self, name)
        if all(isinstance(operand, (StandIn, StandInClass)) for operand in operands):
            return _ask(self, "special", name, self, *operands)
        if base in CHANGING and method is not None:
            return method(_contents(self, base), *operands)
        if base in _IMMUTABLE and method is not None:
            return method(self, *operands)
        if name == "__contains__":
            return any(item is operands[0] or item == operands[0] for item in self)
        if name == "__round__":
            raise TypeError(f"{type(self).__name__} cannot be rounded to a number of digits")
        return NotImplemented

    return apply


def _contents(self: Any, base: type) -> Any:
    """Return a copy of the contents of an object derived from a built-in type that can change."""
    channel: ProgramChannel = self._origin[0]
    asked, contents = self._contents
    if asked != channel.questions:
        contents = _exactly(base, _ask(self, "plain", self))
        object.__setattr__(self, "_contents", (channel.questions, contents))
    return copy.copy(contents)


def _exactly(kind: type, contents: Any) -> Any:
    """Return `contents` if they are of exactly this built-in type, so that Python's own methods run on them."""
    if type(contents) is not kind:
        raise TypeError(f"the contents of an object derived from {kind.__name__} are not a {kind.__name__}")
    return contents
