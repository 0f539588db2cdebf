"""The theorems of docs/theory.md on K > 1 and thresholds, each with a counterexample without its premise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers.forks_cases import SEARCH, T_POS, UNIT, model_of, models
from theory import beyond
from theory.anchor_fork import AnchorFork, has
from theory.beyond import pairwise_budget, pairwise_threshold, printed_share, tct, worst_t_pos
from theory.exact import fork_law, printed_tct, sigmoid
from theory.statements import fork_entropies, gap_ratio_by_anchor, least_entropy, tlc

# --- past the paper: K > 1 --------------------------------------------------------------------------------------


@given(model=models(), t_pos=T_POS, k=st.integers(1, 4))
@SEARCH
def test_theorem_1_pairwise_for_every_budget(model: AnchorFork, t_pos: float, k: int) -> None:
    for a in model.anchors:
        before, after = pairwise_budget(model, a, t_pos, k)
        assert before.holds()
        assert after.holds()


@given(
    model=models(drifting=False, longest=6),
    t_pos=st.one_of(st.just(0.0), T_POS),
    steps=st.sampled_from([(1, 2), (1, 3), (1, 4), (1, 5), (2, 4), (2, 6), (3, 6)]),
)
@SEARCH
def test_theorem_2_multiples_of_k(model: AnchorFork, t_pos: float, steps: tuple[int, int]) -> None:
    few, many = (fork_law(model, tlc(t_pos, k)) for k in steps)
    for a in model.anchors:
        assert many.before(a) <= few.before(a) + 1e-12
    assert many.entropy >= few.entropy - 1e-12


def test_theorem_2_needs_multiples_and_constant_confidences() -> None:
    model = model_of([0.9, 0.8, 0.7, 0.4], fork=3, eta={0: 0.1, 1: 0.2, 2: 0.4})
    revealed = [model.base_entropy - fork_law(model, tlc(0, k)).entropy for k in (1, 2, 3, 4)]
    assert revealed == pytest.approx([0.7, 0.3, 0.7, 0.0])  # 3, 2, 3 and 0 anchors first: not monotone in K
    # Drifting: after anything is revealed the anchor's lead is gone, but a step of two decides before that.
    first, later = [0.9, 0.05, 0.95], [0.51, 0.5, 0.5]
    drifting = AnchorFork(3, 1, {0: 0.5}, 1.0, lambda state, j: (later if state else first)[j])
    assert drifting.violations() == []
    single, double = (fork_law(drifting, tlc(0.3, k)).before(0) for k in (1, 2))
    assert double > single + 0.2


@pytest.mark.parametrize("length", [2, 3, 5, 6])
def test_theorem_3_random_remasking(length: int) -> None:
    model = model_of([0.9] * (length - 1) + [0.4], fork=length - 1, eta={0: 0.3})
    shared = []
    for k in range(1, length + 1):
        law = fork_law(model, tlc(math.inf, k))
        shared.append(beyond.random_together(length, k))
        assert law.together(0) == pytest.approx(shared[-1])
        assert law.before(0) == pytest.approx((1 - shared[-1]) / 2)
    assert shared == sorted(shared)
    assert (shared[0], shared[-1]) == (0, 1)


# --- past the paper: thresholds ---------------------------------------------------------------------------------


@given(model=models(), threshold=UNIT, t_pos=st.floats(0.05, 5))
@SEARCH
def test_theorem_4_as_printed(model: AnchorFork, threshold: float, t_pos: float) -> None:
    for a in model.anchors:
        shares = [
            printed_share(model.confidence(s, a), model.confidence(s, model.fork), threshold, t_pos)
            for s in model.fork_states()
            if not has(s, a)
        ]
        value = fork_law(model, tct(threshold, t_pos), printed_tct).before(a)
        assert min(shares) - 1e-12 <= value <= max(shares) + 1e-12


@given(
    model=models(longest=3), threshold=st.floats(0.5, 1), t_pos=st.floats(0.05, 1), more=st.floats(1.01, 2)
)
@SEARCH
def test_theorem_4_rises_beyond_its_gap(
    model: AnchorFork, threshold: float, t_pos: float, more: float
) -> None:
    ratio = beyond.threshold_gap_ratio(model, threshold)
    assume(ratio < 1e4)
    cold, warm = (
        fork_law(model, tct(threshold, t), printed_tct).entropy for t in (t_pos, t_pos * ratio * more)
    )
    assert cold < warm or cold == pytest.approx(least_entropy(model), abs=1e-9)


def test_theorem_4_needs_its_gap() -> None:
    """As for Proposition 1: a position that is only included at high T_pos and then widens the gap."""
    first, revealed = [0.5, 0.499, 0.2], [0.9, 0.05, 0.2]
    model = AnchorFork(3, 1, {0: 0.5}, 1.0, lambda state, j: (revealed if has(state, 2) else first)[j])
    cold, warm = (fork_law(model, tct(0.5, t), printed_tct).entropy for t in (0.02, 0.2))
    assert 0.2 / 0.02 < beyond.threshold_gap_ratio(model, 0.5) < math.inf
    assert warm < cold - 0.005


@given(fork=st.floats(0.05, 0.9), gap=st.floats(0.01, 0.5), threshold=UNIT)
@SEARCH
def test_theorem_4_worst_temperature(fork: float, gap: float, threshold: float) -> None:
    anchor = min(1.0, fork + gap)
    worst = worst_t_pos(anchor, fork, threshold)
    grid = np.geomspace(0.01, 100, 400)
    shares = np.array([printed_share(anchor, fork, threshold, t) for t in grid])
    assert (np.diff(shares)[grid[1:] <= worst] >= -1e-12).all()  # rising up to it,
    assert (np.diff(shares)[grid[:-1] >= worst] <= 1e-12).all()  # falling after
    assert printed_share(anchor, fork, threshold, 1e9) == pytest.approx(1 / 3)


@given(model=models(), threshold=UNIT, t_pos=st.floats(0.05, 5))
@SEARCH
def test_theorem_5_with_the_forced_commit(model: AnchorFork, threshold: float, t_pos: float) -> None:
    for a in model.anchors:
        bound = pairwise_threshold(model, a, threshold, t_pos)
        assert bound.holds(1e-10)
        widest = max(
            model.confidence(s, a) - model.confidence(s, model.fork)
            for s in model.fork_states()
            if not has(s, a)
        )
        assert bound.high <= sigmoid(widest / t_pos) + 1e-12  # its weaker, lambda-free form


def test_theorem_5_needs_the_forced_share() -> None:
    """Counterexample: if steps may not be empty, Theorem 4's value is not an upper bound."""
    model = model_of([0.5, 0.501], fork=0, eta={1: 0.3})
    printed = printed_share(0.501, 0.5, 0.5, 1.0)
    assert fork_law(model, tct(0.5, 1.0), printed_tct).before(1) == pytest.approx(printed)
    assert fork_law(model, tct(0.5, 1.0)).before(1) > printed + 0.03


