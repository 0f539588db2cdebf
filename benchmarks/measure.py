"""Time contenders in turn, and format medians with their range, exponents and tables."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

import torch

MAX_ROUNDS = 5


class EnoughSteps(Exception):
    """Raised to end a run that has been measured for enough steps."""


@dataclass
class Times:
    """Seconds of one contender and what it counted in them (steps, forwards, samples), one entry per round."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    @property
    def each(self) -> float:
        """Return the CPU seconds per counted unit.

        The mean is over all rounds, because the number of steps of an adaptive policy varies by chance.
        """
        return sum(self.cpu) / sum(self.count)


@dataclass(frozen=True)
class Spread:
    """Values of several rounds, shown as their median and range."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, digits: int) -> str:
        """Format as `median (lowest to highest)`."""
        low, high = min(self.values), max(self.values)
        median = f"{self.median:.{digits}f}"
        return median if len(self.values) == 1 else f"{median} ({low:.{digits}f} to {high:.{digits}f})"


# Does its work, or a small piece of it if the argument is true; returns the number of steps (or of what it counts).
Contender = Callable[[bool], int]


def interleave(contenders: Mapping[str, Contender], seconds: float) -> dict[str, Times]:
    """Run every contender once per round and return their times.

    Taking turns exposes all contenders to the same load of the machine. Each warms up on a small piece of its work.
    Then there is at least one round, and more as long as the next one should end within `seconds`. Every round starts
    with a different contender, and all contenders of a round get the same seed. With one thread, CPU time is the time
    that an idle machine would take; wall time is recorded as well.
    """
    times = {name: Times() for name in contenders}
    for work in contenders.values():
        work(True)
    names = list(contenders)
    start = time.perf_counter()
    for number in range(1, MAX_ROUNDS + 1):
        for name in names:
            torch.manual_seed(number)
            cpu, wall = time.process_time(), time.perf_counter()
            count = contenders[name](False)
            times[name].cpu.append(time.process_time() - cpu)
            times[name].wall.append(time.perf_counter() - wall)
            times[name].count.append(count)
        names = names[1:] + names[:1]
        if (time.perf_counter() - start) * (number + 1) / number > seconds:
            break
    return times


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Return the ratios round by round, so that both times were measured under the same load."""
    return Spread(tuple(a / b for a, b in zip(numerators, denominators, strict=True)))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return p of cost ~ size^p, by least squares on logarithms."""
    x, y = [log(s) for s in sizes], [log(c) for c in costs]
    return statistics.linear_regression(x, y).slope


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns after the first are right-aligned."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def machine() -> str:
    """Describe the machine and the versions that the numbers were measured with."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} thread used, torch {torch.__version__}, "
        f"float32, load {os.getloadavg()[0]:.1f}"
    )
