"""How things are timed and shown: contenders in turn, medians with their range, exponents, tables."""

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

MOST_ROUNDS = 5


class Enough(Exception):
    """A measurement needs a few steps, not a whole sample."""


@dataclass
class Times:
    """Seconds of one contender, and what it counted in them (steps, forwards, samples); one entry a round."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    @property
    def each(self) -> float:
        """CPU seconds for one of what is counted. Over all rounds: how many an adaptive policy needs is chance."""
        return sum(self.cpu) / sum(self.count)


@dataclass(frozen=True)
class Spread:
    """A median and what it is the median of."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, digits: int) -> str:
        low, high = min(self.values), max(self.values)
        shown = f"{self.median:.{digits}f}"
        return shown if len(self.values) == 1 else f"{shown} ({low:.{digits}f} to {high:.{digits}f})"


Contender = Callable[
    [bool], int
]  # (a small piece of the work only?) -> how many steps, or what else it counts


def interleave(contenders: Mapping[str, Contender], seconds: float) -> dict[str, Times]:
    """Every contender once a round, so that a busy moment of the machine is everybody's.

    Each warms up on a small piece first. Then at least one round, and more while the next one should end within
    `seconds`; another contender begins each, and all start from the same seed. With one thread, CPU time is what
    the clock would show on an idle machine; both are kept.
    """
    found = {name: Times() for name in contenders}
    for work in contenders.values():
        work(True)
    names = list(contenders)
    began = time.perf_counter()
    for done in range(1, MOST_ROUNDS + 1):
        for name in names:
            torch.manual_seed(done)
            cpu, wall = time.process_time(), time.perf_counter()
            count = contenders[name](False)
            found[name].cpu.append(time.process_time() - cpu)
            found[name].wall.append(time.perf_counter() - wall)
            found[name].count.append(count)
        names = names[1:] + names[:1]
        if (time.perf_counter() - began) * (done + 1) / done > seconds:
            break
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Ratios of the same round, so that they share its circumstances."""
    return Spread(tuple(a / b for a, b in zip(above, below, strict=True)))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The p of cost ~ size^p: least squares on logarithms."""
    x, y = [log(s) for s in sizes], [log(c) for c in costs]
    return statistics.linear_regression(x, y).slope


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def machine() -> str:
    """What the numbers were measured on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} thread used, torch {torch.__version__}, "
        f"float32, load {os.getloadavg()[0]:.1f}"
    )
