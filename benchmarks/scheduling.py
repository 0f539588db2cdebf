"""Refilled slots beside static batches, on the embedded model; and what keeping time costs."""

from __future__ import annotations

import timeit
from functools import partial

import torch

from benchmarks.measure import Spread, interleave, ratio, table
from twotemp import tasks
from twotemp.engine import Ledger, run
from twotemp.engine.batch import Batch
from twotemp.models.base import Denoiser
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Request
from twotemp.sampling import make_requests

SAMPLES, PROMPTS = 64, 20
TASK = "words-3"
CHOSEN = policy("tct", t_token=0.8)
LAPS = 7  # of a ledger in one step, those inside the head included


def report(seconds: float) -> None:
    model, task = load("tiny", device="cpu"), tasks.get(TASK)
    texts = [problem.prompt for problem in task.problems().problems[:PROMPTS]]
    rows = []
    for count, slots in ((1, 16), (PROMPTS, 64)):
        wanted = make_requests(model, texts[:count], CHOSEN, SAMPLES, task.length, None, 0)
        ledger = Ledger()
        samples = list(run(model, wanted, batch_size=slots, ledger=ledger))
        used = ledger.row_steps / (ledger.steps * slots)
        steps = [s.forwards for s in samples]
        times = interleave(
            {
                "refilled": partial(refilled, model, wanted, slots),
                "static": partial(static, model, wanted, slots),
            },
            seconds,
        )
        ours, plain = times["refilled"], times["static"]
        rows.append(
            [
                f"{count} prompt{'s' * (count > 1)} x {SAMPLES}",
                str(slots),
                f"{min(steps)} to {max(steps)}",
                f"{100 * used:.1f} %",
                f"{len(wanted) / Spread(tuple(ours.cpu)).median:.0f}",
                f"{len(wanted) / Spread(tuple(plain.cpu)).median:.0f}",
                ratio(plain.cpu, ours.cpu).text(2),
            ]
        )
    header = ["tct", "slots", "forwards", "slot use", "samples/s", "static, samples/s", "gain"]
    print(f"`tiny` on {TASK}, length {task.length}\n\n" + table(header, rows))
    lap = timeit.timeit(lambda: Ledger().lap("draw"), number=10_000) / 10_000
    step = Spread(tuple(ours.cpu)).median / ledger.steps
    print(
        f"Keeping time: {LAPS} laps a step, {1e6 * lap:.1f} µs each, {100 * LAPS * lap / step:.3f} % of it.\n"
    )


def refilled(model: Denoiser, wanted: list[Request], slots: int) -> int:
    return len(list(run(model, wanted, batch_size=slots)))


@torch.inference_mode()
def static(model: Denoiser, wanted: list[Request], slots: int) -> int:
    """As a plain batched sampler works: a batch is over when its slowest row is, and finished rows stay in it."""
    finished = 0
    for first in range(0, len(wanted), slots):
        some = wanted[first : first + slots]
        batch, ledger = Batch(model, some, some, None), Ledger()
        while len(batch.step(ledger)) < len(some):
            pass
        finished += len(list(batch.samples(range(len(some)))))
    return finished
