"""MBPP: write a small Python function from one sentence and three tests; graded by running the tests."""

from __future__ import annotations

import ast

from twotemp.errors import UserError
from twotemp.tasks.data import DataRow, PromptTemplate, PublishedFile, benchmark

TEST = PublishedFile(
    hub="google-research-datasets/mbpp",
    file="full/test-00000-of-00001.parquet",
    fields=("task_id", "text", "code", "test_list", "test_setup_code", "challenge_test_list"),
    rows=500,
    sha256="9bcaa67d5c2943e95eb9d9127e844f0551a77ac910c664aa45a4ebd75d239bd9",
    rows_sha256="7f200b2e677f214b2a6f2cb64cba66d208e86b6f2af5049aca2cceaed866d1df",
    key="task_id",
    keys=range(11, 511),
)

TIMEOUTS = {123: 20.0}  # seconds; its reference solution takes 4 by itself


def signature(row: DataRow) -> tuple[str, int]:
    """Return name and number of arguments of the function to write: defined by the code, called by the first test."""
    defined = {node.name for node in ast.walk(ast.parse(row["code"])) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(row["test_list"][0])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return node.func.id, len(node.args)
    raise UserError(
        f"MBPP {row['task_id']}: its first test calls nothing that its code defines; check the data file"
    )


def _justgrpo(row: DataRow) -> tuple[str, str]:
    name, count = signature(row)
    tests = "\n".join(row["test_list"])
    parameters = ", ".join(f"input_param_{i}" for i in range(1, count + 1))
    return (
        "You are an expert Python programmer. Your task is to complete the implementation of a function named "
        f"`{name}`.\n\n** TARGET FUNCTION **\n{row['text']}"
        f"\n\n** UNIT TESTS **\nYour code should pass unit tests like:\n{tests}"
        f"\n\nHere is the function to complete:\n```python\n"
        f'def {name}({parameters}):\n    """{row["text"]}\n    """\n```\n'
    ), ""


def _dream_lmeval(row: DataRow) -> tuple[str, str]:
    tests = "\n".join(row["test_list"])
    return (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"{row['text']}\n\n{tests}\n"
    ), "Here is the completed function:\n```python\n"


# The text of the user's turn, and the beginning of the assistant's turn. The wording is that of the projects
# named; line breaks and fences between the pieces are ours.
PROMPTS: dict[str, PromptTemplate] = {"justgrpo": _justgrpo, "dream_lmeval": _dream_lmeval}


def _reference(row: DataRow) -> dict[str, object]:
    return {
        "kind": "mbpp",
        "tests": list(row["test_list"]),
        "setup": row["test_setup_code"],
        "timeout": TIMEOUTS.get(row["task_id"]),
    }


TASK = benchmark(
    "mbpp", "write a small Python function (500 problems)", "programs", TEST, PROMPTS, _reference
)
