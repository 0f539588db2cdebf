"""The paper's statements where confidences depend on the *tokens* revealed, not only on which positions are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.forks_cases import SEARCH
from theory.anchor_fork import has
from theory.exact import commit_sets, sigmoid
from theory.statements import ar, tlc
from theory.strings import Partial, temper
from twotemp.records import Policy

LENGTH, FORK, ANCHORS = 3, 0, (1, 2)
TOKENS = {
    FORK: 6,
    1: 2,
    2: 2,
}  # enough for the fork that every draw of an anchor is surer than any of its own
Predict = Callable[[Partial, int], np.ndarray]


def model_of(seed: int) -> Predict:
    """A model with a random prediction for every partial string; the confidence gap holds for every draw."""

    def predict(row: Partial, position: int) -> np.ndarray:
        address = [seed, position, *(0 if token is None else 1 + token for token in row)]
        rng = np.random.default_rng(address)
        if position == FORK:
            weight = rng.uniform(0.8, 1.6, TOKENS[FORK])  # each at most 1.6 / 5.6, below 0.3
        else:
            weight = rng.uniform(0.5, 1.0, TOKENS[position])  # each at least 0.5 / 1.5, above 0.33
        return weight / weight.sum()

    return predict


@dataclass(frozen=True)
class ForkStatistics:
    before: dict[int, float]  # P(T(a) < T(l)) for each anchor a
    ratios: dict[int, list[float]]  # ln(c^a / c^l) in every reachable row and draw with both masked


def enumerate_order(predict: Predict, policy: Policy) -> ForkStatistics:
    """Enumerate all draws and committed sets until the fork is committed."""
    before: dict[int, float] = dict.fromkeys(ANCHORS, 0.0)
    ratios: dict[int, list[float]] = defaultdict(list)
    visits: dict[Partial, float] = {(None,) * LENGTH: 1.0}
    while visits:
        row, visited = visits.popitem()
        masked = [k for k in range(LENGTH) if row[k] is None]
        q = {k: predict(row, k) for k in masked}
        drawn = {k: temper(q[k], policy.t_token) for k in masked}
        for tokens in product(*(np.flatnonzero(drawn[k]) for k in masked)):
            x = dict(zip(masked, map(int, tokens)))
            c = {k: float(q[k][x[k]]) for k in masked}
            for a in set(ANCHORS) & set(masked):
                ratios[a].append(math.log(c[a] / c[FORK]))
            draw = visited * math.prod(drawn[k][x[k]] for k in masked)
            for chosen, p in commit_sets(policy, c).items():
                if has(chosen, FORK):
                    for a in ANCHORS:
                        before[a] += draw * p * (row[a] is not None)
                elif p > 0:
                    after = tuple(x[k] if has(chosen, k) else row[k] for k in range(LENGTH))
                    visits[after] = visits.get(after, 0.0) + draw * p
    return ForkStatistics(before, ratios)


def with_tokens(policy: Policy, t_token: float) -> Policy:
    return replace(policy, t_token=t_token)


@given(seed=st.integers(0, 10**6), t_pos=st.floats(0.05, 5), t_token=st.sampled_from([0.0, 0.7, 1.0]))
@SEARCH
def test_lemma_1_with_token_states_and_draws(seed: int, t_pos: float, t_token: float) -> None:
    law = enumerate_order(model_of(seed), with_tokens(tlc(t_pos), t_token))
    for a in ANCHORS:
        low, high = min(law.ratios[a]), max(law.ratios[a])
        assert low > 0, "the gap must hold for every draw"
        assert sigmoid(low / t_pos) - 1e-12 <= law.before[a] <= sigmoid(high / t_pos) + 1e-12


@given(seed=st.integers(0, 10**6), t_pos=st.floats(0.05, 2), t_token=st.sampled_from([0.0, 1.0]))
@SEARCH
def test_proposition_1_with_tokens(seed: int, t_pos: float, t_token: float) -> None:
    """By the linear law H-bar = H_0 - sum eta P(T(a) < T(l)): each of these probabilities must fall."""
    predict = model_of(seed)
    cold = enumerate_order(predict, with_tokens(tlc(t_pos), t_token))
    gap = max(max(ratios) / min(ratios) for ratios in cold.ratios.values())
    warm = enumerate_order(predict, with_tokens(tlc(1.01 * gap * t_pos), t_token))
    for a in ANCHORS:
        assert warm.before[a] < cold.before[a] or cold.before[a] == pytest.approx(1)


@given(seed=st.integers(0, 10**6), t_token=st.sampled_from([0.0, 1.0]))
@SEARCH
def test_lc_reveals_all_anchors_first_and_ar_none_to_the_right(seed: int, t_token: float) -> None:
    """The remark on T_pos = 0, and Proposition 3: the fork is leftmost here."""
    lc, left_to_right = (
        enumerate_order(model_of(seed), with_tokens(policy, t_token)).before for policy in (tlc(0), ar())
    )
    for a in ANCHORS:
        assert lc[a] == pytest.approx(1)
        assert left_to_right[a] == 0


def test_confidences_depend_on_tokens() -> None:
    """The premise of this file: two rows that differ in one token have different predictions."""
    predict = model_of(1)
    assert not np.allclose(predict((None, 0, None), FORK), predict((None, 1, None), FORK))
    # And the lemma needs the extremes over rows with tokens: those of the first row alone are no bounds.
    outside = 0
    for seed in range(40):
        law = enumerate_order(model_of(seed), with_tokens(tlc(1.0), 0.0))
        for a in ANCHORS:
            first = sigmoid(law.ratios[a][0])
            outside += abs(law.before[a] - first) > 1e-3
    assert outside > 20
