"""Compute both sides of every statement in the paper's appendix C.

Nothing is asserted here: `tests/theory/test_theory.py` compares the sides on instances found by `hypothesis`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from theory.anchor_fork import AnchorFork, State, has
from theory.exact import commit_sets, fork_law, sigmoid, visits
from theory.strings import Predictor, entropy, string_law
from twotemp.records import Policy


def tlc(t_pos: float, k: int = 1) -> Policy:
    """Return TLC: K draws without replacement from Cat(c^(1/T_pos)); LC at T_pos = 0, random at T_pos = inf."""
    return Policy("tlc", score="log_confidence", rule="budget", t_pos=t_pos, k=k)


def ar(k: int = 1) -> Policy:
    """Return AR: the K leftmost masked positions."""
    return Policy("ar", score="position", rule="budget", k=k)


class Bound(NamedTuple):
    """The claim low <= value <= high, where the value was computed without using the sides."""

    low: float
    value: float
    high: float

    def holds(self, tolerance: float = 1e-12) -> bool:
        """Tell whether the claim is true up to rounding."""
        return self.low - tolerance <= self.value <= self.high + tolerance


# --- Definition 1 and the sandwich bound ------------------------------------------------------------------------


class ForkQuality(NamedTuple):
    """The smallest (epsilon, delta) for which a position is a fork token (definition 1)."""

    epsilon: float  # H(x^l | outcome)
    delta: float  # H(outcome | x^l)


def fork_quality(joint: np.ndarray) -> ForkQuality:
    """Return the quality for a joint table p(x^l, outcome), from the definition of conditional entropy."""
    epsilon = sum(p.sum() * entropy(p / p.sum()) for p in joint.T if p.sum() > 0)
    delta = sum(p.sum() * entropy(p / p.sum()) for p in joint if p.sum() > 0)
    return ForkQuality(float(epsilon), float(delta))


def sandwich(joint: np.ndarray, quality: ForkQuality) -> Bound:
    """Return the bound H(x^l) - epsilon <= H(outcome) <= H(x^l) + delta."""
    token, outcome = entropy(joint.sum(axis=1)), entropy(joint.sum(axis=0))
    return Bound(token - quality.epsilon, outcome, token + quality.delta)


# --- Lemma 1 ----------------------------------------------------------------------------------------------------


def log_ratio(model: AnchorFork, anchor: int, state: State) -> float:
    """Return ln(c^a / c^l) in a state."""
    return math.log(model.confidence(state, anchor) / model.confidence(state, model.fork))


def log_ratio_range(model: AnchorFork, anchor: int) -> tuple[float, float]:
    """Return (delta_a, Delta_a), the extremes over all states with both masked; T_pos > 0 can reach all of them."""
    ratios = [log_ratio(model, anchor, s) for s in model.fork_states() if not has(s, anchor)]
    return min(ratios), max(ratios)


def pairwise(model: AnchorFork, anchor: int, t_pos: float) -> Bound:
    """Return Lemma 1: sigma(delta_a / T_pos) <= P(T(a) < T(l)) <= sigma(Delta_a / T_pos) for TLC at K = 1."""
    low, high = log_ratio_range(model, anchor)
    value = fork_law(model, tlc(t_pos)).before(anchor)
    return Bound(sigmoid(low / t_pos), value, sigmoid(high / t_pos))


def pairwise_average(model: AnchorFork, anchor: int, t_pos: float) -> float:
    """Return E[sigma(ln(c^a / c^l) / T_pos)] in the state just before the first of the two is committed.

    The proof of the lemma equates P(T(a) < T(l)) with a function of the *random* state at t*. The equality holds for
    the expectation of that function, and so do the bounds.
    """
    policy = tlc(t_pos)
    total = 0.0
    for state, visited in visits(model, policy).items():
        if has(state, anchor) or has(state, model.fork):
            continue
        law = commit_sets(policy, model.confidences(state))
        leave = law[1 << anchor] + law[1 << model.fork]
        total += visited * leave * sigmoid(log_ratio(model, anchor, state) / t_pos)
    return total


# --- Proposition 1 and the remark on T_pos = 0 ------------------------------------------------------------------


def gap_ratio(model: AnchorFork) -> float:
    """Return Delta / delta; Proposition 1 requires T_pos' > T_pos * Delta / delta."""
    ranges = [log_ratio_range(model, a) for a in model.anchors]
    return max(high for _, high in ranges) / min(low for low, _ in ranges)


