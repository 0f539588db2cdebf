"""Graders without dependencies: Countdown chains, and grades that came with imported samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.records import Grade, Problem
from twotemp.tasks.countdown import apply

_STEP = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})\s*", re.ASCII)
_COMMUTES = "+*"


class CountdownGrader(Grader):
    """Problem.reference = {"numbers": [4, 9, 2], "target": 34}; the text is `4 * 9 = 36 , 36 - 2 = 34`.

    Every step must be correct arithmetic by the puzzle's rules on two numbers that are still available, every number
    must be used once, and the last result must be the target. The answer is the expression of the chain, with
    the operands of + and * in a fixed order: chains with the same expression are the same answer.
    """

    name = "countdown 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        return (
            grade_chain(problem.reference["numbers"], problem.reference["target"], text)
            for problem, text in items
        )


def grade_chain(numbers: list[int], target: int, text: str) -> Grade:
    """Grade one chain of steps."""
    left = [(number, str(number)) for number in numbers]  # available numbers and their expressions
    for step in text.split(","):
        match = _STEP.fullmatch(step)
        if match is None:
            return Grade("failed", detail=f"not a step: {step.strip()[:40]!r}")
        x, operation, y, z = int(match[1]), match[2], int(match[3]), int(match[4])
        operands = []
        for value in (x, y):
            # Results are used before given numbers.
            used = next((item for item in reversed(left) if item[0] == value), None)
            if used is None:
                return Grade("failed", detail=f"{value} is not available in {step.strip()!r}")
            left.remove(used)
            operands.append(used[1])
        if apply(x, operation, y) != z:
            return Grade("failed", detail=f"wrong step {step.strip()!r}")
        if operation in _COMMUTES:
            operands.sort()
        left.append((z, f"({operands[0]} {operation} {operands[1]})"))
    result, answer = left[-1]
    if len(left) > 1:
        return Grade("failed", answer, "chain", f"{len(left) - 1} of the numbers are left over")
    if result != target:
        return Grade("failed", answer, "chain", f"ends at {result}, not {target}")
    return Grade("passed", answer, "chain")


class RecordedGrader(Grader):
    """Stands for imported grades; it cannot grade samples itself."""

    name = "recorded"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        raise UserError(
            "recorded grades came with the imported samples and cannot be computed again; name a grader of texts "
            "(`twotemp graders`)"
        )
