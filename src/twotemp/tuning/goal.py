"""The goal of a race: pass@k, or the pass rate that a number of function evaluations buys."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.errors import UserError
from twotemp.metrics.passk import Floats

_MOST = 4096  # samples per question


@dataclass(frozen=True)
class Goal:
    """`pass@16`: k samples per question. `pass@NFE=200`: as many samples per question as 200 NFE buy."""

    k: int | None = None
    nfe: float | None = None

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Parse `pass@16` or `pass@NFE=200`."""
        match = re.fullmatch(r"pass@(nfe=)?(\d+(?:\.\d+)?)", text.strip().lower())
        if match and match[1] and float(match[2]) > 0:
            return cls(nfe=float(match[2]))
        if match and match[2].isdecimal() and 1 <= int(match[2]) <= _MOST:
            return cls(k=int(match[2]))
        raise UserError(f"--at {text}: write pass@16 (k samples) or pass@NFE=200 (what 200 NFE buy)")

    def __str__(self) -> str:
        return f"pass@{self.k}" if self.k is not None else f"pass@NFE={self.nfe:g}"

    def half(self, cost: float) -> Goal:
        """Return the goal with half of the samples, at least one, if a sample costs `cost` NFE."""
        if self.k is not None:
            return Goal(max(1, self.k // 2))
        return Goal(nfe=max(cost, (self.nfe or 0) / 2))

    def samples(self, cost: float) -> int:
        """Return how many samples per question the goal needs if a sample costs `cost` NFE."""
        if self.k is not None:
            return self.k
        assert self.nfe is not None
        needed = max(1, math.ceil(self.nfe / cost - 1e-9))
        if needed > _MOST:
            raise UserError(
                f"--at {self} buys {needed:,} samples of {cost:.1f} NFE per question, more than {_MOST:,}; lower it"
            )
        return needed

    def price(self, cost: float) -> float:
        """Return the NFE per question if a sample costs `cost` NFE: the x axis of the frontier."""
        return self.k * cost if self.k is not None else float(self.nfe or 0)

    def values(self, passed: Sequence[NDArray[np.bool_]], cost: float) -> Floats:
        """Return the pass rate of each question; NaN if it has too few samples, or none is affordable."""
        n, correct = [len(p) for p in passed], [int(p.sum()) for p in passed]
        if self.k is not None:
            return metrics.pass_at_k(n, correct, [self.k])[:, 0]
        curves = metrics.pass_at_k(n, correct, range(1, max(1, *n) + 1))
        rates: Floats = metrics.at_budget(curves, cost, [self.nfe or 0])[:, 0]
        return rates
