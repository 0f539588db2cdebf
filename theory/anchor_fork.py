"""The anchor-fork model (assumption 1 of the paper) as an object.

A state is the set of positions already revealed, as a bitmask: bit j is set once position j is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from twotemp.errors import UserError

State = int
ConfidencePath = Callable[[State, int], float]  # c(state, masked position), in (0, 1]


def state_of(positions: Iterable[int]) -> State:
    """Return the state in which exactly these positions are revealed."""
    return sum(1 << j for j in set(positions))


def has(state: State, position: int) -> bool:
    """Tell whether a position is revealed in a state."""
    return bool(state >> position & 1)


def constant(confidences: Sequence[float]) -> ConfidencePath:
    """Return a confidence path that does not depend on the state."""
    values = tuple(confidences)
    return lambda state, position: values[position]


def table(confidences: Mapping[State, Sequence[float]]) -> ConfidencePath:
    """Return a confidence path from one row per state; entries of revealed positions are never read."""
    rows = {state: tuple(row) for state, row in confidences.items()}
    return lambda state, position: rows[state][position]


class Violation(NamedTuple):
    """A state in which an anchor is not more confident than the fork."""

    state: State
    anchor: int
    anchor_confidence: float
    fork_confidence: float


@dataclass(frozen=True)
class AnchorFork:
    """A fork l, its anchors, and the model's confidences in every state.

    Condition 2 of the assumption, H(x^l | state) = H_0 - sum of eta_a over the revealed anchors, holds by
    construction; condition 1, c^a > c^l for every remaining anchor, is what `violations` checks.
    """

    length: int
    fork: int
    eta: Mapping[int, float]  # anchor -> entropy (nats) that revealing it takes from the fork
    base_entropy: float  # H_0: the fork's entropy before anything is revealed
    confidence: ConfidencePath

    def __post_init__(self) -> None:
        if not 0 <= self.fork < self.length:
            raise UserError(f"fork {self.fork} is not one of the positions 0..{self.length - 1}")
        if not self.eta:
            raise UserError("an anchor-fork model needs at least one anchor; give eta={position: nats}")
        for anchor, eta in self.eta.items():
            if anchor == self.fork or not 0 <= anchor < self.length:
                raise UserError(
                    f"anchor {anchor} must be a position in 0..{self.length - 1} other than the fork"
                )
            if not eta > 0:
                raise UserError(f"eta of anchor {anchor} must be above 0, not {eta!r}")
        if not self.base_entropy > sum(self.eta.values()):
            raise UserError(
                f"base_entropy={self.base_entropy} must exceed the sum of eta, {sum(self.eta.values())}"
            )

    @property
    def anchors(self) -> tuple[int, ...]:
        """Return the positions of the anchors."""
        return tuple(self.eta)

    def masked(self, state: State) -> list[int]:
        """Return the positions that are still masked."""
        return [j for j in range(self.length) if not has(state, j)]

    def confidences(self, state: State) -> dict[int, float]:
        """Return c(state, j) for every masked position j."""
        confidences = {j: self.confidence(state, j) for j in self.masked(state)}
        for j, c in confidences.items():
            if not 0 < c <= 1:
                raise UserError(f"confidence {c!r} of position {j} in state {state:b} is not in (0, 1]")
        return confidences

    def fork_entropy(self, state: State) -> float:
        """Return H(x^l | state) = H_0 - sum_{a revealed} eta_a (equation linear-entropy-reduction)."""
        return self.base_entropy - sum(eta for a, eta in self.eta.items() if has(state, a))

    def fork_states(self) -> Iterator[State]:
        """Yield every state in which the fork is masked; a policy with T_pos > 0 and K = 1 can reach all of them."""
        return (state for state in range(1 << self.length) if not has(state, self.fork))

    def violations(self, states: Iterable[State] | None = None) -> list[Violation]:
        """Return where the persistent confidence gap fails among `states` (default: all with the fork masked).

        The assumption speaks of the states a policy reaches: pass `exact.visits(model, policy)` to check it
        for one policy only.
        """
        violations = []
        for state in self.fork_states() if states is None else states:
            if has(state, self.fork):
                continue
            c = self.confidences(state)
            violations += [
                Violation(state, a, c[a], c[self.fork])
                for a in self.anchors
                if a in c and c[a] <= c[self.fork]
            ]
        return violations
