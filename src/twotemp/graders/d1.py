"""d1's string matching, re-implemented so that numbers published with it can be reproduced.

Its peculiarities are kept on purpose: on GSM8K the *first* box counts and is cut at its first `}`,
a comma ends a number, and a negative gold answer can never be matched; on MATH two answers are the same when
they are the same string after a fixed list of rewrites. The default grader is `maths`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from twotemp.graders.base import Grader, answer_kind
from twotemp.records import Grade, Problem

_FIRST_BOXES = re.compile(r"\\boxed{(.*?)}")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.?\d*")
_LONGEST = 20_000  # characters graded: the two patterns above take quadratic time on hostile text

# Plain replacements over the whole string, in this order.
_BEFORE_UNITS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_AFTER_UNITS = (("\\%", ""), (" .", " 0."), ("{.", "{0."))


class D1Grader(Grader):
    """Problem.reference as for the maths grader: kind "number" is d1's GSM8K parser, "latex" its MATH one."""

    name = "d1 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        for problem, text in items:
            text = text[:_LONGEST]
            gold = str(problem.reference["answer"])
            number = answer_kind(problem) == "number"
            answer, rule = _read_number(text) if number else _read_latex(text)
            same = _same_number if number else _same_latex
            right = answer is not None and same(gold, answer)
            yield Grade("passed" if right else "failed", answer, rule)

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return float(a) == float(b) if answer_kind(problem) == "number" else _same_latex(a, b)


def _as_number(text: str, which: int) -> str | None:
    """Return the text if it is a number, else the first (0) or last (-1) number in it."""
    try:
        float(text)
        return text
    except ValueError:
        numbers = _NUMBER.findall(text)
        return numbers[which] if numbers else None


def _read_number(text: str) -> tuple[str | None, str]:
    for content in map(str.strip, _FIRST_BOXES.findall(text)):
        if content.strip(".") and (number := _as_number(content, 0)) is not None:
            return number, "first box"
    tagged = _TAGGED.search(text)
    if tagged and (content := tagged[1].strip()) and (number := _as_number(content, -1)) is not None:
        return number, "tagged"
    return None, "none"


def _same_number(gold: str, answer: str) -> bool:
    """Compare with the gold answer, which d1 reads with a pattern without a sign: a negative one never matches."""
    gold = gold.replace(",", "").strip()
    return not gold.startswith("-") and float(answer) == float(gold)


def _read_latex(text: str) -> tuple[str | None, str]:
    """Return the last box; the whole text if there is none; what <answer> holds if the box is unclosed or empty."""
    if "\\boxed " in text:
        boxed: str | None = text.split("\\boxed ")[-1].split("$")[0]
        rule = "last box"
    elif (start := text.rfind("\\boxed")) >= 0 or (start := text.rfind("\\fbox")) >= 0:
        boxed, rule = _balanced(text, start), "last box"
    else:
        boxed, rule = text, "whole text"
    if boxed:
        return boxed, rule
    tagged = _TAGGED.search(text)
    return (tagged[1].strip(), "tagged") if tagged else (boxed, "none")


def _balanced(text: str, start: int) -> str | None:
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                box = text[start : at + 1]
                return box[len("\\boxed{") : -1] if box.startswith("\\boxed{") else box
    return None


def _same_latex(gold: str, answer: str) -> bool:
    try:
        return _normal(gold) == _normal(answer)
    except (ValueError, IndexError):  # a rewrite that does not apply: compare the original strings
        return gold == answer


def _normal(text: str) -> str:
    for old, new in _BEFORE_UNITS:
        text = text.replace(old, new)
    if text.count("\\text{ ") > 1:
        raise ValueError("two units")
    text = text.partition("\\text{ ")[0]
    for old, new in _AFTER_UNITS:
        text = text.replace(old, new)
    if text.startswith("."):
        text = "0" + text
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left) <= 2:
        text = right
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _fraction("\\frac{1}{2}" if text == "0.5" else text)


def _braced_roots(text: str) -> str:
    """Rewrite \\sqrt3 as \\sqrt{3}. An empty root raises an IndexError: then the original strings are compared."""
    first, *rest = text.split("\\sqrt")
    return first + "".join(
        "\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest
    )


def _braced_fractions(text: str) -> str:
    """Rewrite \\frac12 as \\frac{1}{2} and \\frac1{72} as \\frac{1}{72}."""
    first, *rest = text.split("\\frac")
    parts = [first]
    for part in rest:
        if part[0] != "{":
            if len(part) < 2:
                return text
            denominator = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            part = f"{{{part[0]}}}{denominator}"
        parts.append("\\frac" + part)
    return "".join(parts)


def _fraction(text: str) -> str:
    """Rewrite 1/2 as \\frac{1}{2}, integers only; x/2 raises a ValueError (see `_braced_roots`)."""
    if text.count("/") != 1:
        return text
    above, below = (int(part) for part in text.split("/"))
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text
