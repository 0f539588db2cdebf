"""Run the toy tasks through workers, and check that every row is stored exactly once."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.toy_runs import rows
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.folders.frames import read_batches
from twotemp.policies import parse

POLICIES = tuple(parse(spec) for spec in ("ar", "tlc", "tct:threshold=0.3"))
# The two tasks have the same question ids, so that only the chunk tells their samples apart.
PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), POLICIES, n=4, questions=6, trace=True)
WANTED = 2 * 6 * 4 * 3
UNIT = 16
# For a driver that is killed: long enough for it to be killed in the middle.
DRIVER_PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), (parse("ar"), parse("tct")), n=8, questions=6)


def run(drawer, out: Path):
    """Run PLAN and return its rows, after checking that each is stored exactly once."""
    with Evaluation(PLAN, out) as prepared:
        found = rows(prepared.run_with(drawer))
    written = (batch for file in out.glob("*/samples-*") for batch in read_batches(file))
    assert len(found) == WANTED == sum(map(len, written)), "wanted, distinct, stored"
    return found
