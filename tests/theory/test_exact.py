"""The exact laws agree with independent computations: permutations, quadrature, whole orders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from tests.helpers.forks_cases import SEARCH, models
from theory.anchor_fork import AnchorFork, constant, has, state_of, table
from theory.beyond import tct
from theory.exact import commit_sets, expected_steps, forced_commit, fork_law, orders, sigmoid, visits
from theory.statements import tlc
from theory.strings import string_law
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Policy


@pytest.mark.parametrize("t_pos", [0.2, 1.0, math.inf])
def test_budget_is_plackett_luce(t_pos: float) -> None:
    """Compare with the definition: sum over the orders in which K positions can be drawn."""
    c = {0: 0.9, 2: 0.5, 3: 0.31, 7: 0.02}
    weight = {j: v ** (1 / t_pos) for j, v in c.items()}
    expected: dict[int, float] = {}
    for order in itertools.permutations(c, 2):
        p, left = 1.0, sum(weight.values())
        for j in order:
            p, left = p * weight[j] / left, left - weight[j]
        expected[state_of(order)] = expected.get(state_of(order), 0) + p
    assert commit_sets(tlc(t_pos, 2), c) == pytest.approx(expected)


def test_limits_are_the_plain_rules() -> None:
    c = {0: 0.3, 1: 0.8, 2: 0.55, 3: 0.8}
    assert commit_sets(policy("lc"), c) == {0b0010: 1.0}  # ties to the left
    assert commit_sets(policy("lc", k=3), c) == {0b1110: 1.0}
    assert commit_sets(policy("lc", k=9), c) == {0b1111: 1.0}
    assert commit_sets(policy("ar", k=2), c) == {0b0011: 1.0}
    assert commit_sets(policy("ct", threshold=0.5), c) == {0b1110: 1.0}
    assert commit_sets(policy("ct", threshold=0.8), c) == {0b0010: 1.0}  # strict, and never empty
    assert commit_sets(policy("fast-dllm", threshold=0.8), c) == {0b1010: 1.0}
    assert commit_sets(policy("random", k=2), c)[0b0101] == pytest.approx(1 / 6)
    flips = commit_sets(policy("tct", t_pos=math.inf), c)
    assert flips[0b0011] == pytest.approx(1 / 16)
    assert flips[0b0001] == pytest.approx(
        1 / 16 + 1 / 64
    )  # its own coin alone, or none and the highest noise
    for cold, plain in (
        (tlc(1e-3, 2), tlc(0, 2)),
        (tct(0.6, 1e-3), tct(0.6, 0)),
        (tct(0.7, 1e-3), tct(0.7, 0)),
    ):
        distinct = {0: 0.3, 1: 0.8, 2: 0.55, 3: 0.65}
        (only,) = commit_sets(plain, distinct)
        assert commit_sets(cold, distinct)[only] == pytest.approx(1)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=5))
@SEARCH
def test_forced_commit_is_the_integral(margins: list[float]) -> None:
    """Compare with scipy on the untransformed definition, int f_k prod F_j below the threshold."""
    forced = forced_commit(margins)
    assert forced.sum() == pytest.approx(math.prod(map(sigmoid, margins)), rel=1e-12, abs=0)

    def integrand(x: float, k: int) -> float:  # margins are thresholds of standard logistics shifted by -b
        below = math.prod(sigmoid(x + b) for b in margins)
        return below * sigmoid(-x - margins[k])

    for k in range(len(margins)):
        spots = sorted({-b for b in margins if b > 0} | {0.0})
        edges = [spots[0] - 45, *spots]
        reference = sum(integrate.quad(integrand, a, b, args=(k,))[0] for a, b in itertools.pairwise(edges))
        assert forced[k] == pytest.approx(reference, rel=1e-7, abs=1e-12)


def test_forced_commit_of_two_in_closed_form() -> None:
    b_a, b_l = 0.3, 1.7
    r, q = math.exp(b_a - b_l), sigmoid(b_a)
    closed = q / (1 - r) - r / (1 - r) ** 2 * math.log(1 + (1 - r) * q / r)
    assert forced_commit([b_a, b_l])[0] == pytest.approx(closed, rel=1e-12)


POLICIES = [
    policy("lc"),
    policy("ar"),
    policy("random"),
    policy("tlc", t_pos=0.3),
    policy("tlc", t_pos=0.7, k=2),
    policy("ct", threshold=0.6),
    policy("tct", threshold=0.6, t_pos=0.1),
    policy("tct", threshold=0.4, t_pos=math.inf),
]


@pytest.mark.parametrize("p", POLICIES, ids=lambda p: f"{p.name}-k{p.k}-t{p.t_pos}")
@given(model=models())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_law_of_the_fork_follows_from_the_orders(p: Policy, model: AnchorFork) -> None:
    """Dynamic programming over sets agrees with the enumeration of every order."""
    law, every = fork_law(model, p), orders(model, p)
    assert sum(every.values()) == pytest.approx(1)
    assert expected_steps(model, p) == pytest.approx(sum(q * len(order) for order, q in every.items()))
    for a in model.anchors:
        assert law.before(a) + law.together(a) + law.after(a) == pytest.approx(1)
        earlier = sum(
            q
            for order, q in every.items()
            if [has(s, a) for s in order].index(True) < [has(s, model.fork) for s in order].index(True)
        )
        assert law.before(a) == pytest.approx(earlier, abs=1e-12)
    before = {a: law.before(a) for a in model.anchors}
    linear = model.base_entropy - sum(eta * before[a] for a, eta in model.eta.items())
    assert law.entropy == pytest.approx(linear)  # the first half of Proposition 1's proof


def test_policies_without_an_exact_law_are_refused() -> None:
    with pytest.raises(UserError, match="no exact law for policy 'margin'"):
        commit_sets(policy("margin"), {0: 0.5})
    big = AnchorFork(20, 0, {1: 0.1}, 1.0, constant([0.5] * 20))
    with pytest.raises(UserError, match="simulate"):
        fork_law(big, tlc(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fork": 5}, "fork 5"),
        ({"eta": {}}, "at least one anchor"),
        ({"eta": {0: 0.1, 1: 0.1}}, "anchor 1 must be"),
        ({"eta": {0: 0.0}}, "above 0"),
        ({"base_entropy": 0.1}, "must exceed the sum of eta"),
    ],
)
def test_a_model_validates_itself(change: dict, message: str) -> None:
    good = {"length": 3, "fork": 1, "eta": {0: 0.1}, "base_entropy": 0.2, "confidence": constant([0.5] * 3)}
    with pytest.raises(UserError, match=message):
        AnchorFork(**(good | change))


def test_violations_name_state_and_anchor() -> None:
    """The gap may fail in some states and still hold in all that a policy reaches."""
    rows = {s: [0.9, 0.5, 0.6] for s in range(8)} | {0b100: [0.4, 0.5, 0.6]}
    model = AnchorFork(3, 1, {0: 0.1, 2: 0.1}, 1.0, table(rows))
    assert model.violations() == [(0b100, 0, 0.4, 0.5)]
    assert model.violations(visits(model, tlc(0))) == []  # LC starts with position 0
    assert model.violations(visits(model, tlc(1))) == model.violations()


def test_strings_of_a_consistent_model_follow_its_joint_law() -> None:
    """AR and random orders sample from p if q has the conditionals of p; LC does not."""
    p = np.random.default_rng(0).dirichlet(np.ones(12)).reshape(2, 3, 2)

    def predict(state, k: int) -> np.ndarray:
        index = tuple(slice(None) if x is None else slice(x, x + 1) for x in state)
        kept = tuple(j for j in range(3) if j != k)
        q = p[index].sum(axis=kept)
        return q / q.sum()

    def written(name: str) -> np.ndarray:
        law = string_law(predict, 3, policy(name, t_token=1.0))
        return np.array([law.strings[s] for s in np.ndindex(p.shape)])

    assert written("ar") == pytest.approx(p.ravel())
    assert written("random") == pytest.approx(p.ravel())
    assert np.abs(written("lc") - p.ravel()).sum() > 0.05
    greedy = string_law(predict, 3, policy("lc", t_token=0.0))
    assert list(greedy.strings.values()) == [pytest.approx(1)]
