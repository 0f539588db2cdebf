"""Plain values between the program's process and the judge's, as JSON frames over pipes.

Only built-in values cross. An object of any other kind stays where it is and is passed as a reference, so
that nothing a program defines (an `__eq__` that is always true, say) ever runs beside the tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST_FRAME = 16 << 20  # bytes
_SMALL = 1 << 53


class ChannelClosed(Exception):
    """The other process ended, or wrote something that is no frame."""


def send(descriptor: int, message: Any) -> None:
    data = json.dumps(message).encode()
    data = len(data).to_bytes(8, "little") + data
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> Any:
    size = int.from_bytes(read_exactly(descriptor, 8), "little")
    if size > LARGEST_FRAME:
        raise ChannelClosed("a result is too large")
    try:
        return json.loads(read_exactly(descriptor, size))
    except ValueError as error:
        raise ChannelClosed("not a frame") from error


def read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise ChannelClosed("the other side ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any, foreign: Callable[[Any], Any]) -> Any:
    """JSON for a value; `foreign` gives it for what is not plain."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Decimal digits of a huge int are slow and, beyond 4,300 of them, refused; hexadecimal ones are not.
        return int(value) if -_SMALL < value < _SMALL else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return [encode(item, foreign) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item, foreign) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, foreign), encode(v, foreign)] for k, v in value.items()]}
    if isinstance(value, Set):  # the views of a dict too: they equal sets
        return {"set": [encode(item, foreign) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    return foreign(value)


def decode(data: Any, foreign: Callable[[dict[str, Any]], Any]) -> Any:
    """The value `encode` was given; a tag of `foreign`'s making is given back to it."""
    if isinstance(data, list):
        return [decode(item, foreign) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    match tag:
        case "int":
            return int(content, 16)
        case "tuple":
            return tuple(decode(item, foreign) for item in content)
        case "dict":
            return {decode(key, foreign): decode(value, foreign) for key, value in content}
        case "set":
            return {decode(item, foreign) for item in content}
        case "bytes":
            return bytes.fromhex(content)
        case "complex":
            return complex(*content)
        case "fraction":
            return Fraction(content)
        case "decimal":
            return Decimal(content)
        case _:
            return foreign(data)
