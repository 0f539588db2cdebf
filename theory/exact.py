"""Compute the exact law of the order of commits, by dynamic programming over sets of revealed positions.

`commit_sets` is written from the definitions and not from `twotemp.policies`, so that the engine can be tested
against it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from theory.anchor_fork import AnchorFork, State, has, state_of
from twotemp.errors import UserError
from twotemp.records import Policy

MAX_LENGTH = 14  # 2^14 states; beyond it, simulate (`denoiser.simulate`)


def sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


# From the confidences of the masked positions to the law of the committed set.
StepLaw = Callable[[Policy, Mapping[int, float]], dict[State, float]]


# --- one step ------------------------------------------------------------------------------------------------


def commit_sets(policy: Policy, confidence: Mapping[int, float]) -> dict[State, float]:
    """Return the law of the set that a policy commits, given the confidence of every masked position."""
    parts = policy.fallback, policy.first_score, policy.edit, policy.repel
    plain = parts == ("best", "same", "never", 0)
    if plain and policy.steps == 0 and policy.rule == "budget":
        if policy.score == "position" and policy.t_pos == 0:
            return {state_of(sorted(confidence)[: policy.k]): 1.0}
        if policy.score == "log_confidence":
            return _budget(confidence, policy.k, policy.t_pos)
    if plain and policy.rule == "threshold" and policy.score == "confidence" and policy.k == 1:
        if policy.t_pos == 0:
            return _hard_threshold(confidence, policy.threshold, policy.inclusive)
        return soft_threshold(confidence, policy.threshold, policy.t_pos)
    raise UserError(
        f"no exact law for policy {policy.name!r}; use AR, LC, TLC, random (fixed k), or CT, TCT with k=1"
    )


def _budget(confidence: Mapping[int, float], k: int, t_pos: float) -> dict[State, float]:
    """Return the law of K positions drawn without replacement from Cat(c^(1/T_pos)), as sets (Plackett-Luce).

    T_pos = 0 takes the K most confident positions, the leftmost ones if tied; at T_pos = inf all weights are 1.
    """
    k = min(k, len(confidence))
    if t_pos == 0:
        ranked = sorted(confidence, key=lambda j: (-confidence[j], j))
        return {state_of(ranked[:k]): 1.0}
    log_weight = {j: math.log(c) / t_pos for j, c in confidence.items()}
    drawn = {0: 1.0}
    for _ in range(k):
        longer: dict[State, float] = defaultdict(float)
        for committed, p in drawn.items():
            rest = [j for j in confidence if not has(committed, j)]
            top = max(log_weight[j] for j in rest)
            weight = {j: math.exp(log_weight[j] - top) for j in rest}
            total = sum(weight.values())
            for j in rest:
                longer[committed | 1 << j] += p * weight[j] / total
        drawn = longer
    return dict(drawn)


def _hard_threshold(confidence: Mapping[int, float], threshold: float, inclusive: bool) -> dict[State, float]:
    """Return the set of all positions above lambda, or of the most confident one if there is none (Fast-dLLM)."""
    above = [j for j, c in confidence.items() if c > threshold or (inclusive and c == threshold)]
    return {state_of(above): 1.0} if above else _budget(confidence, 1, 0.0)


def soft_threshold(confidence: Mapping[int, float], threshold: float, t_pos: float) -> dict[State, float]:
    """Return the law of TCT: position k is included with probability sigma((c^k - lambda) / T_pos), independently.

    An empty draw commits the position with the highest perturbed score instead.
    """
    sets = _inclusions(confidence, threshold, t_pos)
    if sets.pop(0) > 0:
        margins = [(threshold - c) / t_pos for c in confidence.values()]
        for j, w in zip(confidence, forced_commit(margins)):
            sets[1 << j] += float(w)
    return sets


def printed_tct(policy: Policy, confidence: Mapping[int, float]) -> dict[State, float]:
    """Return the law of TCT as algorithm 4 of the paper prints it: an empty draw is repeated.

    So the law of a step that changes the state is that of a draw conditioned on not being empty.
    """
    sets = _inclusions(confidence, policy.threshold, policy.t_pos)
    del sets[0]
    # Not 1 - P(empty), which loses digits when nearly every draw is empty.
    nonempty = sum(sets.values())
    return {s: w / nonempty for s, w in sets.items()}


def _inclusions(confidence: Mapping[int, float], threshold: float, t_pos: float) -> dict[State, float]:
    """Return the law of a set with independent inclusions of probability sigma((c - lambda) / T_pos)."""
    sets = {0: 1.0}
    for j, c in confidence.items():
        p, q = sigmoid((c - threshold) / t_pos), sigmoid((threshold - c) / t_pos)
        sets = {s: w * q for s, w in sets.items()} | {s | 1 << j: w * p for s, w in sets.items()}
    return sets


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def forced_commit(margins: Sequence[float]) -> np.ndarray:
    """Return P(nothing passes the threshold and k has the highest perturbed score) for each k.

    With X_j = c_j + T L_j, L_j standard Logistic, b_j = (lambda - c_j) / T and z = (lambda - x) / T,

        int_{-inf}^{lambda} f_k(x) prod_{j != k} F_j(x) dx = int_0^inf prod_j sigma(b_j - z) sigma(z - b_k) dz,

    because F_j(x) = sigma(b_j - z) and f_k = F_k (1 - F_k) / T. The integrand is analytic up to distance pi from
    the real line and falls exponentially, so unit panels of 16 Gauss nodes reach double precision. Summed
    over k the integrand is a total derivative and the integral prod_j sigma(b_j), the chance of an empty draw.
    """
    b = np.asarray(margins, dtype=np.float64)
    # Stop where the integrand is below exp(-40): by the most confident position alone, or by all of them together.
    panels = math.ceil(min(max(b.min(), 0.0) + 40, max(b.max(), 0.0) + 40 / len(b)))
    z = (np.arange(panels)[:, None] + (_NODES + 1) / 2).ravel()
    weight = np.tile(_WEIGHTS / 2, panels)
    odds = np.exp(np.clip(z - b[:, None], -700, 700))
    below = 1 / (1 + odds)
    highest: np.ndarray = (odds * below * (below.prod(axis=0) * weight)).sum(axis=1)
    return highest


# --- all steps ------------------------------------------------------------------------------------------------


class Commit(NamedTuple):
    """A commit of the fork: the state before, and the set of positions committed with it (itself included)."""

    before: State
    together: State


@dataclass(frozen=True)
class ForkLaw:
    """The law of the fork's commit under one policy."""

    model: AnchorFork
    commits: Mapping[Commit, float]

    def before(self, anchor: int) -> float:
        """Return P(T(a) < T(l)): the anchor is revealed in an earlier step than the fork."""
        return sum(p for commit, p in self.commits.items() if has(commit.before, anchor))

    def together(self, anchor: int) -> float:
        """Return P(T(a) = T(l)): the same step, which does not change the fork's entropy. It is 0 at K = 1."""
        return sum(p for commit, p in self.commits.items() if has(commit.together, anchor))

    def after(self, anchor: int) -> float:
        """Return P(T(a) > T(l))."""
        return sum(p for c, p in self.commits.items() if not has(c.before | c.together, anchor))

    @property
    def entropy(self) -> float:
        """Return H-bar, the expected entropy of the model's prediction at l when l is committed."""
        return sum(p * self.model.fork_entropy(commit.before) for commit, p in self.commits.items())


