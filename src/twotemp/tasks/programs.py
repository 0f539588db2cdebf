"""Programs: write a small Python function from three examples of what it returns.

    3 1 4 -> 8 ; 2 9 5 6 -> 12 ; 7 0 2 -> 4
    def f(x): x = [v for v in x if v < 7 ] ; x = sorted(x) ; return sum(x)

The examples rarely pin the function down: many programs agree with them, and hidden tests decide. Lists are
written as their items and strings as their letters, one token each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random
from typing import Any

from twotemp.tasks.base import Example, MaskedCheck, Source

SHOWN, HIDDEN = 3, 5
LARGEST = 99  # a number is one token
LETTERS = "abcd"
HEADER = "def f(x):"

Value = int | str | list[int]

_EITHER = ("x = x[::-1]", "x = x[1:]", "x = x[:-1]", "x = x[:2]", "x = x + x")
_FILTERS = tuple(
    f"x = [v for v in x if {condition} ]"
    for condition in (
        *(f"v > {n}" for n in range(2, 7)),
        *(f"v < {n}" for n in range(3, 8)),
        *(f"v%2 == {n}" for n in (0, 1)),
    )
)
_MAPS = tuple(f"x = [v {change} for v in x ]" for change in ("+ 1", "+ 2", "+ 3", "* 2", "* 3"))
_SWAPS = tuple(f"x = x.replace( '{a}' , '{b}' )" for a in LETTERS for b in LETTERS if a != b)

# The statements of a program are drawn from different groups.
LIST_STATEMENTS = (_EITHER, ("x = sorted(x)",), _FILTERS, _MAPS)
TEXT_STATEMENTS = (_EITHER, ("x = ''.join(sorted(x))",), _SWAPS)
LIST_RESULTS = ("x", "sum(x)", "len(x)", "max(x)", "min(x)", "x[0]", "x[-1]")
TEXT_RESULTS = ("x", "len(x)", "x[0]", "x[-1]", *(f"x.count( '{a}' )" for a in LETTERS))

VOCABULARY = (
    *map(str, range(LARGEST + 1)),
    *LETTERS,
    *("->", ";"),
    *dict.fromkeys(
        word
        for line in (
            HEADER,
            *(line for group in (*LIST_STATEMENTS, *TEXT_STATEMENTS) for line in group),
            *(f"return {result}" for result in (*LIST_RESULTS, *TEXT_RESULTS)),
        )
        for word in line.split()
    ),
)


@cache
def function(program: str) -> Callable[[Any], Value]:
    """Return the function that one of our own programs defines. What a model wrote runs in the sandbox only."""
    names: dict[str, Any] = {}
    exec(program, names)
    defined: Callable[[Any], Value] = names["f"]
    return defined


def draw(rng: Random, statements: int) -> Example:
    """Draw a program, inputs on which it is defined, and its results."""
    while True:
        of_text = rng.random() < 0.25
        groups, results = (TEXT_STATEMENTS, TEXT_RESULTS) if of_text else (LIST_STATEMENTS, LIST_RESULTS)
        lines = [rng.choice(group) for group in rng.sample(groups, statements)]
        program = f"{HEADER} {' ; '.join(lines)} ; return {rng.choice(results)}"
        inputs = [_input(rng, of_text) for _ in range(SHOWN + HIDDEN)]
        try:
            outputs = [function(program)(x) for x in inputs]
        except (IndexError, ValueError):  # the first or the largest item of an empty list
            continue
        if all(map(_writable, outputs)):
            break
    shown = [f"{_write(x)} -> {_write(y)}" for x, y in zip(inputs[:SHOWN], outputs)]
    return Example(
        prompt=" ; ".join(shown),
        answer=program,
        key=" ; ".join(sorted(shown)),
        reference={
            "entry_point": "f",
            "tests": [f"assert f({x!r}) == {y!r}" for x, y in zip(inputs, outputs)],
            "setup": "",
            "prefix": "",
        },
    )


def _input(rng: Random, of_text: bool) -> Value:
    length = rng.randint(3, 4)
    if of_text:
        return "".join(rng.choices(LETTERS, k=length))
    return [rng.randint(0, 9) for _ in range(length)]


def _writable(value: Value) -> bool:
    """Return whether a prompt can contain the value: every number one token, and one to four items."""
    items = [value] if isinstance(value, int) else value
    return 1 <= len(items) <= 4 and all(isinstance(item, str) or item <= LARGEST for item in items)


def _write(value: Value) -> str:
    return str(value) if isinstance(value, int) else " ".join(map(str, value))


def checks(words: Sequence[str], first: int) -> list[MaskedCheck]:
    """Mask the outputs of the examples: the program determines them."""
    outputs, inside = [], False
    for k in range(1, first - 1):
        inside = words[k - 1] == "->" or (inside and words[k] != ";")
        if inside:
            outputs.append(k)
    return [MaskedCheck(outputs, outputs)]


SOURCES = tuple(
    Source(
        f"programs-{count}",
        description,
        grader="programs",
        length=length,
        version=2,
        draw=partial(draw, statements=count),
        checks=checks,
    )
    for count, length, description in (
        (1, 20, "a Python function of 1 statement from three examples"),
        (2, 28, "a Python function of 2 statements from three examples"),
    )
)
