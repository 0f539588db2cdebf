"""Run the toy tasks through workers, and check that every row is stored exactly once."""

from __future__ import annotations

import queue
from pathlib import Path

from tests.helpers.toy_runs import rows
from twotemp.backends.supervisor import Supervisor
from twotemp.engine import RowStep
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.folders.files import read_batches
from twotemp.policies import parse
from twotemp.records import Request

POLICIES = tuple(parse(spec) for spec in ("ar", "tlc", "tct:threshold=0.3"))
# The two tasks have the same ids: only the tag of a sample says whose it is.
PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), POLICIES, n=4, questions=6, trace=True)
WANTED = 2 * 6 * 4 * 3
UNIT = 16
# For a driver that is killed: long enough for it to be killed in the middle.
DRIVER_PLAN = Plan((TaskChoice("toy"), TaskChoice("toy-b")), (parse("ar"), parse("tct")), n=8, questions=6)


def run(backend, out: Path):
    """PLAN's rows, each on the disk once."""
    with Evaluation(PLAN, out) as prepared:
        found = rows(prepared.run_with(backend))
    written = (batch for file in out.glob("*/samples-*") for batch in read_batches(file))
    assert len(found) == WANTED == sum(map(len, written)), "wanted, distinct, stored"
    return found


def requests(count: int, length: int = 30) -> list[Request]:
    return [Request("q", (1, 2), parse("ar"), length=length, index=index) for index in range(count)]


def submit(service: Supervisor, wanted, **options):
    events: queue.Queue = queue.Queue()
    handles = [service.submit(r, lambda event, r=r: events.put((r.index, event)), **options) for r in wanted]
    return handles, events


def collect(events: queue.Queue, count: int, seconds: float = 60) -> dict[int, list]:
    """The events of each row until all have finished."""
    found: dict[int, list] = {}
    finished = 0
    while finished < count:
        index, event = events.get(timeout=seconds)
        found.setdefault(index, []).append(event)
        finished += not isinstance(event, RowStep)
    return found
