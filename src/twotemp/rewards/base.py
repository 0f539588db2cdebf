"""What a reward model is: (problem, answer) -> a number, higher is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twotemp.records import Problem


class RewardModel(Protocol):
    name: str  # with a fingerprint of its weights: scores of different weights never mix in a store

    def score(self, items: Sequence[tuple[Problem, str]]) -> list[float]:
        """One finite number per item, in the order given; an error where the model gives anything else."""
        ...
