"""Tests from EvalPlus rows: a program must agree with the reference solution on every input (HumanEval+, MBPP+).

EvalPlus publishes inputs and a reference solution instead of assertions. The tests call the reference and the program
and compare. Values are compared as EvalPlus 0.3.1 does, without NumPy: they are equal, or, where the expected value
is a float or the row has a tolerance, they differ by at most atol + 1e-7 |expected|; some functions have rules of
their own. Not reproduced: its second oracles for `surface_Area` and `digit_distance_nums`, and that it accepts every
result of `are_equivalent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Functions whose results are compared as sets, and those of which only "is there a result" counts.
AS_SETS = (
    "similar_elements find_char_long common_in_nested_lists extract_singly larg_nnum intersection_array "
    "find_dissimilar Diff"
).split()
NOT_NONE = ["check_str", "text_match_three", "text_starta_endb"]

COMPARE = """
from copy import deepcopy as _copy

def _close(given, expected, tolerance):
    return type(given) is type(expected) and _near(given, expected, tolerance)

def _near(given, expected, tolerance):
    if isinstance(expected, (list, tuple)):
        given = list(given)  # an object of the program need not have as many items as its length says
        return len(given) == len(expected) and all(_near(a, b, tolerance) for a, b in zip(given, expected))
    if not isinstance(given, (int, float, complex)) or not isinstance(expected, (int, float, complex)):
        return given == expected
    return given == expected or abs(given - expected) <= tolerance + 1e-7 * abs(expected) < float("inf")

def _floats(value):
    return isinstance(value, float) or (
        isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(item, float) for item in value)
    )

def _same(given, expected, tolerance):
    if given == expected:
        return True
    tolerance = tolerance or (1e-6 if _floats(expected) else 0)
    return bool(tolerance) and _close(given, expected, tolerance)
"""

_RULES = {
    "zero": "abs(sum(_a * _given**_i for _i, _a in enumerate(_input[0]))) <= _tolerance",
    "set": "set(_given) == set(_right)",
    "not none": "_given == _right if isinstance(_given, bool) else _right == (_given is not None)",
    "sum_div": "_given == _right or _given == 0",
    "same": "_same(_given, _right, _tolerance)",
}


def tests(row: Mapping[str, Any]) -> str:
    """Return the tests of one problem as a program.

    Args:
        row: `entry_point`, `solution` (the source of the reference), `inputs` (argument lists) and `atol`.
    """
    name = row["entry_point"]
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a function's name")
    rule = "same"
    if name == "find_zero":
        rule = "zero"
    elif name in AS_SETS:
        rule = "set"
    elif name in NOT_NONE:
        rule = "not none"
    elif name == "sum_div":
        rule = "sum_div"
    return (
        f"{COMPARE}\n_scope = {{}}\nexec({row['solution']!r}, _scope)\n_reference = _scope[{name!r}]\n"
        f"_tolerance = {float(row['atol'])!r}\n"
        f"for _input in {list(row['inputs'])!r}:\n"
        f"    _right = _reference(*_copy(_input))\n"
        f"    _given = {name}(*_copy(_input))\n"
        f"    assert {_RULES[rule]}\n"
    )
