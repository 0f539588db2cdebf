"""Values that cross between the program's process and the judge by value, and their JSON form.

They are of exactly these types, never of a subclass: then Python's own methods run on both sides, and nothing
that a program defines (an `__eq__` that is always true, say) ever runs beside the tests. Every other value stays
in its process and crosses as a reference, which each side makes in its own way (`foreign`).
"""

from __future__ import annotations

import array
import builtins
import dataclasses
import decimal
import json
import re
import statistics
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

_SMALL = 1 << 53
_AS_THEY_ARE = {type(None), bool, str, float}


class Form(NamedTuple):
    """A type that crosses by value: how to take a value apart and how to build it from its parts."""

    kind: type
    parts: Callable[[Any], Iterable[Any]]
    build: Callable[[Any], Any]


def _date(value: date) -> list[Any]:
    return [value.year, value.month, value.day]


def _clock(value: datetime | time) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold]


def _fraction(parts: list[Any]) -> Fraction:
    # Fraction keeps the numbers it is given, so an object of the program's must not become part of one.
    if any(type(part) is not int for part in parts):
        raise TypeError("the parts of a fraction must be integers")
    return Fraction(*parts)


_FORMS = [
    # Decimal digits of a huge int are slow and, beyond 4,300 of them, refused; hexadecimal ones are not.
    Form(int, lambda v: [hex(v)], lambda p: int(p[0], 16)),
    Form(tuple, lambda v: v, tuple),
    Form(dict, lambda v: [[key, item] for key, item in v.items()], dict),
    Form(set, lambda v: v, set),
    Form(frozenset, lambda v: v, frozenset),
    Form(bytes, lambda v: [v.hex()], lambda p: bytes.fromhex(p[0])),
    Form(bytearray, lambda v: [v.hex()], lambda p: bytearray.fromhex(p[0])),
    Form(complex, lambda v: [v.real, v.imag], lambda p: complex(*p)),
    Form(range, lambda v: [v.start, v.stop, v.step], lambda p: range(*p)),
    Form(slice, lambda v: [v.start, v.stop, v.step], lambda p: slice(*p)),
    Form(Decimal, lambda v: [str(v)], lambda p: Decimal(p[0])),
    Form(Fraction, lambda v: [v.numerator, v.denominator], _fraction),
    Form(date, _date, lambda p: date(*p)),
    Form(time, _clock, lambda p: time(*p[:5], fold=p[5])),
    Form(datetime, lambda v: _date(v) + _clock(v), lambda p: datetime(*p[:8], fold=p[8])),
    Form(timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda p: timedelta(*p)),
    Form(timezone, lambda v: v.__getinitargs__(), lambda p: timezone(*p)),
    Form(deque, lambda v: [list(v), v.maxlen], lambda p: deque(*p)),
    Form(OrderedDict, lambda v: [[key, item] for key, item in v.items()], OrderedDict),
    Form(Counter, lambda v: [dict(v)], lambda p: Counter(*p)),
    Form(defaultdict, lambda v: [v.default_factory, dict(v)], lambda p: defaultdict(*p)),
    Form(array.array, lambda v: [v.typecode, v.tolist()], lambda p: array.array(*p)),
    Form(type({}.keys()), lambda v: v, lambda p: dict.fromkeys(p).keys()),
    Form(type({}.values()), lambda v: v, lambda p: dict(enumerate(p)).values()),
    Form(type({}.items()), lambda v: [list(pair) for pair in v], lambda p: dict(p).items()),
    Form(type(NotImplemented), lambda v: [], lambda p: NotImplemented),
    Form(type(...), lambda v: [], lambda p: ...),
]
_BY_KIND = {form.kind: form for form in _FORMS}
_BY_NAME = {form.kind.__name__: form for form in _FORMS}
# Classes that are the same on both sides.
EXCEPTIONS = {
    kind
    for module in (builtins, dataclasses, decimal, json, re, statistics, struct)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
SHARED = {*_BY_KIND, *_AS_THEY_ARE, list, object, *EXCEPTIONS}
_NAMES = {kind: f"{kind.__module__}.{kind.__name__}" for kind in SHARED}
SHARED_BY_NAME = {name: kind for kind, name in _NAMES.items()}


def encode(value: Any, foreign: Callable[[Any], Any]) -> Any:
    """Return the JSON form of a value; `foreign` makes it for values that do not cross by value."""
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is int and -_SMALL < value < _SMALL):
        return value
    if kind is list:
        return [encode(item, foreign) for item in value]
    if (form := _BY_KIND.get(kind)) is not None:
        return {kind.__name__: [encode(part, foreign) for part in form.parts(value)]}
    if kind in EXCEPTIONS and not value.__dict__:
        # `__reduce__`, because the `args` of an OSError lack its file name.
        return {"raise": [_NAMES[kind], *(encode(part, foreign) for part in value.__reduce__()[1])]}
    if kind is type and value in SHARED:
        return {"type": _NAMES[value]}
    return foreign(value)


def decode(
    data: Any, foreign: Callable[[dict[str, Any]], Any], refused: frozenset[type] = frozenset()
) -> Any:
    """Return the value that `encode` was given.

    Args:
        data: The JSON form.
        foreign: Resolves the references made by the other side.
        refused: Classes that the other side may not give; their objects it may.
    """
    if isinstance(data, list):
        return [decode(item, foreign, refused) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        return foreign(data)
    ((tag, content),) = data.items()
    if tag == "type":
        if (kind := SHARED_BY_NAME[content]) in refused:
            raise TypeError(f"{kind.__name__} itself is not taken as a value")
        return kind
    if tag == "raise":
        name, *parts = content
        return _exception(SHARED_BY_NAME[name], [decode(part, foreign, refused) for part in parts])
    if (form := _BY_NAME.get(tag)) is None:
        return foreign(data)
    return form.build([decode(part, foreign, refused) for part in content])


def shared_name(kind: type) -> str | None:
    """Return the name of a class that both sides have; None for others."""
    return _NAMES.get(kind)


def _exception(kind: type, arguments: list[Any]) -> BaseException:
    if not issubclass(kind, BaseException):
        raise TypeError("the class of an exception is not one that both sides have")
    try:
        error: BaseException = kind(*arguments)
    except Exception:  # a program may raise an exception with arguments that its class refuses
        error = kind.__new__(kind, *arguments)
    return error


def shared_exception(error: BaseException) -> type[BaseException]:
    """Return the most derived class of an exception that both sides have."""
    return next(base for base in type(error).__mro__ if base in EXCEPTIONS)
