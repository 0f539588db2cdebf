"""The interface of reward models: (problem, answer) -> a number, higher is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twotemp.records import Problem


class RewardModel(Protocol):
    """Scores answers."""

    name: str  # with a fingerprint of its weights: scores of different weights never mix in a store

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """Return one finite number per item, in the order given, or raise an error."""
        ...
