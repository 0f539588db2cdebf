"""Parameters of the rollouts' policy that are learned together with the weights: T_pos, lambda and T_token.

The likelihood `order` is differentiable in them, so the loss that trains the weights also trains them. Adam moves
each on an unbounded scale (log or logit); its state is part of the run's counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twotemp.likelihood.orders import OrderQueries
from twotemp.likelihood.queries import MaskedQueries
from twotemp.records import Policy

MEAN, SQUARE, TINY = 0.9, 0.99, 1e-12  # of Adam


class Scale(NamedTuple):
    """The unbounded scale on which a parameter is learned, and the range in which it has an effect."""

    free: Callable[[float], float]
    value: Callable[[Tensor], Tensor]
    least: float
    most: float


SCALES: dict[str, Scale] = {
    "t_pos": Scale(math.log, torch.exp, 1e-3, 1e3),
    "t_token": Scale(math.log, torch.exp, 1e-2, 1e2),
    "threshold": Scale(lambda p: math.log(p / (1 - p)), torch.sigmoid, 0.05, 0.999),
}


def learnable(policy: Policy) -> list[str]:
    """Return the parameters that the likelihood of a policy is differentiable in at their current values."""
    names = ["t_token", "t_pos"]
    if policy.rule == "threshold" and policy.t_pos > 0:  # without noise the threshold is a step
        names.append("threshold")
    return [name for name in names if SCALES[name].least <= getattr(policy, name) <= SCALES[name].most]


def with_learned(policy: Policy, state: Mapping[str, Sequence[float]]) -> Policy:
    """Return the policy with the numbers of a stored state (`Knobs.state`), to three digits."""
    numbers: dict[str, Any] = {
        name: float(f"{float(SCALES[name].value(torch.tensor(free, dtype=torch.float64))):.3g}")
        for name, (free, *_) in state.items()
    }
    return replace(policy, **numbers)


@dataclass
class Knob:
    """A parameter on its unbounded scale, and Adam's state."""

    free: Tensor  # float64, a leaf
    mean: float = 0.0
    square: float = 0.0
    steps: int = 0


class Knobs:
    """The learned parameters of a policy; there may be none."""

    def __init__(
        self, policy: Policy, names: Sequence[str], rate: float, device: torch.device | str = "cpu"
    ) -> None:
        self.rate = rate
        self._knobs: dict[str, Knob] = {}
        for name in names:
            scale = SCALES[name]
            start = scale.free(min(max(getattr(policy, name), scale.least), scale.most))
            self._knobs[name] = Knob(
                torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
            )

    def __bool__(self) -> bool:
        return bool(self._knobs)

    def numbers(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: float(SCALES[name].value(knob.free.detach())) for name, knob in self._knobs.items()}

    def apply_to(self, queries: MaskedQueries) -> MaskedQueries:
        """Return the queries with the current parameters, in which they are differentiable."""
        if not isinstance(queries, OrderQueries):
            return queries
        now: dict[str, Any] = {
            name: SCALES[name].value(knob.free).expand(len(queries)) for name, knob in self._knobs.items()
        }
        return replace(queries, **now)

    def step(self, total: Callable[[Tensor], Tensor]) -> None:
        """Take a step of Adam down the gradient accumulated by the backward passes; `total` sums over the workers."""
        for name, knob in self._knobs.items():
            gradient = knob.free.grad
            slope = float(total(torch.zeros_like(knob.free) if gradient is None else gradient))
            knob.free.grad = None
            knob.steps += 1
            knob.mean = MEAN * knob.mean + (1 - MEAN) * slope
            knob.square = SQUARE * knob.square + (1 - SQUARE) * slope**2
            mean, square = knob.mean / (1 - MEAN**knob.steps), knob.square / (1 - SQUARE**knob.steps)
            scale = SCALES[name]
            with torch.no_grad():
                knob.free -= self.rate * mean / (math.sqrt(square) + TINY)
                knob.free.clamp_(scale.free(scale.least), scale.free(scale.most))

    def state(self) -> dict[str, list[float]]:
        """Return all numbers, for a checkpoint."""
        return {name: [float(k.free.detach()), k.mean, k.square, k.steps] for name, k in self._knobs.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue from what `state` returned."""
        for name, (free, mean, square, steps) in state.items():
            knob = self._knobs[name]
            with torch.no_grad():
                knob.free.fill_(free)
            knob.free.grad = None
            knob.mean, knob.square, knob.steps = mean, square, int(steps)
