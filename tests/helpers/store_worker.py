"""A substitute for an evaluation: draw invented samples that a store lacks, and grade them.

    python store_worker.py RUN N [SHARD OF]

A sample depends only on its key, as in the engine, so an interrupted run must end with the same rows.
"""

from __future__ import annotations

import random
import sys
import time

from twotemp.records import Grade, Policy, Sample, Trace
from twotemp.store import Cell, Config, Store

QUESTIONS = [f"toy/{i}" for i in range(6)]
POLICY = Policy("tct", "confidence", "threshold", t_pos=0.1, threshold=0.6)
CONFIG = Config("toy", "d1g3st", "plain", None, "tiny", "f1nger", POLICY, 8, 4, 7, version="test")
GRADER = "toy-grader 1.0"


def draw(question: str, index: int, config: Config = CONFIG) -> Sample:
    rng = random.Random(f"{question} {index} {config.seed}")
    tokens = tuple(rng.randrange(1000) for _ in range(config.length))
    steps = tuple(range(config.length))
    trace = Trace(steps, tuple(rng.random() for _ in steps), tuple(rng.random() for _ in steps))
    nfe = rng.randrange(1, 9)
    text = f'{question}:{index} ","prompt":[' + "".join(rng.choices('abc\n\u2028é{}\\"', k=200))
    places = tuple(range(2, 2 + config.length))
    return Sample(
        question, index, config.seed, config.policy, (1, 2), places, tokens, nfe, nfe + 1, 80,
        time.perf_counter(), "length", text, trace,
    )  # fmt: skip


def judge(sample: Sample) -> Grade:
    return Grade("passed" if sample.tokens[0] % 3 == 0 else "failed", str(sample.tokens[0] % 5), "toy")


def evaluate(cell: Cell, n: int, shard: int = 0, of: int = 1, batch: int = 5) -> None:
    with cell.writer() as writer:
        todo = cell.missing(
            QUESTIONS[shard::of], range(n)
        )  # split by question, because the list of missing keys changes while others write
        for start in range(0, len(todo), batch):
            samples = [draw(*key, cell.config) for key in todo[start : start + batch]]
            writer.samples(samples)
            writer.grades(GRADER, [(s.key, judge(s)) for s in samples])
        late = list(cell.pending(GRADER)) if of == 1 else []
        writer.grades(GRADER, [(s.key, judge(s)) for s in late])


if __name__ == "__main__":
    run, count, *rest = sys.argv[1:]
    cell = Store.create(run).cell("toy.tct", CONFIG)
    print("ready", flush=True)
    evaluate(cell, int(count), *map(int, rest))
