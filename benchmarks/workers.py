"""Measure the throughput of the driver and the store with a free model, and the gain of a second worker.

python -m benchmarks --only driver      samples/s through the driver, with and without workers
python -m benchmarks --only workers     also a mix of tasks in this process, with 1 and 2 workers, next to a busy
                                        loop and, if Ray is installed, with one actor
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import table
from twotemp import graders, tasks
from twotemp.backends import Backend, Handle
from twotemp.backends.local import LocalBackend
from twotemp.backends.pool import WorkerPool
from twotemp.backends.process import ProcessTransport
from twotemp.backends.ray import LOCAL, RayTransport
from twotemp.backends.worker import ModelLoader
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.models.load import load as load_model
from twotemp.models.load import load_text
from twotemp.policies import parse
from twotemp.records import Grade, Problem, Request, Sample
from twotemp.tasks import ProblemSet, Task

LENGTH, PROMPT = 64, 64  # tokens
QUESTIONS, N = 60, 64
POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")
MIX = {"countdown-4": 3, "words-2": 1, "programs-1": 2}  # questions of each task


class FreeText:
    """The text side of a model that does not exist."""

    name, fingerprint, tokenizer = "free", "0", None
    vocab_size, mask_id, eos_ids, max_length, block_size = 10**6, -1, (), None, None

    def encode(self, prompt: Any, *, prefill: str = "", chat: bool | None = None) -> list[int]:
        return list(range(PROMPT))


class FreeBackend:
    """A backend that costs next to nothing, with samples of a usual size."""

    name, fingerprint, workers, text = "free", "0", 1, FreeText()

    def sample(self, requests: Iterable[Request]) -> Iterator[Sample]:
        return map(free_sample, requests)


def free_sample(r: Request) -> Sample:
    positions, tokens = tuple(range(PROMPT, PROMPT + LENGTH)), tuple(range(1000, 1000 + LENGTH))
    costs, text = (LENGTH, LENGTH, LENGTH * PROMPT, 0.1), "some few words " * 12
    row = (r.id, r.index, r.seed, r.policy, r.prompt, positions, tokens, *costs)
    return Sample(*row, finish="length", text=f"{text}{r.index}", tag=r.tag)


class FreeService:
    """Stands in for a worker's service: requests are answered as they arrive."""

    text, load = FreeText(), 0

    def __init__(self, place: int, on_turn: Callable[[], None]) -> None:
        self._on_turn = on_turn

    def __enter__(self) -> FreeService:
        return self

    def submit_handles(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.deliver(free_sample(handle.request))
        self._on_turn()

    def cancel(self, handle: Handle) -> None:
        pass


class FreeGrader:
    """A grader that passes everything."""

    name = "free 1"

    def grade(self, items: Iterable[tuple[Problem, str]]) -> Iterator[Grade]:
        return (Grade("passed", "1", "all") for _ in items)

    def same(self, problem: Problem, a: str, b: str) -> bool:
        return a == b

    def close(self) -> None:
        pass


def load(data: Path | None = None, prompt: str | None = None, subset: str | None = None) -> ProblemSet:
    """Return the problems of the free task."""
    problems = tuple(Problem(f"free/{i}", "free", f"question {i}") for i in range(QUESTIONS))
    return ProblemSet(problems, "free", "generated")


def rate(backend: Backend, plan: Plan) -> float:
    """Samples per second of an evaluation, drawn, stored and graded; loading is not in it."""
    backend.name  # noqa: B018 - waits until the model is loaded
    with tempfile.TemporaryDirectory() as folder, Evaluation(plan, Path(folder) / "run") as evaluation:
        began = time.perf_counter()
        evaluation.run_with(backend)
        return evaluation.samples / (time.perf_counter() - began)


def driver() -> None:
    """Print the throughput with a free model, with and without workers."""
    tasks.TASKS["free"] = Task("free", "nothing", "free", LENGTH, load)
    graders.GRADERS["free"] = FreeGrader
    plan = Plan((TaskChoice("free"),), tuple(map(parse, POLICIES)), n=N)
    rows = [["in this process", f"{rate(FreeBackend(), plan):,.0f}"]]
    for count in (1, 2):
        with WorkerPool(ProcessTransport(FreeService), count, FreeText()) as backend:
            rows.append([f"{count} worker{'s' * (count > 1)}", f"{rate(backend, plan):,.0f}"])
    print(f"{QUESTIONS * N * len(POLICIES):,} samples of {LENGTH} tokens, no trace, graded for nothing\n")
    print(table(["drawn", "samples/s"], rows))


def workers() -> None:
    """Print the throughput of the embedded model with several numbers of workers."""
    plan = Plan(
        tuple(TaskChoice(name, questions=questions) for name, questions in MIX.items()),
        tuple(map(parse, POLICIES)),
        n=N,
    )
    driver()
    found: dict[str, list[float]] = {}
    here, idle, beside = "in this process", "2 workers", "2 workers beside a busy loop"
    loader, text = ModelLoader("tiny"), load_text("tiny")
    cases: dict[str, Callable[[], AbstractContextManager[Backend]]] = {
        here: lambda: nullcontext(LocalBackend(load_model("tiny"))),
        "1 worker": lambda: WorkerPool(ProcessTransport(loader), 1, text),
        idle: lambda: WorkerPool(ProcessTransport(loader), 2, text),
        beside: lambda: WorkerPool(ProcessTransport(loader), 2, text),
    }
    if find_spec("ray"):
        cases["1 Ray actor"] = lambda: WorkerPool(
            RayTransport(loader, address=LOCAL, device="cpu", reachable=True), 1, text
        )
    for _ in range(3):
        for name, make in cases.items():
            with make() as backend, busy() if name == beside else nullcontext():
                found.setdefault(name, []).append(rate(backend, plan))
                print(f"{name}: {found[name][-1]:.1f} samples/s", file=sys.stderr, flush=True)
    best = {name: max(rates) for name, rates in found.items()}
    rows = [[name, f"{best[name]:.0f}", f"{min(rates):.0f}"] for name, rates in found.items()]
    print("\nSix policies on three tasks, one thread each; the best and the worst of 3 rounds\n")
    print(table(["", "samples/s", "worst"], rows))
    ratios = [
        ["2 workers / 1 worker (at least 1.8)", best[idle] / best["1 worker"]],
        ["next to a busy loop / idle (at least 0.6)", best[beside] / best[idle]],
    ]
    if "1 Ray actor" in best:
        ratios.append(
            ["time with a Ray actor / in this process (at most 1.15)", best[here] / best["1 Ray actor"]]
        )
    print()
    print(table(["", "ratio"], [[name, f"{ratio:.2f}"] for name, ratio in ratios]))


@contextmanager
def busy() -> Iterator[None]:
    """Run another program that keeps a core busy."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()
