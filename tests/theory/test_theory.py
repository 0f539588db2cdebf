"""Every statement of the paper's appendix C on exact laws, each with a counterexample without its premise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.forks_cases import SEARCH, T_POS, UNIT, model_of, models
from theory.anchor_fork import AnchorFork, has
from theory.exact import fork_law, sigmoid
from theory.statements import (
    ForkQuality,
    ar,
    dominates,
    fork_entropies,
    fork_quality,
    gap_ratio,
    gap_ratio_by_anchor,
    lead,
    least_entropy,
    log_ratio_range,
    pairwise,
    pairwise_average,
    sandwich,
    semantic_premise,
    semantic_view,
    tlc,
    top_probability,
)
from theory.strings import entropy, string_law
from twotemp.policies import policy

# --- the sandwich bound -----------------------------------------------------------------------------------------


def joints() -> st.SearchStrategy[np.ndarray]:
    shape = st.tuples(st.integers(1, 4), st.integers(1, 4))
    entry = st.one_of(st.just(0.0), st.floats(0.001, 1))
    return shape.flatmap(
        lambda s: (
            st.lists(entry, min_size=s[0] * s[1], max_size=s[0] * s[1])
            .filter(lambda v: sum(v) > 0)
            .map(lambda v: np.array(v).reshape(s) / sum(v))
        )
    )


@given(joint=joints(), more=st.tuples(UNIT, UNIT))
@SEARCH
def test_sandwich(joint: np.ndarray, more: tuple[float, float]) -> None:
    least = fork_quality(joint)
    assert sandwich(joint, least).holds(1e-10)
    assert sandwich(joint, ForkQuality(least.epsilon + more[0], least.delta + more[1])).holds(1e-10)


def test_the_sandwich_is_tight() -> None:
    """If the token determines the outcome and the outcome says nothing about the token, epsilon makes the gap."""
    joint = np.array([[0.25], [0.75]])
    least = fork_quality(joint)
    assert sandwich(joint, least).low == pytest.approx(0)
    assert not sandwich(joint, ForkQuality(0.9 * least.epsilon, least.delta)).holds()
    assert not sandwich(joint.T, ForkQuality(0, 0.9 * least.epsilon)).holds()


# --- Lemma 1 ----------------------------------------------------------------------------------------------------


@given(model=models(), t_pos=T_POS)
@SEARCH
def test_lemma_1(model: AnchorFork, t_pos: float) -> None:
    assert model.violations() == []
    for a in model.anchors:
        bound = pairwise(model, a, t_pos)
        assert bound.holds()
        assert bound.value == pytest.approx(pairwise_average(model, a, t_pos), abs=1e-12)


@given(model=models(drifting=False), t_pos=T_POS)
@SEARCH
def test_lemma_1_is_an_equality_for_constant_confidences(model: AnchorFork, t_pos: float) -> None:
    for a in model.anchors:
        assert pairwise(model, a, t_pos).high == pytest.approx(pairwise(model, a, t_pos).value)


def gap_counterexample() -> AnchorFork:
    """A model whose position 2 is only revealed early at a high T_pos, and then widens the gap."""
    first, revealed = [0.5, 0.499, 0.2], [0.9, 0.01, 0.2]
    return AnchorFork(3, 1, {0: 0.5}, 1.0, lambda state, j: (revealed if has(state, 2) else first)[j])


def test_lemma_1_needs_the_extremes_over_states() -> None:
    """Counterexamples: the ratio of the first state instead of the supremum, and K = 2."""
    model = gap_counterexample()
    value = pairwise(model, 0, 1.0).value
    assert value > sigmoid(math.log(0.5 / 0.499)) + 0.02
    assert fork_law(model, tlc(1.0, k=2)).before(0) < pairwise(model, 0, 1.0).low - 0.02


# --- Proposition 1 and the remark -------------------------------------------------------------------------------


@given(model=models(longest=3), t_pos=T_POS, more=st.floats(1.001, 3))
@SEARCH
def test_proposition_1(model: AnchorFork, t_pos: float, more: float) -> None:
    paper, ours = gap_ratio(model), gap_ratio_by_anchor(model)
    assert ours <= paper * (1 + 1e-12)
    for ratio in (paper, ours):
        cold, warm = fork_entropies(model, tlc(t_pos), tlc(t_pos * ratio * more))
        # Strict, unless P(T(a) < T(l)) rounds to 1 at both temperatures.
        assert cold < warm or cold == pytest.approx(least_entropy(model), abs=1e-9)


@given(model=models(drifting=False), t_pos=T_POS, more=st.floats(1.01, 3))
@SEARCH
def test_any_increase_suffices_for_constant_confidences(model: AnchorFork, t_pos: float, more: float) -> None:
    assert gap_ratio_by_anchor(model) == pytest.approx(1)
    cold, warm = fork_entropies(model, tlc(t_pos), tlc(t_pos * more))
    assert cold < warm or cold == pytest.approx(least_entropy(model), abs=1e-9)


def test_proposition_1_needs_its_gap_condition() -> None:
    model = gap_counterexample()
    assert model.violations() == []
    cold, warm = fork_entropies(model, tlc(0.1), tlc(1.0))
    assert gap_ratio(model) >= gap_ratio_by_anchor(model) > 1.0 / 0.1  # T_pos' > T_pos, but not by enough
    assert (cold, warm) == pytest.approx((0.7475, 0.7090), abs=1e-4)  # warmer, and less entropy
    cold, warm = fork_entropies(model, tlc(0.1), tlc(0.1 * gap_ratio(model) * 1.01))
    assert cold < warm


def test_proposition_1_needs_the_gap_condition_for_every_anchor() -> None:
    """With two anchors, the lead of anchor 3 over the fork is constant, and that of anchor 0 decides."""
    first, revealed = [0.5, 0.499, 0.2, 0.7485], [0.9, 0.01, 0.2, 0.015]
    eta = {0: 0.5, 3: 0.001}
    model = AnchorFork(4, 1, eta, 1.0, lambda state, j: (revealed if has(state, 2) else first)[j])
    assert model.violations() == []
    low, high = log_ratio_range(model, 3)
    assert high / low == pytest.approx(1)  # for this anchor alone any increase of T_pos would do
    cold, warm = fork_entropies(model, tlc(0.1), tlc(1.0))
    assert warm < cold - 0.01
    assert gap_ratio_by_anchor(model) > 1.0 / 0.1
    cold, warm = fork_entropies(model, tlc(0.1), tlc(0.1 * gap_ratio_by_anchor(model) * 1.01))
    assert cold < warm


@given(model=models(), t_pos=T_POS)
@SEARCH
def test_the_remark_that_lc_is_the_minimum(model: AnchorFork, t_pos: float) -> None:
    lc, tempered = fork_entropies(model, tlc(0), tlc(t_pos))
    assert lc == pytest.approx(least_entropy(model))
    shortfall = 1 - fork_law(model, tlc(t_pos)).before(model.anchors[0])
    assert tempered > lc or shortfall < 1e-12


def test_the_remark_needs_the_confidence_gap_and_one_position_per_step() -> None:
    shy = model_of([0.4, 0.5, 0.9], fork=1, eta={0: 0.3})
    assert shy.violations()
    assert fork_law(shy, tlc(0)).entropy > least_entropy(shy) + 0.2
    # K = 2: LC commits the two bystanders, then anchor and fork together; tempering can only lose.
    pair = model_of([0.5, 0.4, 0.9, 0.8], fork=1, eta={0: 0.3})
    assert pair.violations() == []
    lc, tempered = fork_entropies(pair, tlc(0, k=2), tlc(0.5, k=2))
    assert lc == pytest.approx(pair.base_entropy)
    assert tempered < lc - 0.05


# --- Corollary 1 ------------------------------------------------------------------------------------------------


def planted(branches: int, anchor_confidence: float, noise: float):
    """A fork (0) with equal branches, and an anchor (1) that predicts branch 0 until the fork is revealed."""

    def peaked(at: int, p: float) -> np.ndarray:
        q = np.full(branches, (1 - p) / (branches - 1))
        q[at] = p
        return q

    def predict(state, k: int) -> np.ndarray:
        other = state[1 - k]
        if other is not None:
            return peaked(other, 1 - noise)
        return np.full(branches, 1 / branches) if k == 0 else peaked(0, anchor_confidence)

    return predict


def style(string: tuple[int, ...]) -> int:
    """Return the outcome, which is the anchor's final token."""
    return string[1]


