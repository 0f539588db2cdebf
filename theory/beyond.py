"""Extensions of the paper's theory to K > 1 and tempered thresholds; proofs and tables are in `docs/theory.md`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from theory.anchor_fork import AnchorFork, ConfidencePath, State, constant, has
from theory.exact import ForkLaw, expected_steps, forced_commit, fork_law, sigmoid
from theory.statements import Bound, log_ratio_range, tlc
from twotemp.records import Policy


def tct(threshold: float, t_pos: float) -> Policy:
    """Return TCT: commit each position with probability sigma((c - lambda) / T_pos), or the best one if none."""
    return Policy("tct", score="confidence", rule="threshold", threshold=threshold, t_pos=t_pos)


# --- K > 1 ------------------------------------------------------------------------------------------------------


def pairwise_budget(model: AnchorFork, anchor: int, t_pos: float, k: int) -> tuple[Bound, Bound]:
    """Return the two bounds of Theorem 1, which hold for every K.

    P(T(a) < T(l)) <= sigma(Delta_a / T_pos) and P(T(l) < T(a)) <= sigma(-delta_a / T_pos).

    The rest of the probability is P(T(a) = T(l)); at K = 1 it is 0, and these are the two sides of Lemma 1.
    """
    low, high = log_ratio_range(model, anchor)
    law = fork_law(model, tlc(t_pos, k))
    return (
        Bound(0.0, law.before(anchor), sigmoid(high / t_pos)),
        Bound(0.0, law.after(anchor), sigmoid(-low / t_pos)),
    )


def random_together(length: int, k: int) -> float:
    """Return P(two given positions share a step) under random remasking; the last step has length mod K positions."""
    steps = [k] * (length // k) + [length % k]
    return sum(s * (s - 1) for s in steps) / (length * (length - 1))


# --- thresholds -------------------------------------------------------------------------------------------------


def printed_share(anchor: float, fork: float, threshold: float, t_pos: float) -> float:
    """Return P(T(a) < T(l)) under algorithm 4 as printed (Theorem 4).

    It is 1 / (1 + exp(-(lambda - c^l)/T) + exp(-(c^a - c^l)/T)).

    This is for constant confidences; otherwise its extremes over the states bound the probability.
    """
    deferred, gap = (threshold - fork) / t_pos, (anchor - fork) / t_pos
    top = max(0.0, -deferred, -gap)  # the largest exponent; subtracting it avoids overflow
    return math.exp(-top) / (math.exp(-top) + math.exp(-deferred - top) + math.exp(-gap - top))


def worst_t_pos(anchor: float, fork: float, threshold: float) -> float:
    """Return the T_pos at which `printed_share` is highest and so H-bar lowest.

    It is 0 for a threshold above the fork's confidence.

    Below it, where both pass a hard threshold, tempering first *lowers* the entropy, up to
    T = (c^a - lambda) / ln((c^a - c^l) / (c^l - lambda)), or for every T (inf) if c^l - lambda >= c^a - c^l.
    """
    slack, gap = fork - threshold, anchor - fork
    if slack <= 0:
        return 0.0
    return math.inf if slack >= gap else (slack + gap) / math.log(gap / slack)


def threshold_gap_ratio(model: AnchorFork, threshold: float) -> float:
    """Return Theorem 4's counterpart of Delta / delta: H-bar rises if T_pos' > T_pos * ratio (as printed).

    The ratio is the maximum over anchors of u_max / u_min and g_max / g_min, with u = lambda - c^l > 0 and
    g = c^a - c^l; it is inf if the fork ever reaches the threshold.
    """
    ratio = 1.0
    for a in model.anchors:
        rows = [model.confidences(s) for s in model.fork_states() if not has(s, a)]
        slack = [threshold - c[model.fork] for c in rows]
        gap = [c[a] - c[model.fork] for c in rows]
        if min(slack) <= 0:
            return math.inf
        ratio = max(ratio, max(slack) / min(slack), max(gap) / min(gap))
    return ratio


def threshold_shares(anchor: float, fork: float, threshold: float, t_pos: float) -> tuple[float, float]:
    """Return Theorem 5's bounds on P(a leaves before l | one leaves) in one state.

    The lower one is the printed share or the forced share of a among {a, l}, whichever is less. The upper one is
    p_a / (p_a + p_l) with p = sigma((c - lambda) / T_pos).

    Args:
        anchor: The confidence of the anchor.
        fork: The confidence of the fork.
        threshold: Lambda.
        t_pos: The position temperature.
    """
    forced_a, forced_l = forced_commit([(threshold - anchor) / t_pos, (threshold - fork) / t_pos])
    low = min(printed_share(anchor, fork, threshold, t_pos), float(forced_a / (forced_a + forced_l)))
    p_a, p_l = sigmoid((anchor - threshold) / t_pos), sigmoid((fork - threshold) / t_pos)
    return low, p_a / (p_a + p_l)


def pairwise_threshold(model: AnchorFork, anchor: int, threshold: float, t_pos: float) -> Bound:
    """Return Theorem 5's bound: P(T(a) < T(l)) under TCT lies between the extremes of `threshold_shares`."""
    shares = [
        threshold_shares(model.confidence(s, anchor), model.confidence(s, model.fork), threshold, t_pos)
        for s in model.fork_states()
        if not has(s, anchor)
    ]
    value = fork_law(model, tct(threshold, t_pos)).before(anchor)
    return Bound(min(low for low, _ in shares), value, max(high for _, high in shares))


