"""Countdown: is this chain of steps legal, and does it end at the target?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from twotemp.graders.base import Grader
from twotemp.records import Grade, Problem
from twotemp.tasks.countdown import apply

_STEP = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})\s*", re.ASCII)
_COMMUTES = "+*"


class CountdownGrader(Grader):
    """Problem.reference = {"numbers": [4, 9, 2], "target": 34}; the text is `4 * 9 = 36 , 36 - 2 = 34`.

    Every step must be right arithmetic by the puzzle's rules on two numbers that are still there, every number is
    used once, and the last result is the target. The answer is the expression the chain amounts to, with
    the sides of + and * in a fixed order: chains with the same expression are the same answer.
    """

    name = "countdown 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        return (
            judge(problem.reference["numbers"], problem.reference["target"], text) for problem, text in items
        )


def judge(numbers: list[int], target: int, text: str) -> Grade:
    left = [(number, str(number)) for number in numbers]  # what can still be used, and how it was made
    for step in text.split(","):
        match = _STEP.fullmatch(step)
        if match is None:
            return Grade("failed", detail=f"not a step: {step.strip()[:40]!r}")
        x, operation, y, z = int(match[1]), match[2], int(match[3]), int(match[4])
        made = []
        for value in (x, y):
            used = next((item for item in reversed(left) if item[0] == value), None)  # results before givens
            if used is None:
                return Grade("failed", detail=f"{value} is not there to be used in {step.strip()!r}")
            left.remove(used)
            made.append(used[1])
        if apply(x, operation, y) != z:
            return Grade("failed", detail=f"wrong step {step.strip()!r}")
        if operation in _COMMUTES:
            made.sort()
        left.append((z, f"({made[0]} {operation} {made[1]})"))
    result, answer = left[-1]
    if len(left) > 1:
        return Grade("failed", answer, "chain", f"{len(left) - 1} of the numbers left over")
    if result != target:
        return Grade("failed", answer, "chain", f"ends at {result}, not {target}")
    return Grade("passed", answer, "chain")