@given(
    branches=st.integers(5, 8),
    anchor=st.floats(0.9, 0.999),
    noise=st.floats(1e-5, 0.02),
    t_pos=st.floats(0.05, 1),
    warm=st.one_of(st.floats(2, 100), st.just(math.inf)),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_corollary_1(branches: int, anchor: float, noise: float, t_pos: float, warm: float) -> None:
    predict = planted(branches, anchor, noise)
    low, high = (
        semantic_view(predict, 2, 0, style, policy("tlc", t_token=1.0, t_pos=t)) for t in (t_pos, warm)
    )
    gain, price = semantic_premise(low, high)
    assume(gain > price)
    assert high.semantic_entropy > low.semantic_entropy


def test_corollary_1_has_instances_and_needs_its_premise() -> None:
    def views(branches: int, anchor: float) -> list:
        predict = planted(branches, anchor, 1e-4)
        return [
            semantic_view(predict, 2, 0, style, policy("tlc", t_token=1.0, t_pos=t)) for t in (0.1, math.inf)
        ]

    gain, price = semantic_premise(*views(8, 0.995))
    assert gain > price + 0.1
    # A consistent q: both predictions are conditionals of one joint law, which every order then samples.
    joint = np.array([[0.45, 0.05], [0.05, 0.45]])

    def consistent(state, k: int) -> np.ndarray:
        other = state[1 - k]
        table = joint if k == 0 else joint.T
        return table.sum(axis=1) if other is None else table[:, other] / table[:, other].sum()

    # Position 0 goes first and position 1 last; the joint law is symmetric and the outcome is the fork itself.
    first, last = (
        semantic_view(consistent, 2, f, lambda s, f=f: s[f], policy("ar", t_token=1.0)) for f in (0, 1)
    )
    assert first.mean_entropy > last.mean_entropy + 0.3  # H-bar falls,
    assert first.semantic_entropy == pytest.approx(last.semantic_entropy)  # the outcomes do not care,
    gain, price = semantic_premise(last, first)
    assert first.quality == last.quality == (0, 0)
    assert gain <= price + 1e-12  # and the premise knows: gamma alone takes up all of the gain


def test_with_drawn_tokens_a_state_includes_the_draw() -> None:
    """At T_token > 0 a confident anchor may draw an unlikely token, which has a low confidence.

    So `reachable state` in the lemma and the remark has to mean the row *and* the tokens just drawn.
    """
    predict = planted(4, 0.9, 1e-3)
    greedy, drawn = (string_law(predict, 2, policy("lc", t_token=t)).commit_entropy[0] for t in (0.0, 1.0))
    least = entropy(predict((None, 0), 0))
    assert greedy == pytest.approx(least)
    assert drawn == pytest.approx(0.9 * least + 0.1 * math.log(4))  # one draw in ten lets the fork go first


# --- Proposition 2 (token temperature) and 3 (AR) ---------------------------------------------------------------


@given(
    gaps=st.lists(st.floats(0, 8), min_size=1, max_size=6),
    extra=st.lists(st.floats(0, 8), min_size=6, max_size=6),
    shift=st.floats(-5, 5),
    t_token=st.floats(0.05, 50),
)
@SEARCH
def test_proposition_2(gaps: list[float], extra: list[float], shift: float, t_token: float) -> None:
    fork = [0.0] + [-g for g in sorted(gaps)]
    anchor = [shift] + [shift - g for g in np.sort(np.sort(gaps) + np.array(extra[: len(gaps)]))]
    assume(dominates(anchor, fork))
    assume(max(extra[: len(gaps)]) > 1e-3)
    assert lead(anchor, fork, t_token) > 0


def from_logits(anchor: list[float], fork: list[float], t_token: float) -> AnchorFork:
    c = [top_probability(z, t_token) for z in (fork, anchor, anchor)]
    return model_of(c, fork=0, eta={1: 0.2, 2: 0.3})


def test_token_temperature_leaves_the_order_alone_under_dominance() -> None:
    anchor, fork = [4.0, 1.0, 0.0, -1.0], [3.0, 0.5, -0.5, -1.0]
    assert dominates(anchor, fork)
    for t_token in (0.3, 1.0, 3.0, 30.0):
        model = from_logits(anchor, fork, t_token)
        assert fork_law(model, tlc(0)).entropy == pytest.approx(least_entropy(model))


@given(data=st.data(), t_token=st.floats(0.1, 20))
@SEARCH
def test_proposition_2_where_logits_change_from_state_to_state(data: st.DataObject, t_token: float) -> None:
    """Dominance in every state suffices: revealed tokens may change all logits, and the order of LC stays."""
    gaps = st.lists(st.floats(0, 4), min_size=3, max_size=3)

    def row() -> list[float]:
        fork = np.sort(data.draw(gaps))
        anchors = [np.sort(fork + np.array(data.draw(gaps)) + 0.05) for _ in range(2)]
        assert all(dominates([0, *-a], [0, *-fork]) for a in anchors)
        return [top_probability([0, *-g], t_token) for g in (fork, *anchors)]

    rows = {state: row() for state in range(8)}
    model = AnchorFork(3, 0, {1: 0.2, 2: 0.3}, 1.0, lambda state, j: rows[state][j])
    assume(model.violations() == [])  # at a low T_token two confidences may round to the same number
    assert fork_law(model, tlc(0)).entropy == pytest.approx(least_entropy(model))


@pytest.mark.parametrize(
    ("anchor", "fork", "flips_at"),
    [
        ([3.0, 2.0, -9.0, -9.0], [3.0, 1.0, 1.0, 1.0], 0.3),  # all but the runner-up further away
        ([2.5, 0.0, 0.0, 0.0], [1.0, 0.0, -50.0, -50.0], 5.0),  # only the runner-up further away
    ],
)
def test_proposition_2_needs_every_gap(anchor: list[float], fork: list[float], flips_at: float) -> None:
    assert not dominates(anchor, fork)
    usual, flipped = from_logits(anchor, fork, 1.0), from_logits(anchor, fork, flips_at)
    assert usual.violations() == []
    assert fork_law(usual, tlc(0)).entropy == pytest.approx(least_entropy(usual))
    assert fork_law(flipped, tlc(0)).entropy == pytest.approx(flipped.base_entropy)


@given(model=models())
@SEARCH
def test_proposition_3(model: AnchorFork) -> None:
    lc, left_to_right = fork_entropies(model, tlc(0), ar())
    if any(a > model.fork for a in model.anchors):
        assert lc < left_to_right
    else:  # without an anchor to the right the statement is false, and by how much it says
        assert lc == pytest.approx(left_to_right)
