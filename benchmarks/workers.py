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
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import table
from twotemp import graders, tasks
from twotemp.evaluation import Drawer, Evaluation, InProcess, Plan, TaskChoice
from twotemp.executors import Loading, Processes, Supervisor
from twotemp.executors.ray_actors import LOCAL, RayActors
from twotemp.models.load import load as load_model
from twotemp.policies import parse
from twotemp.records import Grade, Problem, Sample
from twotemp.tasks import ProblemSet, Task

LENGTH, PROMPT = 64, 64  # tokens
QUESTIONS, N = 60, 64
POLICIES = ("ar", "lc", "random", "tlc", "ct", "tct")
MIX = {"countdown-4": 3, "words-2": 1, "programs-1": 2}  # questions of each task


class Free:
    """A drawer that costs almost nothing, with samples of a usual size."""

    name, fingerprint = "free", "0"

    def __init__(self, stepped: Callable[[], None] = lambda: None) -> None:
        self._stepped = stepped

    def encode(self, prompt: Any, *, prefill: str = "", chat: bool | None = None) -> list[int]:
        return list(range(PROMPT))

    def draw(self, chunks: Any) -> Iterator[tuple[Any, Sample]]:
        positions, tokens = tuple(range(PROMPT, PROMPT + LENGTH)), tuple(range(1000, 1000 + LENGTH))
        costs, text = (LENGTH, LENGTH, LENGTH * PROMPT, 0.1), "words of an answer " * 9
        for name, requests in chunks:
            for r in requests:
                self._stepped()
                row = (r.id, r.index, r.seed, r.policy, r.prompt, positions, tokens, *costs)
                yield name, Sample(*row, finish="length", text=f"{text}{r.index}")


def free(index: int, stepped: Callable[[], None]) -> Drawer:
    return Free(stepped)


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


def rate(drawer: Drawer, plan: Plan) -> float:
    """Return the samples per second of an evaluation that draws, stores and grades; loading is not included."""
    drawer.name  # noqa: B018 - waits until the workers have loaded
    with tempfile.TemporaryDirectory() as folder, Evaluation(plan, Path(folder) / "run") as evaluation:
        start = time.perf_counter()
        evaluation.run_with(drawer)
        return evaluation.samples / (time.perf_counter() - start)


def driver() -> None:
    """Print the throughput with a free model, with and without workers."""
    tasks.TASKS["free"] = Task("free", "nothing", "free", LENGTH, load)
    graders.GRADERS["free"] = FreeGrader
    plan = Plan((TaskChoice("free"),), tuple(map(parse, POLICIES)), n=N)
    rows = [["in this process", f"{rate(Free(), plan):,.0f}"]]
    for count in (1, 2):
        with Supervisor(Processes(free), count) as drawer:
            rows.append([f"{count} worker{'s' * (count > 1)}", f"{rate(drawer, plan):,.0f}"])
    print(
        f"{QUESTIONS * N * len(POLICIES):,} samples of {LENGTH} tokens, without traces, with a free grader\n"
    )
    print(table(["drawn", "samples/s"], rows))


def workers() -> None:
    """Print the throughput of the embedded model with several numbers of workers."""
    plan = Plan(
        tuple(TaskChoice(name, questions=questions) for name, questions in MIX.items()),
        tuple(map(parse, POLICIES)),
        n=N,
    )
    driver()
    rates: dict[str, list[float]] = {}
    local, idle, loaded = "in this process", "2 workers", "2 workers next to a busy loop"
    cases: dict[str, Callable[[], AbstractContextManager[Drawer]]] = {
        local: lambda: nullcontext(InProcess(load_model("tiny"))),
        "1 worker": lambda: Supervisor(Processes(Loading("tiny")), 1),
        idle: lambda: Supervisor(Processes(Loading("tiny")), 2),
        loaded: lambda: Supervisor(Processes(Loading("tiny")), 2),
    }
    if find_spec("ray"):
        cases["1 Ray actor"] = lambda: Supervisor(
            RayActors(Loading("tiny"), address=LOCAL, device="cpu", reachable=True), 1
        )
    for _ in range(3):
        for name, make in cases.items():
            with make() as drawer, busy() if name == loaded else nullcontext():
                rates.setdefault(name, []).append(rate(drawer, plan))
                print(f"{name}: {rates[name][-1]:.1f} samples/s", file=sys.stderr, flush=True)
    best = {name: max(values) for name, values in rates.items()}
    rows = [[name, f"{best[name]:.0f}", f"{min(values):.0f}"] for name, values in rates.items()]
    print("\nSix policies on three tasks, one thread per worker; the best and the worst of 3 rounds\n")
    print(table(["", "samples/s", "worst"], rows))
    ratios = [
        ["2 workers / 1 worker (at least 1.8)", best[idle] / best["1 worker"]],
        ["next to a busy loop / idle (at least 0.6)", best[loaded] / best[idle]],
    ]
    if "1 Ray actor" in best:
        ratios.append(
            ["time with a Ray actor / in this process (at most 1.15)", best[local] / best["1 Ray actor"]]
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
