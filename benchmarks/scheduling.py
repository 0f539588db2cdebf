"""Compare refilled slots with static batches on the embedded model, and measure the cost of timing."""

from __future__ import annotations

import timeit

import torch

from benchmarks.measure import Contender, Spread, interleave, ratio, table
from twotemp import tasks
from twotemp.engine import Observer, Profiler, run
from twotemp.engine.batch import Batch
from twotemp.engine.scheduler import widths
from twotemp.models.base import LanguageModel
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Request
from twotemp.sampling.requests import PlannedSample, problem_requests

SAMPLES = 64
CASES = (
    ("words-2", 1, 16),
    ("words-2", 1, 64),
    ("words-3", 1, 16),
    ("words-2", 20, 64),
)  # task, prompts, slots
CHOSEN = policy("tct", t_token=0.8)
LAPS = 8  # laps that a profiler records in one step, including those of hooks inside the model


def report(seconds: float) -> None:
    """Print the table of all cases and the cost of a lap."""
    model = load("tiny", device="cpu")
    rows = [_case(model, *case, seconds) for case in CASES]
    header = [
        "tct",
        "slots",
        "forwards",
        "slot use",
        "samples/s",
        "static / refilled",
        "same, in row-steps",
        "plain / refilled",
    ]
    print(table(header, rows))
    lap = timeit.timeit(lambda: Profiler().lap("draw"), number=10_000) / 10_000
    print(f"Cost of timing: {LAPS} laps per step, {1e6 * lap:.1f} µs each.\n")


def _case(model: LanguageModel, name: str, count: int, slots: int, seconds: float) -> list[str]:
    """Time one case and return its line of the table.

    Args:
        model: the model.
        name: the task.
        count: the number of prompts, each with SAMPLES samples.
        slots: the batch size.
        seconds: time for the case.
    """
    task = tasks.get(name)
    problems = task.problems().problems[:count]
    asks = (PlannedSample(problem, CHOSEN, index) for problem in problems for index in range(SAMPLES))
    wanted = list(problem_requests(model, asks, length=task.length))
    profiler = Profiler()
    forwards = {
        (s.request, s.index): s.forwards for s in run(model, wanted, batch_size=slots, observer=profiler)
    }
    steps = [forwards[request.id, request.index] for request in wanted]
    slowest = sum(max(steps[at : at + slots]) * slots for at in range(0, len(steps), slots))

    def size(small: bool) -> list[Request]:
        return wanted[:slots] if small else wanted

    contenders: dict[str, Contender] = {
        "refilled": lambda small: len(list(run(model, size(small), batch_size=slots))),
        "static": lambda small: static(model, size(small), slots, shared=True),
        "plain": lambda small: static(model, size(small), slots, shared=False),
    }
    times = interleave(contenders, seconds)
    ours = times["refilled"].cpu
    return [
        f"{name}, {count} x {SAMPLES}",
        str(slots),
        f"{min(steps)} to {max(steps)}",
        f"{100 * profiler.row_steps / (profiler.steps * slots):.1f} %",
        f"{len(wanted) / Spread(tuple(ours)).median:.0f}",
        ratio(times["static"].cpu, ours).text(2),
        f"{slowest / sum(steps):.2f}",
        ratio(times["plain"].cpu, ours).text(2),
    ]


@torch.inference_mode()
def static(model: LanguageModel, wanted: list[Request], slots: int, *, shared: bool) -> int:
    """Sample in static batches, whose finished rows stay until the slowest row has finished.

    Args:
        model: the model.
        wanted: the requests.
        slots: the batch size.
        shared: compute rows in the same state once, as the engine does; otherwise compute every row.

    Returns:
        The number of samples.
    """
    finished = 0
    for first in range(0, len(wanted), slots):
        members = wanted[first : first + slots]
        batch, idle = Batch(model, members, *widths(members, model)), Observer()
        batch.rows.shared_prompts &= shared
        while len(batch.commit(batch.run(idle))[0]) < len(members):
            pass
        finished += len(list(batch.samples(range(len(members)))))
    return finished
