"""Checks of values that users pass; each returns the value as a plain Python number or raises a UserError."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from twotemp.errors import UserError

MOST = 2**31 - 1  # the largest integer accepted: sums of a few of them still fit into a tensor's integers


def integer(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return `value` if it is an integer in [least, most], NumPy's included; else raise a UserError.

    >>> integer("k", 3, least=1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UserError(f"{name} must be an integer >= {least}, not {value!r}")
    if int(value) > most:
        raise UserError(f"{name} must be at most {most}")
    return int(value)


def number(name: str, value: Any, interval: str) -> float:
    """Return `value` if it is a real number in the interval, in mathematical notation; else raise a UserError.

    >>> number("top_p", 0.5, "(0, 1]")
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not _contains(interval, float(value)):
        raise UserError(f"{name} must be in {interval}, not {value!r}")
    return value if isinstance(value, int) else float(value)


def _contains(interval: str, value: float) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    return above and (value < high if interval[-1] == ")" else value <= high)
