"""More published benchmarks: HumanEval+, MBPP+, AIME, and the Sudoku and Countdown of d1.

The files of d1 and EvalPlus are published in repositories, not on the hub: give them with `--data`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from twotemp.tasks.base import Task
from twotemp.tasks.benchmarks import seed42
from twotemp.tasks.data import PUBLISHED, DataRow, PublishedFile, Subset, benchmark

EVALPLUS_SECONDS = 30.0  # for up to 1,000 inputs; EvalPlus has a limit for each input instead

# d1's instructions, to the letter: what a published score was measured with.
_SUDOKU_INSTRUCTION = """
Please solve the following 4x4 Sudoku puzzle. The puzzle is provided as a 16-character string reading left-to-right, \
top-to-bottom, where '0' represents empty cells.

Rules:
- Fill empty cells with digits 1-4
- Each row must contain digits 1-4 exactly once
- Each column must contain digits 1-4 exactly once
- Each 2x2 box must contain digits 1-4 exactly once

Important: Your solution must be a COMPLETE 16-character string with only the digits 1-4, representing your final \
solved grid.

Respond in this exact format:
<reasoning>
Your step-by-step solving process
</reasoning>
<answer>
[16-character solution string with no spaces or separators]
</answer>
"""
_COUNTDOWN_INSTRUCTION = (
    "Using only the provided numbers, create an arithmetic expression that evaluates to exactly the provided target "
    "number. You may use the operations +, -, *, and / as needed, but each number must be used exactly once. Think "
    "step-by-step. After reasoning, provide only your final expression inside \\boxed{} tags without including an "
    "equals sign or the target number. For example: \\boxed{a + b * c}Respond in the following format:\n"
    "<reasoning>\nYour reasoning here\n</reasoning>\n<answer>\n\\boxed{...}\n</answer>"
)


def _numbers(row: DataRow) -> list[int]:
    return [int(number) for number in row["input"].split(",")]


def _evalplus_reference(row: DataRow, body: bool) -> Mapping[str, Any]:
    inputs = [*row["base_input"], *row["plus_input"]]
    if "assertion" in row:
        inputs = restore(inputs, row["assertion"], row["entry_point"])
    return {
        "kind": "evalplus",
        "entry_point": row["entry_point"],
        "solution": row["prompt"] + row["canonical_solution"],
        "inputs": inputs,
        "atol": row["atol"],
        "timeout": EVALPLUS_SECONDS,
        **({"prompt": row["prompt"]} if body else {}),
    }


def _aime(year: int, published: PublishedFile) -> Task:
    return benchmark(
        f"aime{year % 100}",
        f"competition mathematics, AIME {year} (30 questions)",
        "maths",
        published,
        {
            "boxed": lambda row: (
                f"{row['problem']}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
                "",
            )
        },
        lambda row: {"answer": str(row["answer"]), "kind": "latex"},
    )


def restore(inputs: Sequence[Sequence[Any]], assertions: str, name: str) -> list[list[Any]]:
    """Return inputs whose tuples, sets and complex numbers became lists and strings in JSON, as they were.

    The original assertions of the row show which type an argument has.

    Args:
        inputs: Argument lists, from JSON.
        assertions: Python source with calls of the function on literals.
        name: Of the function.
    """
    calls = (node for node in ast.walk(ast.parse(assertions)) if isinstance(node, ast.Call))
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id == name:
            try:
                example = [ast.literal_eval(argument) for argument in call.args]
            except ValueError:
                continue
            return [
                [_like(shape, value) for shape, value in zip(example, arguments, strict=True)]
                if len(arguments) == len(example)
                else list(arguments)
                for arguments in inputs
            ]
    return [list(arguments) for arguments in inputs]


def _like(example: Any, value: Any) -> Any:
    if isinstance(example, complex) and isinstance(value, str):
        return complex(value)
    if isinstance(example, dict) and isinstance(value, list):
        return set(value) if value else {}  # MBPP 115: a set or an empty dict
    if isinstance(example, dict) and isinstance(value, dict):
        shape = next(iter(example.values()), None)
        return {key: _like(shape, item) for key, item in value.items()}
    if isinstance(example, list | tuple | set | frozenset) and isinstance(value, list):
        shapes = list(example)
        items = [_like(_shape(shapes, k), item) for k, item in enumerate(value)]
        return items if isinstance(example, list) else type(example)(items)
    return value


def _shape(shapes: list[Any], k: int) -> Any:
    """Return the example for item k: the one at its place, or, in longer lists, the first that is a container."""
    if k < len(shapes) and isinstance(shapes[k], list | tuple | set | frozenset | dict):
        return shapes[k]
    return next((shape for shape in shapes if isinstance(shape, list | tuple | set | frozenset | dict)), None)


MORE_BENCHMARKS = (
    benchmark(
        "humaneval-plus",
        "HumanEval with more tests (164 problems)",
        "programs",
        PUBLISHED["humaneval_plus"],
        {
            "evalplus": lambda row: (
                "Please provide a self-contained Python script that solves the following problem in a markdown code "
                f"block:\n```\n{row['prompt'].strip()}\n```\n",
                "",
            )
        },
        lambda row: _evalplus_reference(row, body=True),
    ),
    benchmark(
        "mbpp-plus",
        "MBPP with more tests (378 problems)",
        "programs",
        PUBLISHED["mbpp_plus"],
        {
            "evalplus": lambda row: (
                "Please provide a self-contained Python script that solves the following problem in a markdown code "
                f"block:\n```\n{row['prompt'].strip()}\n```\n",
                "",
            )
        },
        lambda row: _evalplus_reference(row, body=False),
    ),
    _aime(2024, PUBLISHED["aime24"]),
    _aime(2025, PUBLISHED["aime25"]),
    benchmark(
        "sudoku-d1",
        "4x4 Sudoku of d1 (500 puzzles, 256 in d1's tables)",
        "sudoku",
        PUBLISHED["sudoku"],
        {
            "d1": lambda row: (
                f"{_SUDOKU_INSTRUCTION}\n\nSolve the following Sudoku puzzle: {row['Puzzle']}\n",
                "<reasoning>",
            )
        },
        lambda row: {"puzzle": row["Puzzle"]},
        subsets={
            "d1_seed42": Subset(PUBLISHED["sudoku"], lambda rows: seed42(rows, 256)),
            "full": Subset(PUBLISHED["sudoku"]),
        },
    ),
    benchmark(
        "countdown-d1",
        "Countdown of d1, three numbers (256 questions)",
        "expression",
        PUBLISHED["countdown"],
        {
            "d1": lambda row: (
                f"{_COUNTDOWN_INSTRUCTION}\n\nNumbers: {_numbers(row)}\nTarget: {int(row['output'])}",
                "<reasoning>",
            )
        },
        lambda row: {"numbers": _numbers(row), "target": int(row["output"])},
    ),
)
