"""Graders without dependencies: Countdown chains and expressions, Sudoku grids, and imported grades."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.graders.extraction import final_answer
from twotemp.records import Grade, Problem
from twotemp.tasks.countdown import apply

_STEP = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})\s*", re.ASCII)
_COMMUTES = "+*"
_BEFORE_EQUALS = re.compile(r"(?<![0-9+\-*/() ])([0-9+\-*/() ]+)=[0-9. ]+")  # linear: tried once in each run
_LONGEST = 200  # characters of an expression
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# The rows, columns and boxes of a 4x4 grid, as indices into its 16 digits.
_UNITS = (
    *([4 * row + column for column in range(4)] for row in range(4)),
    *([4 * row + column for row in range(4)] for column in range(4)),
    *([4 * (top + r) + left + c for r in range(2) for c in range(2)] for top in (0, 2) for left in (0, 2)),
)


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


class ExpressionGrader(Grader):
    """Problem.reference = {"numbers": [49, 55, 53], "target": 51}; the final answer is like `55 - (53 - 49)`.

    It must use every number once, only + - * / and parentheses, and have exactly the target as its value. What
    follows an equals sign is ignored, and LaTeX's operators are read, as d1 does.
    """

    name = "expression 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        for problem, text in items:
            extracted = final_answer(text)
            answer = (extracted.answer or "").strip()
            for latex, plain in ((r"\div", "/"), (r"\times", "*"), (r"\cdot", "*")):
                answer = answer.replace(latex, plain)
            if match := _BEFORE_EQUALS.search(answer):
                answer = match[1].strip()
            reason = _wrong_expression(answer, problem.reference["numbers"], problem.reference["target"])
            yield Grade("failed" if reason else "passed", answer or None, extracted.rule, reason)


def _wrong_expression(text: str, numbers: list[int], target: int) -> str:
    """Return why an expression is not a solution; "" if it is one."""
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        raise ValueError("other than numbers, + - * / and parentheses")

    if len(text) > _LONGEST:
        return f"longer than {_LONGEST} characters"
    try:
        result = value(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        return "divides by zero"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "not an expression of numbers, + - * / and parentheses"
    if sorted(used) != sorted(numbers):
        return f"uses {sorted(used)}, not {sorted(numbers)}"
    return "" if result == target else f"is {result}, not {target}"


class SudokuGrader(Grader):
    """Problem.reference = {"puzzle": "3102200002100320"}, 0 for an empty cell; the final answer is the whole grid.

    A grid is right if it keeps the given digits and has 1 to 4 once in every row, column and box. d1 publishes the
    share of right cells instead of right grids.
    """

    name = "sudoku 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        for problem, text in items:
            extracted = final_answer(text)
            grid = re.sub(r"[^0-9]", "", extracted.answer or "")
            yield Grade(
                "failed" if (reason := _wrong_grid(grid, problem.reference["puzzle"])) else "passed",
                grid[:64] or None,
                extracted.rule,
                reason,
            )


def _wrong_grid(grid: str, puzzle: str) -> str:
    """Return why a grid does not solve a puzzle; "" if it does."""
    if len(grid) != 16:
        return f"{len(grid)} digits instead of 16"
    if any(given not in ("0", digit) for given, digit in zip(puzzle, grid)):
        return "changes a given digit"
    if any(sorted(grid[cell] for cell in unit) != list("1234") for unit in _UNITS):
        return "a row, column or box does not have 1 to 4"
    return ""


class RecordedGrader(Grader):
    """Stands for imported grades; it cannot grade samples itself."""

    name = "recorded"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        raise UserError(
            "recorded grades came with the imported samples and cannot be computed again; name a grader of texts "
            "(`twotemp graders`)"
        )


class NoGrader(Grader):
    """Gives no verdict: for prompts without a right answer."""

    name = "none"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        return (Grade("ungraded", detail="the prompt has no right answer") for _ in items)