# --- the sweep behind the tables of docs/theory.md --------------------------------------------------------------

T_POS = (0.0, 0.1, 0.3, 1.0, 3.0, math.inf)
BUDGETS = (1, 2, 3, 4, 6)
THRESHOLDS = (0.3, 0.5, 0.75, 0.9)


def example() -> AnchorFork:
    """Return six positions: a fork (0.45), three anchors (0.9, 0.8, 0.7) and two other positions (0.95, 0.6)."""
    return AnchorFork(
        length=6,
        fork=2,
        eta={0: 0.3, 4: 0.3, 5: 0.3},
        base_entropy=2.0,
        confidence=constant([0.9, 0.95, 0.45, 0.6, 0.8, 0.7]),
    )


class SweepCell(NamedTuple):
    """The result of one policy on one model."""

    policy: Policy
    entropy: float  # H-bar
    before: float  # P(T(a) < T(l)), averaged over the anchors
    together: float  # P(T(a) = T(l)), averaged over the anchors
    steps: float  # expected


def sweep(model: AnchorFork, policies: Sequence[Policy]) -> list[SweepCell]:
    """Return the exact result of every policy on a model."""

    def mean(part: Callable[[int], float]) -> float:
        return sum(map(part, model.anchors)) / len(model.anchors)

    def cell(policy: Policy) -> SweepCell:
        law: ForkLaw = fork_law(model, policy)
        return SweepCell(
            policy, law.entropy, mean(law.before), mean(law.together), expected_steps(model, policy)
        )

    return [cell(policy) for policy in policies]


def sweep_table(model: AnchorFork) -> str:
    """Return the two grids of docs/theory.md as Markdown: H-bar (mean P(T(a) < T(l)); expected steps)."""
    grids = [
        ("TLC", [(f"K = {k}", [tlc(t, k) for t in T_POS]) for k in BUDGETS]),
        ("TCT", [(f"λ = {x:g}", [tct(x, t) for t in T_POS]) for x in THRESHOLDS]),
    ]
    lines: list[str] = []
    for name, rows in grids:
        lines += ["", f"| {name} | " + " | ".join(f"T_pos = {t:g}" for t in T_POS) + " |"]
        lines += ["|---" * (len(T_POS) + 1) + "|"]
        for label, policies in rows:
            cells = [f"{c.entropy:.3f} ({c.before:.2f}; {c.steps:.1f})" for c in sweep(model, policies)]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines[1:])


# --- how often monotonicity fails, on random models -------------------------------------------------------------


def random_model(rng: np.random.Generator, length: int, drift: float) -> AnchorFork:
    """Return a random model that satisfies the assumption; with drift > 0 its confidences depend on the state.

    In every state the odds of the confidences are multiplied by a random factor between exp(-drift) and exp(drift);
    the gap between anchors and fork is kept.
    """
    fork, *others = (int(j) for j in rng.permutation(length))
    anchors = others[: int(rng.integers(1, length))]
    eta = {a: float(rng.uniform(0.05, 0.5)) for a in anchors}
    base = float(rng.uniform(0.1, 0.7))
    row = {j: float(rng.uniform(base + 0.02, 0.98) if j in eta else rng.uniform(0.05, 0.98)) for j in others}
    row[fork] = base

    def drifted() -> list[float]:
        odds = {j: c / (1 - c) * math.exp(rng.uniform(-drift, drift)) for j, c in row.items()}
        c = {j: o / (1 + o) for j, o in odds.items()}
        return [max(c[j], min(1.01 * c[fork], 1.0)) if j in eta else c[j] for j in range(length)]

    rows: dict[State, list[float]] = {s: drifted() for s in range(1 << length)}
    path: ConfidencePath = lambda state, position: rows[state][position]  # noqa: E731
    return AnchorFork(length, fork, eta, sum(eta.values()) + 0.5, path)


