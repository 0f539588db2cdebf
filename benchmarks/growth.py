"""Time and peak memory of a step as length, batch and vocabulary grow; each point is a process of its own.

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

from benchmarks.measure import Enough, exponent, table
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
    torch.set_num_threads(1)
    model = Proxy("growth", width=128, layers=2, vocabulary=vocabulary).model()
    wanted = requests(prompts(model, batch, PROMPT), policy("lc", t_token=0.8), length, BLOCK)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of building the model
    before, marks = _memory("VmRSS"), [time.process_time()]

    class Stop(Observer):
        def step(self, view: StepView) -> None:
            marks.append(time.process_time())
            if len(marks) > STEPS:
                raise Enough

    with suppress(Enough):
        list(run(model, wanted, batch_size=batch, observer=Stop()))
    steps = [after - start for start, after in pairwise(marks)]
    return {"seconds": statistics.median(steps[1:]), "megabytes": _memory("VmHWM") - before}


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(field + ":"))
    return int(kilobytes) / 1024


def report() -> None:
    if not Path("/proc/self/clear_refs").exists():
        print("*Growth left out: peak memory is read from Linux's /proc.*\n")
        return
    rows = []
    for name, sizes in GROWN.items():
        points = [_point(BASE | {name: size}) for size in sizes]
        lengths = [size + PROMPT for size in sizes] if name == "length" else list(sizes)
        time_, memory = [p["seconds"] for p in points], [p["megabytes"] for p in points]
        rows += [
            [f"{name} {size:,}", f"{1e3 * t:.1f}", f"{m:.0f}"] for size, t, m in zip(sizes, time_, memory)
        ]
        rows.append(
            [
                f"**{name}, exponent**",
                f"**{exponent(lengths, time_):.2f}**",
                f"**{exponent(lengths, memory):.2f}**",
            ]
        )
    base = ", ".join(f"{name} {size:,}" for name, size in BASE.items())
    print(f"d = 128, 2 layers, block {BLOCK}, prompt {PROMPT}, LC; the others stay at {base}\n")
    print(table(["", "ms per step (CPU)", "peak MB over the model"], rows))


def _point(sizes: dict[str, int]) -> dict[str, float]:
    arguments = [str(sizes[name]) for name in ("length", "batch", "vocabulary")]
    command = [sys.executable, "-m", "benchmarks.growth", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
