"""Countdown: reach a target with the given numbers, each used once, by a chain of steps.

    4 9 2 -> 34     ->     4 * 9 = 36 , 36 - 2 = 34

Most targets have several solutions and most first steps lead nowhere: a choice that cannot be repaired later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from twotemp.tasks.base import Example, MaskedCheck, Source

LARGEST = 99  # every intermediate result is in 1..LARGEST, so that a number is one token
LARGEST_GIVEN = 50  # with 30, two held-out sets of 500 problems share half of them
LEAST_TARGET = 10
OPERATIONS = ("+", "-", "*", "/")
VOCABULARY = (*map(str, range(LARGEST + 1)), *OPERATIONS, "->", "=", ",")


def apply(x: int, operation: str, y: int) -> int | None:
    """Return the result of a step, or None if the rules forbid it (not an integer, or not in 1..99)."""
    if operation == "+":
        z = x + y
    elif operation == "-":
        z = x - y
    elif operation == "*":
        z = x * y
    elif y == 0 or x % y:
        return None
    else:
        z = x // y
    return z if 1 <= z <= LARGEST else None


def draw(rng: Random, count: int) -> Example:
    """Draw numbers, and a target that a random chain of legal steps reaches."""
    while True:
        numbers = [rng.randint(1, LARGEST_GIVEN) for _ in range(count)]
        pool, steps = list(numbers), []
        while len(pool) > 1:
            x, y = rng.sample(pool, 2)
            results = {operation: z for operation in OPERATIONS if (z := apply(x, operation, y))}
            if not results:
                break
            operation, z = rng.choice(list(results.items()))
            pool.remove(x)
            pool.remove(y)
            pool.append(z)
            steps.append(f"{x} {operation} {y} = {z}")
        target = pool[0]
        if len(pool) == 1 and target >= LEAST_TARGET:
            break
    return Example(
        prompt=f"{' '.join(map(str, numbers))} -> {target}",
        answer=" , ".join(steps),
        key=f"{sorted(numbers)} {target}",
        reference={"numbers": numbers, "target": target},
    )


def checks(words: Sequence[str], first: int) -> list[MaskedCheck]:
    """Recompute every step. The problem is masked: the last result would be copied from the target."""
    results = [k for k in range(first + 1, len(words)) if words[k - 1] == "="]
    return [MaskedCheck([*range(first), *range(k, len(words))], [k]) for k in results]


SOURCES = tuple(
    Source(
        f"countdown-{count}",
        f"reach a target with {count} numbers, each used once",
        grader="countdown",
        length=6 * (count - 1),
        version=2,
        draw=partial(draw, count=count),
        checks=checks,
    )
    for count in (3, 4)
)
