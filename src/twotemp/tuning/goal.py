"""The goal of a race (pass@k, or the pass rate that a number of function evaluations buys) and its candidates."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.errors import UserError, unknown
from twotemp.metrics.estimates import Floats
from twotemp.policies import PRESETS, policy
from twotemp.records import PARAMETERS, Policy, Rule

_MOST = 4096  # samples per question


@dataclass(frozen=True, eq=False)
class Tally:
    """The samples of one policy: per question their number and how many are right, and the mean cost of a sample."""

    n: NDArray[np.int64]
    correct: NDArray[np.int64]
    cost: float  # NFE
    spent: float = 0.0  # NFE of all of them

    def only(self, rows: NDArray[np.int64]) -> Tally:
        """Return the tally restricted to these questions."""
        return Tally(self.n[rows], self.correct[rows], self.cost)


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

    def values(self, tally: Tally) -> Floats:
        """Return the pass rate of each question; NaN if it has too few samples, or none is affordable."""
        most = max(1, int(tally.n.max()))
        if self.k is not None:
            return metrics.pass_at_k(tally.n, tally.correct, [self.k])[:, 0]
        return self.rates(metrics.pass_at_k(tally.n, tally.correct, range(1, most + 1)), tally.cost)

    def rates(self, curves: Floats, cost: float | Floats) -> Floats:
        """Return each question's rate at the goal.

        Args:
            curves: Pass rates with 1, 2, ... samples, [questions, samples].
            cost: Of a sample, or of each of them in their order.
        """
        rates: Floats = (
            curves[:, self.k - 1]
            if self.k is not None
            else metrics.at_budget(curves, cost, [self.nfe or 0])[:, 0]
        )
        return rates


# T_pos: plain (0) and tempered, on the scale of the noise: Gumbel on logarithms, Logistic on probabilities.
_T_POS: dict[Rule, tuple[float, ...]] = {
    "budget": (0.0, 0.5, 1.0),
    "entropy_bound": (0.0, 0.5, 1.0),
    "threshold": (0.0, 0.1, 0.3),
    "stable": (0.0, 0.1, 0.3),
}
_T_TOKEN = (0.6, 0.8, 1.0, 1.2)
_THRESHOLD = (0.5, 0.7, 0.9)
_K = (1, 2)


def expand(specs: Sequence[str]) -> tuple[Policy, ...]:
    """Return all candidates of some specs, leaving out those that decode like an earlier one.

    A parameter that a spec names takes the values given (`tct:t_pos=0.1,threshold=0.6|0.8`), the others take the
    default values of this module: `tct` varies T_token, T_pos and lambda.
    """
    candidates: dict[Policy, Policy] = {}
    for spec in specs:
        for candidate in _expand(spec):
            candidates.setdefault(replace(candidate, name=""), candidate)
    return tuple(candidates.values())


def _expand(spec: str) -> list[Policy]:
    name, _, rest = spec.partition(":")
    name = name.strip()
    if name not in PRESETS:
        raise unknown("policy", name, PRESETS)
    axes: dict[str, Sequence[Any]] = _axes(name)
    for part in filter(None, rest.split(",")):
        key, equals, values = part.partition("=")
        key = key.strip()
        if not equals:
            raise UserError(
                f"policy {spec!r}: write parameters as name=value or name=value|value, not {part!r}"
            )
        # `policy` reports an unknown name and suggests the nearest one.
        parameter = PARAMETERS.get(key)
        axes[key] = [parameter.read(key, v.strip()) if parameter else v for v in values.split("|")]
    return [policy(name, **dict(zip(axes, numbers))) for numbers in product(*axes.values())]


def _axes(name: str) -> dict[str, Sequence[Any]]:
    """Return the default values of each parameter of a preset."""
    preset = PRESETS[name]
    rule = preset.policy.rule
    axes: dict[str, Sequence[Any]] = {"t_token": _T_TOKEN}
    if "t_pos" in preset.parameters:
        axes["t_pos"] = _T_POS[rule]
    if "threshold" in preset.parameters:
        axes["threshold"] = _THRESHOLD
    if "k" in preset.parameters and rule == "budget":
        axes["k"] = _K
    return axes