def gap_ratio_by_anchor(model: AnchorFork) -> float:
    """Return max_a Delta_a / delta_a <= Delta / delta, which suffices because the proof compares anchor by anchor.

    It is 1 for constant confidences, for which *any* increase of T_pos increases the fork's entropy.
    """
    return max(high / low for low, high in (log_ratio_range(model, a) for a in model.anchors))


def fork_entropies(model: AnchorFork, *policies: Policy) -> tuple[float, ...]:
    """Return H-bar under each policy, which Proposition 1, the remark and Proposition 3 compare."""
    return tuple(fork_law(model, policy).entropy for policy in policies)


def least_entropy(model: AnchorFork) -> float:
    """Return H_0 - sum of all eta, which is LC's H-bar according to the remark."""
    return model.base_entropy - sum(model.eta.values())


# --- Corollary 1 ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SemanticView:
    """The quantities of Corollary 1 at one temperature."""

    mean_entropy: float  # H-bar of the fork
    token_entropy: float  # H_P(x^l): of the token finally written
    semantic_entropy: float  # H_P(outcome)
    quality: ForkQuality  # of l under the sampling distribution

    @property
    def gamma(self) -> float:
        """Return |H_P(x^l) - H-bar|."""
        return abs(self.token_entropy - self.mean_entropy)


def semantic_view(
    predict: Predictor, length: int, fork: int, outcome: Callable[[tuple[int, ...]], Hashable], policy: Policy
) -> SemanticView:
    """Return the quantities of Corollary 1 under a policy.

    Args:
        predict: The model's distribution at a masked position.
        length: Positions of a string.
        fork: The position of the fork.
        outcome: The meaning of a string.
        policy: The policy, with its temperature.
    """
    law = string_law(predict, length, policy)
    joint = law.joint(lambda s: s[fork], outcome)
    return SemanticView(
        law.commit_entropy[fork], entropy(joint.sum(axis=1)), entropy(joint.sum(axis=0)), fork_quality(joint)
    )


def semantic_premise(low: SemanticView, high: SemanticView) -> tuple[float, float]:
    """Return both sides of Corollary 1's premise: the gain in H-bar must exceed epsilon + delta + gamma + gamma'."""
    epsilon = max(low.quality.epsilon, high.quality.epsilon)
    delta = max(low.quality.delta, high.quality.delta)
    return high.mean_entropy - low.mean_entropy, epsilon + delta + low.gamma + high.gamma


# --- Proposition 2: token temperature ---------------------------------------------------------------------------


def logit_gaps(logits: Sequence[float]) -> np.ndarray:
    """Return z_(1) - z_(i) for i >= 2, in the order of i."""
    z = np.sort(np.asarray(logits, dtype=np.float64))[::-1]
    gaps: np.ndarray = z[0] - z[1:]
    return gaps


def dominates(anchor: Sequence[float], fork: Sequence[float]) -> bool:
    """Tell whether every sorted gap of the anchor's logits is at least the fork's and one is larger (the premise)."""
    a, l = logit_gaps(anchor), logit_gaps(fork)
    return bool((a >= l).all() and (a > l).any())


def top_probability(logits: Sequence[float], t_token: float) -> float:
    """Return c(T) = max softmax(z / T) = 1 / (1 + sum_{i >= 2} exp((z_(i) - z_(1)) / T))."""
    return float(1 / (1 + np.exp(-logit_gaps(logits) / t_token).sum()))


def lead(anchor: Sequence[float], fork: Sequence[float], t_token: float) -> float:
    """Return 1 / c^l(T) - 1 / c^a(T), which is above 0 where the anchor is more confident.

    It is summed without rounding, because at small T_token both confidences round to the same number.
    """
    more, less = (np.exp(-logit_gaps(z) / t_token) for z in (fork, anchor))
    return math.fsum([*more, *-less])