@dataclass(frozen=True)
class ClaimResult:
    """On how many random models H-bar falls somewhere along a path of policies on which a claim says it rises."""

    claim: str
    models: int
    violated: int
    worst_fall: float  # the largest fall between neighboring policies (nats)


def study(models: int = 200, length: int = 5, seed: int = 0, tolerance: float = 1e-9) -> list[ClaimResult]:
    """Test the monotonicity of H-bar in T_pos, K and lambda on seeded random models (tables of docs/theory.md).

    Args:
        models: Random models per claim.
        length: Positions of a model.
        seed: The seed of the models.
        tolerance: Falls below it are rounding errors.
    """
    warm = tuple(float(t) for t in np.geomspace(0.03, 10, 9))

    def fork_confidence(m: AnchorFork) -> float:
        return m.confidence(0, m.fork)

    def rising_t(k: int) -> Callable[[AnchorFork, np.random.Generator], list[Policy]]:
        return lambda m, rng: [tlc(t, k) for t in (0.0, *warm, math.inf)]

    def rising_k(t_pos: float) -> Callable[[AnchorFork, np.random.Generator], list[Policy]]:
        return lambda m, rng: [tlc(t_pos, k) for k in range(1, length + 1)]

    def tct_above(m: AnchorFork, rng: np.random.Generator) -> list[Policy]:
        x = rng.uniform(fork_confidence(m), 1)
        return [tct(x, t) for t in (0.0, *warm, math.inf)]

    def tct_below(m: AnchorFork, rng: np.random.Generator) -> list[Policy]:
        x = rng.uniform(0, fork_confidence(m))
        return [tct(x, t) for t in (0.0, *warm, math.inf)]

    def falling_threshold(m: AnchorFork, rng: np.random.Generator) -> list[Policy]:
        t = float(rng.choice(warm))
        return [tct(float(x), t) for x in np.linspace(1, 0, 11)]

    claims = [
        ("TLC K=1, constant c: rises with T_pos", 0.0, rising_t(1)),
        ("TLC K=1, drifting c: rises with T_pos", 1.5, rising_t(1)),
        ("TLC K=2, constant c: rises with T_pos", 0.0, rising_t(2)),
        ("TLC K=3, constant c: rises with T_pos", 0.0, rising_t(3)),
        ("LC, constant c: rises with K", 0.0, rising_k(0.0)),
        ("TLC T_pos=0.3, constant c: rises with K", 0.0, rising_k(0.3)),
        ("TLC T_pos=1, constant c: rises with K", 0.0, rising_k(1.0)),
        ("random: rises with K", 0.0, rising_k(math.inf)),
        ("TCT lambda >= c_l, constant c: rises with T_pos", 0.0, tct_above),
        ("TCT lambda >= c_l at the start, drifting c: rises with T_pos", 1.5, tct_above),
        ("TCT lambda < c_l, constant c: rises with T_pos", 0.0, tct_below),
        ("TCT, constant c: rises as lambda falls", 0.0, falling_threshold),
        ("TCT, drifting c: rises as lambda falls", 1.5, falling_threshold),
    ]
    results = []
    for claim, drift, path in claims:
        rng = np.random.default_rng(seed)
        falls = []
        for _ in range(models):
            model = random_model(rng, length, drift)
            entropies = [fork_law(model, p).entropy for p in path(model, rng)]
            falls.append(max(0.0, float(-np.diff(entropies).min())))
        results.append(ClaimResult(claim, models, sum(f > tolerance for f in falls), max(falls)))
    return results


def study_table(results: Sequence[ClaimResult]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| claim about H-bar | models | violated | largest fall (nats) |", "|---|---|---|---|"]
    lines += [f"| {f.claim} | {f.models} | {f.violated} | {f.worst_fall:.4f} |" for f in results]
    return "\n".join(lines)