@pytest.mark.parametrize("bystanders", [0, 1, 3])
def test_at_infinite_t_pos_an_anchor_is_first_with_probability_between_1_3_and_3_8(bystanders: int) -> None:
    model = model_of([0.4, 0.9] + [0.7] * bystanders, fork=0, eta={1: 0.3})
    value = fork_law(model, tct(0.3, math.inf)).before(1)
    assert value == pytest.approx(3 / 8) if bystanders == 0 else 1 / 3 < value < 3 / 8


@given(model=models(), threshold=UNIT, t_pos=st.floats(0.05, 5))
@SEARCH
def test_theorem_6_ct_is_an_extreme(model: AnchorFork, threshold: float, t_pos: float) -> None:
    forks = [model.confidence(s, model.fork) for s in model.fork_states()]
    ct, tempered = fork_entropies(model, tct(threshold, 0), tct(threshold, t_pos))
    if threshold >= max(forks):
        assert ct == pytest.approx(least_entropy(model))
        assert tempered > ct or tempered == pytest.approx(ct, abs=1e-9)
    elif threshold < model.confidence(0, model.fork):
        assert ct == pytest.approx(model.base_entropy)
        assert tempered < ct or tempered == pytest.approx(ct, abs=1e-9)


@given(fork=st.floats(0.05, 0.9), gap=st.floats(0.01, 0.5), slack=UNIT, more=st.floats(1.01, 3), t=T_POS)
@SEARCH
def test_theorem_7_two_positions(fork: float, gap: float, slack: float, more: float, t: float) -> None:
    """With two positions, a higher T_pos or a lower threshold never reveals the anchor first more often."""
    model = model_of([fork, min(1.0, fork + gap)], fork=0, eta={1: 0.3})
    threshold = fork + (1 - fork) * slack
    cold, warm = (fork_law(model, tct(threshold, x)).before(1) for x in (t, t * more))
    assert warm <= cold + 1e-12
    assert fork_law(model, tct(threshold * 0.8, t)).before(1) <= cold + 1e-12


def test_theorem_7_fails_with_a_third_position() -> None:
    """A confident third position keeps cold steps from being empty; warm steps are forced and have no ties."""
    model = model_of([0.5, 0.501, 1.0], fork=0, eta={1: 0.3})
    cold, warm = (fork_law(model, tct(0.5, t)).before(1) for t in (0.1, 1.0))
    assert warm > cold + 0.001
    printed = [fork_law(model, tct(0.5, t), printed_tct).before(1) for t in (0.1, 1.0)]
    assert printed[0] > printed[1]  # the algorithm as printed has no forced steps and stays monotone


# --- the document -----------------------------------------------------------------------------------------------

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "theory.md"


def test_the_document_has_the_computed_sweep() -> None:
    assert beyond.sweep_table(beyond.example()) in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_document_has_the_computed_study() -> None:
    assert beyond.study_table(beyond.study()) in DOCUMENT.read_text(encoding="utf-8")


def test_the_study_does_not_contradict_the_theorems() -> None:
    results = {result.claim: result for result in beyond.study(models=6, length=4)}
    assert results["TLC K=1, constant c: rises with T_pos"].violated == 0
    assert results["random: rises with K"].violated == 0
    assert results["TCT lambda < c_l, constant c: rises with T_pos"].violated == 6
    assert results["LC, constant c: rises with K"].violated > 0


def test_a_search_finds_falls_where_proposition_1_does_not_apply() -> None:
    rng = np.random.default_rng(0)
    falls = 0
    for _ in range(60):
        model = beyond.random_model(rng, length=4, drift=3.0)
        assert model.violations() == []
        cold, warm = fork_entropies(model, tlc(0.1), tlc(0.2))
        falls += warm < cold - 1e-9
        assert cold < warm or gap_ratio_by_anchor(model) >= 0.2 / 0.1
    assert falls > 0
