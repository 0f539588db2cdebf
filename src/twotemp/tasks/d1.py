"""The parts of d1's code base that the mathematics tasks use: its instruction, and its 300 questions of GSM8K."""

from __future__ import annotations

from collections.abc import Sequence


def instruction(gap: str = "", end: str = "") -> str:
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


def seed42(rows: int) -> Sequence[int]:
    """Return the 300 questions that d1's loader draws with its seed; numpy's legacy stream never changes."""
    import numpy as np

    return [int(row) for row in np.random.RandomState(42).choice(rows, 300, replace=False)]
