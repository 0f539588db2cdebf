"""The paper's comparison on the embedded model, as data: `twotemp demo` draws a part of it, `make paper` all.

How the numbers were chosen, on validation problems, is in docs/LOG.md.
"""

from __future__ import annotations

from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.policies import parse
from twotemp.tasks import SOURCES

# Semi-autoregressive, as in the paper, whose long answers have eight blocks.
BLOCKS_PER_ANSWER = 2
# Rows in the same state are computed once, and policies that are asked the same question share most of their states:
# one batch of all their rows takes half the time of batches of 64.
ROWS = 512
THRESHOLD = 0.9  # chosen for TCT, and CT has the same
T_POS = {"countdown-4": (0.5, 0.15), "words-3": (1, 0.3), "programs-2": (5, 0.15)}  # of TLC and of TCT


def policies(task: str) -> dict[str, str]:
    """By name, each as the command line spells it."""
    of_tlc, of_tct = T_POS[task]
    return {
        "ar": "ar",
        "lc": "lc",
        "tlc": f"tlc:t_pos={of_tlc}",
        "ct": f"ct:threshold={THRESHOLD}",
        "tct": f"tct:t_pos={of_tct},threshold={THRESHOLD}",
    }


def block(task: str) -> int:
    """Tokens of a block."""
    return SOURCES[task].length // BLOCKS_PER_ANSWER


def plan(task: str, *, questions: int, n: int) -> Plan:
    """All policies on the first test problems of a task."""
    chosen = tuple(parse(spec) for spec in policies(task).values())
    return Plan((TaskChoice(task),), chosen, n=n, questions=questions, block=block(task))
