"""Measure time and peak memory of a step as length, batch and vocabulary grow, each point in its own process.

python -m benchmarks.growth LENGTH BATCH VOCABULARY      one point, as JSON
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.measure import EnoughSteps, exponent, table
from benchmarks.proxies import Proxy, prompts, requests
from twotemp.engine import Observer, StepView, run
from twotemp.policies import policy

PROMPT, BLOCK, STEPS = 32, 32, 6
BASE = {"length": 256, "batch": 4, "vocabulary": 32_000}
GROWN = {
    "length": (64, 128, 256, 512, 1024),
    "batch": (1, 4, 16, 64),
    "vocabulary": (8_000, 32_000, 126_464),
}


def measure(length: int, batch: int, vocabulary: int) -> dict[str, float]:
    """Return the median seconds of a step and the peak megabytes above the model."""
    torch.set_num_threads(1)
    model = Proxy("growth", width=128, layers=2, vocabulary=vocabulary).model()
    wanted = requests(prompts(model, batch, PROMPT), policy("lc", t_token=0.8), length, BLOCK)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which building the model has set
    before, marks = _memory("VmRSS"), [time.process_time()]

    class StoppingObserver(Observer):
        def step(self, view: StepView) -> None:
            marks.append(time.process_time())
            if len(marks) > STEPS:
                raise EnoughSteps

    with suppress(EnoughSteps):
        list(run(model, wanted, batch_size=batch, observer=StoppingObserver()))
    steps = [after - start for start, after in pairwise(marks)]
    return {"seconds": statistics.median(steps[1:]), "megabytes": _memory("VmHWM") - before}


def _memory(field: str) -> float:
    """Return a field of /proc/self/status in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(field + ":"))
    return int(kilobytes) / 1024


def report() -> None:
    """Print time and memory for every size, and their exponents."""
    if not Path("/proc/self/clear_refs").exists():
        print("*Growth is not measured: it needs Linux, whose /proc has the peak memory.*\n")
        return
    rows = []
    for name, sizes in GROWN.items():
        points = [_point(BASE | {name: size}) for size in sizes]
        lengths = [size + PROMPT for size in sizes] if name == "length" else list(sizes)
        seconds, megabytes = [p["seconds"] for p in points], [p["megabytes"] for p in points]
        rows += [
            [f"{name} {size:,}", f"{1e3 * t:.1f}", f"{m:.0f}"]
            for size, t, m in zip(sizes, seconds, megabytes)
        ]
        rows.append(
            [
                f"**{name}, exponent**",
                f"**{exponent(lengths, seconds):.2f}**",
                f"**{exponent(lengths, megabytes):.2f}**",
            ]
        )
    base = ", ".join(f"{name} {size:,}" for name, size in BASE.items())
    print(f"d = 128, 2 layers, block {BLOCK}, prompt {PROMPT}, LC; the sizes that do not vary are {base}\n")
    print(table(["", "ms per step (CPU)", "peak MB above the model"], rows))


def _point(sizes: dict[str, int]) -> dict[str, float]:
    """Run `measure` in a new process."""
    arguments = [str(sizes[name]) for name in ("length", "batch", "vocabulary")]
    command = [sys.executable, "-m", "benchmarks.growth", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
