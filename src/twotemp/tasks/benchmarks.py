"""Published benchmarks: GSM8K, MATH-500, HumanEval and MBPP.

A prompt template returns the text of the user's turn and the beginning of the assistant's turn. The wording is that
of the projects that the templates are named after; line breaks and fences between the pieces are ours.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from twotemp.errors import UserError
from twotemp.tasks.base import Task
from twotemp.tasks.data import PUBLISHED, DataRow, Subset, benchmark

GSM8K, MATH500, HUMANEVAL, MBPP = (PUBLISHED[name] for name in ("gsm8k", "math500", "humaneval", "mbpp"))
MBPP_SECONDS = {123: 20.0}  # its reference solution takes 4 s by itself


def _d1_instruction(gap: str = "", end: str = "") -> str:
    """Return d1's instruction. Its tasks differ in whitespace, which matters for reproduction.

    Args:
        gap: What is before the first line break.
        end: What is at the end.
    """
    return (
        "You are a math expert. You will be given a question to solve. Solve it step by step. "
        f"Wrap the final answer in a \\boxed{{}}.{gap}\n"
        "Respond in the following format:\n"
        f"<reasoning>\nYour reasoning here\n</reasoning>\n<answer>\n\\boxed{{...}}\n</answer>{end}"
    )


def seed42(rows: int, count: int) -> Sequence[int]:
    """Return the questions that d1's loader draws with its seed; numpy's legacy stream never changes."""
    import numpy as np

    return [int(row) for row in np.random.RandomState(42).choice(rows, count, replace=False)]


# Of d1's training script, which differs from its evaluation.
_D1_TRAIN = (
    "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n\n\n"
)
_D1_GSM8K = _d1_instruction(gap=" ")
_D1_MATH = _d1_instruction(end='" \n')  # with a stray quote, space and line break


def _gsm8k_reference(row: DataRow) -> dict[str, str]:
    _, mark, gold = row["answer"].rpartition("####")
    if not mark:
        raise UserError(
            f"gsm8k: the answer to {row['question'][:60]!r} does not end in `#### number`; use the file as published"
        )
    return {"answer": gold.strip().replace(",", ""), "kind": "number"}


def _humaneval_justgrpo(row: DataRow) -> tuple[str, str]:
    return (
        "You are an expert Python programmer. Your task is to complete the implementation of a function named "
        f"`{row['entry_point']}`.\n\nHere is the function to complete:\n```python\n{row['prompt']}```\n"
    ), ""


def _humaneval_dream(row: DataRow) -> tuple[str, str]:
    return (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{row['prompt']}```\n"
    ), f"Here is the completed function:\n```python\n{row['prompt']}"


def mbpp_signature(row: DataRow) -> tuple[str, int]:
    """Return name and number of arguments of the function to write: defined by the code, called by the first test."""
    defined = {node.name for node in ast.walk(ast.parse(row["code"])) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(row["test_list"][0])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return node.func.id, len(node.args)
    raise UserError(
        f"MBPP {row['task_id']}: its first test calls nothing that its code defines; check the data file"
    )


def _mbpp_justgrpo(row: DataRow) -> tuple[str, str]:
    name, count = mbpp_signature(row)
    tests = "\n".join(row["test_list"])
    parameters = ", ".join(f"input_param_{i}" for i in range(1, count + 1))
    return (
        "You are an expert Python programmer. Your task is to complete the implementation of a function named "
        f"`{name}`.\n\n** TARGET FUNCTION **\n{row['text']}"
        f"\n\n** UNIT TESTS **\nYour code should pass unit tests like:\n{tests}"
        f"\n\nHere is the function to complete:\n```python\n"
        f'def {name}({parameters}):\n    """{row["text"]}\n    """\n```\n'
    ), ""


def _mbpp_dream(row: DataRow) -> tuple[str, str]:
    tests = "\n".join(row["test_list"])
    return (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"{row['text']}\n\n{tests}\n"
    ), "Here is the completed function:\n```python\n"


_TASKS = (
    benchmark(
        "gsm8k",
        "grade-school word problems (1,319 questions)",
        "maths",
        GSM8K,
        {
            "d1": lambda row: (f"{_D1_GSM8K}\n\n{row['question']}", "<reasoning>"),
            "justgrpo": lambda row: (row["question"], ""),
            "d1_train": lambda row: (_D1_TRAIN + row["question"], ""),
        },
        _gsm8k_reference,
        subsets={
            "full": Subset(GSM8K),
            "d1_seed42": Subset(GSM8K, lambda _: seed42(GSM8K.rows, 300)),
            "first300": Subset(GSM8K, lambda _: range(300)),
            "train": Subset(PUBLISHED["gsm8k_train"]),
        },
    ),
    benchmark(
        "math500",
        "competition mathematics (500 questions)",
        "maths",
        MATH500,
        {
            "d1": lambda row: (f"{_D1_MATH}\n\n{row['problem']}", "<reasoning>"),
            "justgrpo": lambda row: (
                f"{row['problem']}\n(Please put the final answer in \\boxed{{}} tag, i.e. $\\boxed{{answer here}}$)",
                "",
            ),
            "llada_oc": lambda row: (
                f"{row['problem']}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
                "",
            ),
            "d1_train": lambda row: (
                f"{_D1_TRAIN}You are a math expert. You will be given a question to solve. Solve it step by step. "
                f"Wrap the final answer in a \\boxed{{}}. \n\n{row['problem']}",
                "",
            ),
        },
        lambda row: {"answer": row["answer"], "kind": "latex"},
    ),
    benchmark(
        "humaneval",
        "complete a Python function (164 problems)",
        "programs",
        HUMANEVAL,
        {
            "justgrpo": _humaneval_justgrpo,
            "llada_oc": lambda row: (f"Complete the following python code:\n{row['prompt']}", ""),
            "dream_lmeval": _humaneval_dream,
        },
        lambda row: {"kind": "humaneval", **{name: row[name] for name in ("prompt", "test", "entry_point")}},
    ),
    benchmark(
        "mbpp",
        "write a small Python function (500 problems)",
        "programs",
        MBPP,
        {"justgrpo": _mbpp_justgrpo, "dream_lmeval": _mbpp_dream},
        lambda row: {
            "kind": "mbpp",
            "tests": list(row["test_list"]),
            "setup": row["test_setup_code"],
            "timeout": MBPP_SECONDS.get(row["task_id"]),
        },
    ),
)
# Tasks whose problems are published files: local, or downloaded.
BENCHMARKS: dict[str, Task] = {task.name: task for task in _TASKS}
