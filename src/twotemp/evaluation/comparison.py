"""The paper's comparison on the embedded model, as data: `twotemp demo` draws a part of it, `make paper` all of it.

docs/log.md describes how the numbers were chosen, on validation problems.
"""

from __future__ import annotations

from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.policies import parse
from twotemp.tasks import SOURCES

# Semi-autoregressive, as in the paper, whose long answers have eight blocks.
BLOCKS_PER_ANSWER = 2
# Rows in the same state are computed once, and policies that answer the same question share most of their states:
# one batch with the rows of all policies takes half the time of batches of 64.
ROWS = 512
THRESHOLD = 0.9  # chosen for TCT and used for CT as well
T_POS = {"countdown-4": (0.5, 0.15), "words-3": (1, 0.3), "programs-2": (5, 0.15)}  # TLC, TCT


def policies(task: str) -> dict[str, str]:
    """Return the policies of a task by name, as the command line spells them."""
    t_pos_tlc, t_pos_tct = T_POS[task]
    return {
        "ar": "ar",
        "lc": "lc",
        "tlc": f"tlc:t_pos={t_pos_tlc}",
        "ct": f"ct:threshold={THRESHOLD}",
        "tct": f"tct:t_pos={t_pos_tct},threshold={THRESHOLD}",
    }


def block(task: str) -> int:
    """Return the block length in tokens."""
    return SOURCES[task].length // BLOCKS_PER_ANSWER


def plan(task: str, *, questions: int, n: int) -> Plan:
    """Return the plan with all policies on the first `questions` test problems of a task."""
    parsed = tuple(parse(spec) for spec in policies(task).values())
    return Plan((TaskChoice(task),), parsed, n=n, questions=questions, block=block(task))
