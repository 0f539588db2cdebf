"""The engine and the policies sample from the exact laws, up to Monte-Carlo error."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from tests.helpers.forks_cases import model_of
from theory.anchor_fork import AnchorFork, constant, has
from theory.beyond import example, threshold_shares
from theory.denoiser import AnchorForkModel, Simulation, simulate, with_entropy
from theory.exact import ForkLaw, fork_law, sigmoid
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.policies import policy
from twotemp.records import Policy

SAMPLES = 2500
LEAST_P = 1e-3  # of about 40 tests; the seeds are fixed, so a pass is a pass


def drifting() -> AnchorFork:
    """Return a model in which all but the last position gain confidence as others are revealed, the fork least."""
    first = [0.6, 0.4, 0.9, 0.7, 0.3]

    def path(state: int, j: int) -> float:
        revealed = state.bit_count()
        return first[j] + revealed * (0.01, 0.01, 0.02, 0.05, 0)[j]

    return AnchorFork(5, 1, {0: 0.2, 2: 0.4, 3: 0.3}, 2.2, path)


def agreement(law: ForkLaw, simulation: Simulation) -> float:
    """Return the p-value of a chi-square test on the fork's commits (state before, and set)."""
    counts = Counter(simulation.commits())
    assert set(counts) <= {c for c, p in law.commits.items() if p > 0}, (
        "the engine made a commit of probability 0"
    )
    total = len(simulation.steps)
    frequent = {c: p for c, p in law.commits.items() if p * total >= 5}
    observed = [counts[c] for c in frequent]
    expected = [p * total for p in frequent.values()]
    rest = 1 - sum(frequent.values())
    if rest * total >= 1:
        observed, expected = [*observed, total - sum(observed)], [*expected, rest * total]
    if len(observed) == 1:
        return 1.0 if observed[0] == total else 0.0
    return float(stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue)


def surprise(law: ForkLaw, simulation: Simulation) -> float:
    """Return the distance of the traces' mean entropy from H-bar, in standard errors of the law."""
    spread = sum(p * (law.model.fork_entropy(c.before) - law.entropy) ** 2 for c, p in law.commits.items())
    error = math.sqrt(spread / len(simulation.steps)) + 1e-6  # float32 logits
    return abs(simulation.entropy - law.entropy) / error


POLICIES = [
    policy("lc"),
    policy("lc", k=2),
    policy("ar"),
    policy("ar", k=2),
    policy("random"),
    policy("random", k=2),
    policy("tlc", t_pos=0.3),
    policy("tlc", t_pos=1.0),
    policy("tlc", t_pos=0.5, k=2),
    policy("tlc", t_pos=0.5, k=3),
    policy("ct", threshold=0.65),
    policy("tct", threshold=0.65, t_pos=0.1),
    policy("tct", threshold=0.95, t_pos=0.2),
    policy("tct", threshold=0.2, t_pos=0.3),
    policy("tct", t_pos=math.inf),
]


@pytest.mark.parametrize("model", [example(), drifting()], ids=["constant", "drifting"])
@pytest.mark.parametrize("p", POLICIES, ids=lambda p: f"{p.name}-k{p.k}-t{p.t_pos}-l{p.threshold}")
def test_engine_follows_the_exact_law(p: Policy, model: AnchorFork) -> None:
    assert model.violations() == []
    law = fork_law(model, p)
    samples = SAMPLES if p.t_pos > 0 else 20  # without noise all samples are the same
    simulation = simulate(model, p, samples, seed=11)
    assert agreement(law, simulation) > LEAST_P
    assert surprise(law, simulation) < 3.5
    for a in model.anchors:
        expected = law.before(a)
        error = math.sqrt(expected * (1 - expected) / samples) + 1e-12
        assert abs(simulation.before(a) - expected) < 3.5 * error


