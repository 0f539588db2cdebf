"""Answers that are one number: words, units, signs, fractions, decimals; and equations between numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twotemp.graders.maths import MathsGrader
from twotemp.graders.quantities import exact, read
from twotemp.records import Problem


@pytest.fixture(scope="module")
def grader() -> Iterator[MathsGrader]:
    grader = MathsGrader(workers=1)
    yield grader
    grader.close()


def judge(grader: MathsGrader, gold: str, answer: str, kind: str) -> bool:
    problem = Problem("p", "t", "", {"answer": gold, "kind": kind})
    (verdict,) = grader.grade([(problem, rf"\boxed{{{answer}}}")])
    return verdict.passed


def same_for(grader: MathsGrader, kinds: str, gold: str, answer: str) -> set[bool]:
    return {judge(grader, gold, answer, {"n": "number", "l": "latex"}[kind]) for kind in kinds}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("-10", "minus 10"),
        ("-10", "negative 10"),
        ("-10", r"\text{negative } 10"),
        ("-10", "−10"),
        ("-10", "- 10"),
        ("-10", r"-\$10"),
        ("-10", r"\$-10"),
        ("10", "+10"),
        ("18000", "18 thousand"),
        ("18000", r"18\text{ thousand}"),
        ("1500000", "1.5 million"),
        ("18000000", r"\$18 million"),
        ("25", "twenty-five"),
        ("25", r"\text{Twenty five}"),
        ("105", "one hundred and five"),
        ("2340000", "two million three hundred forty thousand"),
        ("0", "zero"),
        ("10", "ten minutes"),
        ("3.5", "three and a half"),
        ("3.5", r"3\text{ and a half}"),
        ("2.5", "2 and a half hours"),
        (r"\frac{2}{3}", "two thirds"),
        (r"\frac{2}{3}", r"\text{two-thirds}"),
        ("0.25", "twenty-five hundredths"),
        ("-3.25", "minus three and a quarter"),
        ("7", "7 dozen"),  # a unit: in all ten solutions of GSM8K that end so, it was asked for dozens
        ("2000000000", "two thousand million"),
        ("5", "5 square meters"),
        ("5 square meters", "5 meters squared"),
        ("5 square meters", "5 squared meters"),
        ("20", "20 kids in third grade"),
        ("48", "48 egg halves"),
        ("76", "76 sixth graders"),
        ("50", "50 half-gallons of milk"),
        ("16", "16 quarters"),
        ("8", "8 songs in the third and fourth sets"),
        ("20 dollars", "20 in total"),
        ("20 inches", "20 in."),
        ("90", "90°"),
        ("90", r"90{}^\circ"),
        (r"90^\circ", "90 degrees"),
        ("18", "18 dollars"),
        (r"\$18", "18 dollars"),
        ("18", "€18"),
        ("10", "10%"),
        ("10", r"\text{10 percent}"),
        ("45", "45 fairies"),
        ("1.75", "1 3/4"),
        ("1 3/4", r"\frac{7}{4}"),
        (r"1\frac{4}{5}", "1 4/5"),
        ("-1.75", r"-1\tfrac{3}{4}"),
        (r"\frac{1}{3}", r"0.\overline{3}"),
        (r"0.\overline3", r"\frac{1}{3}"),
        (r"\frac{1}{6}", r"0.1\bar{6}"),
        ("1", r"0.\overline{9}"),
        ("1200", r"1\,200"),
        ("5 km", "5 kilometers"),
        (r"5 \text{ km}", r"5000 \text{ m}"),
        (r"60 \text{ minutes}", "1 hour"),
        (r"5 \text{ km}", "5"),
        ("5", "x = 5"),
        ("5", r"\text{Total} = 5"),
        ("5", "2+3=5"),
        ("5", r"n = \frac{10}{2} = 5"),
        ("25", r"5^2 = 25"),
    ],
)
def test_equal_quantities_in_different_words_are_equal(grader: MathsGrader, gold: str, answer: str) -> None:
    assert same_for(grader, "nl", gold, answer) == {True}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("10", "minus 10"),
        ("10", r"-\$10"),
        ("-10", "--10"),
        ("18", "18 thousand"),
        ("18", "18k"),
        ("18", "18x"),
        ("18", "18 million dollars"),
        ("500000", "1/2 million"),
        (r"\frac12", "1/2 million"),
        ("24", "twenty-five"),
        ("7", "three four"),
        ("3", "3 or four"),
        ("21", "twenty-first"),
        ("3", "three and a half"),
        ("3", r"3\text{ and a half}"),
        ("3", "three pounds and a half"),
        ("2", "2 and a half hours"),
        ("2", "2 hours and quarter"),
        ("2", r"2\text{ hours and 30 minutes}"),
        ("2", "two thirds"),
        ("2", "two third"),
        ("2", "two third of it"),
        ("3", "three quarters"),
        ("3", r"3\text{ halves}"),
        ("102", "one hundred and two thirds"),
        ("34", "one hundred and two thirds"),
        ("3", "3 hundreds"),
        ("2000", "two thousand million"),
        ("5", "5 squared"),
        ("5", r"5\text{ squared}"),
        ("3", r"3\text{ factorial}"),
        ("6", r"\text{half of }6"),
        ("5 meters", "5 meters squared"),
        ("20 dollars", "20 in."),
        ("7", "7 pi"),
        ("2", "2i"),
        (r"5 \text{ km}", "5 m"),
        (r"5 \text{ km}", r"5 \text{ m}"),
        (r"5 \text{ m}", r"5 \text{ m}^2"),
        (r"15\mbox{ cm}^2", r"15 \text{ cm}"),
        (r"864 \mbox{ inches}^2", r"864 \text{ square feet}"),
        (r"5.4 \text{ cents}", r"5.4 \text{ dollars}"),
        ("1 hour", "60"),
        ("52_8", "52_9"),
        ("53", "5%3"),
        ("34", r"3\,4"),
        ("1.23", "1.2.3 million"),
        ("13/4", "1 3/4"),
        (r"\frac{1}{3}", r"0.\overline{4}"),
        (r"\frac{1}{3}", "0.333333"),
        ("6", "1/0"),
        ("5", "4=5"),
        ("5", "2+2 = 5"),
        ("5", "x=4=5"),
        ("5", r"n = \frac{12}{2} = 5"),
        ("x=5", "4=5"),
    ],
)
def test_another_quantity(grader: MathsGrader, gold: str, answer: str) -> None:
    assert same_for(grader, "nl", gold, answer) == {False}


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("18000", "18k", True),
        ("25", "It is twenty-five apples.", True),
        ("2", "2:00 pm", True),
        ("2", "2 p.m.", True),
        ("2", "2:30 pm", False),
        ("2 pm", "2 am", False),
        ("5", "5m", True),
        ("18", "18th", True),
        ("0.75", r"75\%", False),  # never scaled: the question states the unit of its answer
        ("-10", "a loss of 10", False),
        ("6", "half of 6", False),
        ("3", "half past three", False),
        ("16", "the square root of 16", False),
        ("5", "twice 5", False),
        ("5", "the third house needs 5", True),
    ],
)
def test_numbers_in_prose(grader: MathsGrader, gold: str, answer: str, right: bool) -> None:
    assert judge(grader, gold, answer, "number") is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\pi", "3.14159265", False),  # a decimal is exactly what it says
        ("3.14159265", r"\pi", False),
        (r"\sqrt{2}", "1.41421356237", False),
        (r"7\pi", "21.991148575", False),
        ("(0.5, 1.25)", r"(\frac{1}{2}, \frac{5}{4})", True),
        ("0.5x", r"\frac{x}{2}", True),
        ("x^{0.5}", r"\sqrt{x}", True),
        ("x^{0.333333}", r"\sqrt[3]{x}", False),
        (r"\emptyset", r"\varnothing", True),
        (r"\varnothing", r"\emptyset", True),
        (r"\varnothing", "0", False),
        ("18k", "18", False),  # a formula, not 18,000
        ("2k", "2k", True),
        ("52_8", "52", True),
        (r"\frac34", r"75\%", True),
        (r"50\%", "0.5", True),
        (r"50\%", "5", False),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}^\circ", True),
        ("5", r"\alpha=5", True),
        ("y = 2x + 3", "2x+3", True),
    ],
)
def test_quantities_among_formulas(grader: MathsGrader, gold: str, answer: str, right: bool) -> None:
    assert judge(grader, gold, answer, "latex") is right


def test_anything_but_a_single_number_is_left_to_math_verify() -> None:
    for text in ("18x", "3 or 4", "1, 2", "(1, 2)", "3:4", "3^2", "3!", "x 5 y 6", "pi", "", "-", "east"):
        assert read(text, prose=True) is None
    for text in ("it is 5", "5m", "18k", "2k"):
        assert read(text, prose=False) is None


def test_exact_keeps_everything_but_decimals() -> None:
    assert exact("(x, 3) + 1.50") == r"(x, 3) + {\frac{3}{2}}"
    assert exact(r"0.\overline{3}x") == r"{\frac{1}{3}}x"
    assert exact("1.2.3") == "1.2.3"