def visits(model: AnchorFork, policy: Policy, step: StepLaw = commit_sets) -> dict[State, float]:
    """Return P(state is visited) for every reachable state, including the one with everything revealed."""
    if model.length > MAX_LENGTH:
        raise UserError(
            f"length {model.length} has 2^{model.length} states and the exact laws stop at length {MAX_LENGTH}; "
            "use denoiser.simulate"
        )
    visited: dict[State, float] = defaultdict(float, {0: 1.0})
    for state in range((1 << model.length) - 1):  # a step only adds bits, so predecessors come first
        if state in visited:
            for committed, p in step(policy, model.confidences(state)).items():
                if p > 0:
                    visited[state | committed] += visited[state] * p
    return dict(visited)


def expected_steps(model: AnchorFork, policy: Policy) -> float:
    """Return the expected number of steps (the NFE): one for every visited state except the last."""
    return sum(visits(model, policy).values()) - 1


def fork_law(model: AnchorFork, policy: Policy, step: StepLaw = commit_sets) -> ForkLaw:
    """Return the exact law of (state before, set) at the fork's commit, which gives P(T(a) < T(l)) and H-bar."""
    commits = {
        Commit(state, committed): visited * p
        for state, visited in visits(model, policy, step).items()
        if not has(state, model.fork)
        for committed, p in step(policy, model.confidences(state)).items()
        if has(committed, model.fork)
    }
    return ForkLaw(model, commits)


def orders(model: AnchorFork, policy: Policy) -> dict[tuple[State, ...], float]:
    """Return the law of the whole order, as the sequence of committed sets. Its size is factorial in the length."""
    full = (1 << model.length) - 1
    partial: dict[tuple[State, ...], float] = {(): 1.0}
    done: dict[tuple[State, ...], float] = {}
    while partial:
        longer: dict[tuple[State, ...], float] = {}
        for order, p in partial.items():
            state = sum(order)
            for committed, step in commit_sets(policy, model.confidences(state)).items():
                if step > 0:
                    target = done if state | committed == full else longer
                    target[(*order, committed)] = p * step
        partial = longer
    return done
