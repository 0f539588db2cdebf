"""Graders of expressions, Sudoku grids and EvalPlus problems."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from twotemp.graders import get
from twotemp.graders.programs import ProgramGrader
from twotemp.records import Grade, Problem


def graded(name: str, reference: dict[str, Any], text: str) -> Grade:
    return next(iter(get(name).grade([(Problem("p", "task", "?", reference), text)])))


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{55 - (53 - 49)}",
        r"<answer>\boxed{55 - 53 + 49 = 51}</answer>",
        "<answer>49 + 55 - 53</answer>",
        r"\boxed{49 \times 1}\boxed{(49 + 55) - 53}",
    ],
)
def test_an_expression_that_reaches_the_target_passes(text: str) -> None:
    assert graded("expression", {"numbers": [49, 55, 53], "target": 51}, text).outcome == "passed"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\boxed{55 - 53}", "uses [53, 55]"),
        (r"\boxed{49 + 55 + 53}", "is 157, not 51"),
        (r"\boxed{49 / (55 - 55) + 53}", "divides by zero"),
        (r"\boxed{49 ** 55 ** 53}", "not an expression"),
        (r"\boxed{__import__('os').getpid()}", "not an expression"),
        (r"\boxed{" + "(" * 150 + "51" + ")" * 40 + "}", "not an expression"),
        ("51", "not an expression"),
        (r"\boxed{" + "1+" * 200 + "1}", "longer than"),
    ],
)
def test_any_other_text_fails_with_a_reason(text: str, reason: str) -> None:
    grade = graded("expression", {"numbers": [49, 55, 53], "target": 51}, text)
    assert grade.outcome == "failed"
    assert reason in grade.detail


def test_a_long_answer_is_read_in_linear_time() -> None:
    began = time.process_time()
    for text in ("1" * 300_000, "1+" * 150_000, "(" * 300_000 + "=", "1 = " * 100_000):
        assert graded("expression", {"numbers": [1], "target": 2}, rf"\boxed{{{text}}}").outcome == "failed"
    assert time.process_time() - began < 10


def test_division_is_exact() -> None:
    assert (
        graded("expression", {"numbers": [8, 3, 3, 8], "target": 24}, r"\boxed{8/(3-8/3)}").outcome
        == "passed"
    )


PUZZLE = {"puzzle": "3102200002100320"}


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        ("3142243142131324", ""),
        ("3142 2431 4213 1324", ""),
        ("314224314213132", "15 digits"),
        ("4132243142131324", "changes a given digit"),
        ("3142213142131324", "does not have 1 to 4"),
    ],
)
def test_a_sudoku_grid_keeps_the_given_digits_and_the_rules(grid: str, reason: str) -> None:
    grade = graded("sudoku", PUZZLE, f"<answer>\n{grid}\n</answer>")
    assert (grade.outcome, reason in grade.detail) == ("failed" if reason else "passed", True)


@pytest.fixture(scope="module")
def programs() -> Iterator[ProgramGrader]:
    grader = ProgramGrader(workers=1)
    yield grader
    grader.close()


def plus(name: str, solution: str, inputs: list[Any], atol: float = 0.0, **more: Any) -> dict[str, Any]:
    row = {"kind": "evalplus", "entry_point": name, "solution": solution, "inputs": inputs, "atol": atol}
    return {**row, **more}


SCALE = plus("scale", "def scale(x):\n    return x / 3\n", [[1], [2], [9]])
PAIRS = plus(
    "similar_elements", "def similar_elements(a, b):\n    return tuple(set(a) & set(b))\n", [[(1, 2), (2, 3)]]
)
ZERO = plus("find_zero", "def find_zero(xs):\n    return -xs[0] / xs[1]\n", [[[1.0, 2.0]]], atol=1e-4)
NESTED = plus("rows", "def rows(x):\n    return [[x, 0.5], [2.5]]\n", [[1.5], [2.5]], atol=1e-6)
INFINITE = plus("limit", "def limit(x):\n    return float('inf')\n", [[1]])
BODY = plus("add", "def add(a, b):\n    return a + b\n", [[1, 2]], prompt='def add(a, b):\n    """Add."""\n')


@pytest.mark.parametrize(
    ("reference", "program", "outcome"),
    [
        (SCALE, "def scale(x):\n    return x * (1 / 3)", "passed"),
        (SCALE, "def scale(x):\n    return x / 3 + 1e-3", "failed"),
        (
            SCALE,
            "class A:\n    __eq__ = lambda *a: True\n    __abs__ = __sub__ = lambda *a: 0\nscale = lambda x: A()",
            "failed",
        ),
        (PAIRS, "def similar_elements(a, b):\n    return [x for x in a if x in b]", "passed"),
        (PAIRS, "def similar_elements(a, b):\n    return list(a)", "failed"),
        (ZERO, "def find_zero(xs):\n    return -0.50001", "passed"),
        (ZERO, "def find_zero(xs):\n    return -0.6", "failed"),
        (NESTED, "rows = lambda x: [[x + 1e-9, 0.5], (2.5,)]", "passed"),
        (NESTED, "rows = lambda x: [[x, 0.5], []]", "failed"),
        (
            NESTED,
            "class A:\n    n = 0\n    __iter__ = lambda self: iter(())\n"
            "    def __len__(self): A.n += 1; return A.n % 2 + 1\nrows = lambda x: [A(), A()]",
            "failed",
        ),
        (INFINITE, "limit = lambda x: float('inf')", "passed"),
        (INFINITE, "limit = lambda x: 7.0", "failed"),
        (BODY, "    return b + a", "passed"),
        (BODY, "    _reference = None\n    return 3", "passed"),
    ],
)
def test_a_program_must_agree_with_the_reference(
    programs: ProgramGrader, reference: dict[str, Any], program: str, outcome: str
) -> None:
    (grade,) = programs.grade([(Problem("p", "task", "?", reference), f"```python\n{program}\n```")])
    assert grade.outcome == outcome, grade.detail
