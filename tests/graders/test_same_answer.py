"""What counts as the same answer when samples vote."""

from __future__ import annotations

import pytest

from twotemp import graders
from twotemp.analysis import group_answers
from twotemp.metrics import NO_ANSWER
from twotemp.records import Problem


def test_answers_are_grouped_by_the_graders_equivalence():
    grader = graders.get("maths", workers=1)
    problem = Problem("q", "math500", "?", {"answer": "1", "kind": "latex"})
    try:
        given_ = ["0.5", None, r"\frac{1}{2}", "2", "1/2", "2.0", None]
        numbers = group_answers(given_, lambda a, b: grader.same(problem, a, b))
    finally:
        grader.close()
    assert list(numbers) == [0, NO_ANSWER, 0, 1, 0, 1, NO_ANSWER]


def test_units_and_thousands_are_the_same_number():
    grader = graders.get("maths", workers=1)
    problem = Problem("q", "gsm8k", "?", {"answer": "1"})
    try:
        numbers = group_answers(
            ["$1,200", "1200", "1200 dollars", "12"], lambda a, b: grader.same(problem, a, b)
        )
    finally:
        grader.close()
    assert list(numbers) == [0, 0, 0, 1]


def test_an_equivalence_that_is_not_transitive_depends_on_the_order_alone():
    def near(a: str, b: str) -> bool:
        return abs(int(a) - int(b)) <= 1

    assert list(group_answers(["1", "2", "3"], near)) == [0, 0, 1]
    assert list(group_answers(["2", "1", "3"], near)) == [0, 0, 0]
    assert list(group_answers(["1", "2", "3", "2", "1"], near)) == [0, 0, 1, 0, 0]


def test_each_distinct_answer_is_compared_once_per_group():
    asked = []

    def same(a: str, b: str) -> bool:
        asked.append((a, b))
        return a.lower() == b.lower()

    group_answers(["a", "A", "a", "b", "A", "b"], same)
    assert asked == [("a", "A"), ("a", "b")]


HOSTILE = ["\\frac{", "\x00", "🙂", "9" * 5000, "(" * 400, "", " ", "def f(:\n", "1/0", "a" * 10_000]


@pytest.mark.parametrize("name", ["countdown", "maths", "programs", "d1"])
def test_answers_that_break_parsers_are_answers_like_any_other(name):
    reference = {"answer": "1", "kind": "latex", "entry_point": "f", "tests": []}
    problem = Problem("q", "t", "?", reference)
    grader = graders.get(name)
    try:
        numbers = group_answers([*HOSTILE, *HOSTILE], lambda a, b: grader.same(problem, a, b))
    finally:
        grader.close()
    assert list(numbers[: len(HOSTILE)]) == list(numbers[len(HOSTILE) :])  # and no worker crashed
    assert (numbers >= 0).all()