def test_the_comparison_detects_small_changes() -> None:
    """It detects 20 % more temperature, and one more position per step."""
    model = example()
    simulation = simulate(model, policy("tlc", t_pos=0.5), 4000, seed=11)
    assert agreement(fork_law(model, policy("tlc", t_pos=0.6)), simulation) < LEAST_P
    simulation = simulate(model, policy("tct", threshold=0.95, t_pos=0.2), 4000, seed=11)
    assert agreement(fork_law(model, policy("tct", threshold=0.95, t_pos=0.24)), simulation) < LEAST_P
    simulation = simulate(model, policy("random", k=2), 4000, seed=11)
    with pytest.raises(AssertionError, match="of probability 0"):
        agreement(fork_law(model, policy("random", k=3)), simulation)


def test_long_rows_follow_closed_forms() -> None:
    """18 positions are too many to enumerate, but constant confidences have closed forms."""
    confidences = [0.8, 0.4] + [0.3 + 0.035 * j for j in range(16)]
    model = AnchorFork(18, 1, {0: 0.5, 12: 0.4}, 2.2, constant(confidences))
    samples = 1000
    simulation = simulate(model, policy("tlc", t_pos=0.7), samples, seed=5)
    for a in model.anchors:
        expected = sigmoid(math.log(confidences[a] / confidences[1]) / 0.7)  # Lemma 1, with delta_a = Delta_a
        assert abs(simulation.before(a) - expected) < 3.5 * math.sqrt(expected * (1 - expected) / samples)
    simulation = simulate(model, policy("tct", threshold=0.7, t_pos=0.2), samples, seed=5)
    for a in model.anchors:
        low, high = threshold_shares(confidences[a], confidences[1], 0.7, 0.2)  # Theorem 5
        error = 3.5 * math.sqrt(0.25 / samples)
        assert low - error < simulation.before(a) < high + error


# --- the denoiser -----------------------------------------------------------------------------------------------


def test_the_denoiser_has_the_confidences_and_entropies_of_the_model() -> None:
    model = drifting()
    q = AnchorForkModel(model)
    assert isinstance(q, Denoiser)
    for state in range((1 << model.length) - 1):
        ids = torch.tensor([[0] + [3 if has(state, j) else q.mask_id for j in range(model.length)]])
        p = q.logits(ids, None, ids == q.mask_id).softmax(-1).double()
        for row, j in zip(p, model.masked(state)):
            assert row.max().item() == pytest.approx(model.confidence(state, j), abs=1e-6)
            if j == model.fork:
                nats = torch.special.entr(row).sum().item()
                assert nats == pytest.approx(model.fork_entropy(state), abs=1e-5)


def test_padding_on_either_side_changes_nothing() -> None:
    model = drifting()
    q = AnchorForkModel(model)
    m = q.mask_id
    plain = torch.tensor([[0, m, 5, m, m, m]])
    alone = q.logits(plain, None, plain == m)
    padded = torch.tensor([[9, 9, 0, m, 5, m, m, m, 9]])
    real = torch.tensor([[False] * 2 + [True] * 6 + [False]])
    assert torch.equal(q.logits(padded, real, padded == m), alone)


@pytest.mark.parametrize(("top", "nats"), [(0.4, 1.06), (0.4, 1.2), (0.9, 0.4), (0.3, 3.4), (0.51, 0.7)])
def test_with_entropy(top: float, nats: float) -> None:
    p = with_entropy(top, nats, 64)
    assert p.sum() == pytest.approx(1)
    assert p.argmax() == 0
    assert p[0] == pytest.approx(top)
    assert -(p * np.log(p)).sum() == pytest.approx(nats)


@pytest.mark.parametrize(("top", "nats"), [(0.4, 5.0), (0.4, 1.0), (0.5, 0.69)])
def test_impossible_entropies_are_refused(top: float, nats: float) -> None:
    with pytest.raises(UserError, match=r"no distribution over 64 tokens .* between"):
        with_entropy(top, nats, 64)


def test_confidence_below_chance_is_refused() -> None:
    with pytest.raises(UserError, match="not above 1/64"):
        simulate(model_of([0.7, 0.8, 0.01], fork=0, eta={1: 0.3}), policy("lc"), 1)
