"""Write evaluation runs of any size without a model: hostile texts, every kind of verdict, traces if wanted."""

from __future__ import annotations

import random
from pathlib import Path

from twotemp.policies import parse
from twotemp.records import Grade, Sample, Trace
from twotemp.store import Config, Store

POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>\u2028\u202e"
_WORDS = "so we add the first two numbers and then divide by four which leaves apples pears each day".split()


def write_run(
    folder: Path,
    *,
    questions: int,
    n: int,
    words: int,
    policies: tuple[str, ...] = POLICIES,
    trace: bool = False,
) -> Path:
    """Write a run of the task `countdown-3`: of policy p, each later one solves more questions."""
    store = Store.create(folder)
    for number, name in enumerate(policies):
        policy = parse(name)
        config = Config("countdown-3", "data", "", None, "tiny", "weights", policy, words, None, 0)
        with store.cell(name, config).writer() as writer:
            for first in range(0, questions, 50):  # a batch of the store
                samples, grades = [], []
                for question in range(first, min(first + 50, questions)):
                    draws = random.Random(f"{name}/{question}")
                    rate = (number + 1) / (len(policies) + 1) if question % 5 else 0.02 * number
                    for index in range(n):
                        samples.append(_sample(policy, question, index, words, draws, trace))
                        grades.append((samples[-1].key, _grade(draws, rate, question, index)))
                writer.samples(samples)
                writer.grades("countdown 1", grades)
    return folder


def _sample(policy, question: int, index: int, words: int, draws: random.Random, trace: bool) -> Sample:
    text = " ".join(draws.choices(_WORDS, k=words)) + f" = {draws.randint(1, 9)}"
    if index == 0:
        text += HOSTILE
    steps = tuple(draws.sample(range(words), words)) if trace else (0,)
    return Sample(
        request=f"countdown-3/test/{question}",
        index=index,
        seed=0,
        policy=policy,
        prompt=(0, 5),
        positions=tuple(range(2, 2 + len(steps))),
        tokens=tuple(draws.randint(5, 160) for _ in steps),
        nfe=words,
        forwards=words,
        processed=words,
        seconds=0.1,
        finish="length",
        text=text,
        trace=Trace(steps, (0.5,) * words, (0.7,) * words) if trace else None,
    )


def _grade(draws: random.Random, rate: float, question: int, index: int) -> Grade:
    if question == 7 and index == 1:
        return Grade("ungraded", detail="the grader failed")
    if question == 8 and index == 1:
        return Grade("timeout", detail="took longer than 10 s")
    if draws.random() < rate:
        return Grade("passed", str(draws.randint(1, 4)), "chain")
    return Grade("failed", None, detail=f"wrong step {HOSTILE}")
