"""Invented rows with the fields of the published benchmarks, for tests that do not need the real questions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def gsm8k(count: int) -> list[Row]:
    """Return questions; the answer to question i is i + 3."""
    return [
        {
            "question": f"Ann has {i} apples and buys 3. How many now?",
            "answer": f"{i}+3={i + 3}\n#### {i + 3:,}",
        }
        for i in range(count)
    ]


def math500(count: int) -> list[Row]:
    """Return problems; the answer to problem i is the fraction i / 7."""
    return [
        {
            "problem": f"What is ${i}$ divided by $7$?",
            "solution": rf"It is $\boxed{{\frac{{{i}}}{{7}}}}$.",
            "answer": rf"\frac{{{i}}}{{7}}",
            "subject": "Algebra",
            "level": 1,
            "unique_id": f"test/algebra/{i}.json",
        }
        for i in range(count)
    ]


def humaneval(count: int) -> list[Row]:
    """Return tasks; task i sums a list and adds i."""
    body = "    total = {}\n    for number in numbers:\n        total += number\n    return total\n"
    check = "def check(candidate):\n    assert candidate([]) == {}\n    assert candidate([1, 2]) == {}\n"
    return [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": f'import math\n\n\ndef add_{i}(numbers: list) -> int:\n    """Their sum and {i}."""\n',
            "canonical_solution": body.format(i),
            "test": check.format(i, i + 3),
            "entry_point": f"add_{i}",
        }
        for i in range(count)
    ]


def mbpp(count: int) -> list[Row]:
    """Return tasks; task i multiplies by i and adds the second argument."""
    return [
        {
            "text": f"Write a function to multiply by {i} and add an offset.",
            "code": f"def scale_{i}(x, offset):\r\n    return {i} * x + offset",
            "task_id": 11 + i,
            "test_setup_code": "",
            "test_list": [f"assert scale_{i}(2, 1) == {2 * i + 1}", f"assert scale_{i}(0, 5) == 5"],
            "challenge_test_list": [],
        }
        for i in range(count)
    ]


MADE_UP = {"gsm8k": gsm8k, "math500": math500, "humaneval": humaneval, "mbpp": mbpp}


def write(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows as JSON lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[Row]:
    """Read rows from JSON lines."""
    return [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
