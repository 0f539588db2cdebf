"""The planted fork: enumeration and engine agree, and both show the paper's effects."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from experiments import paper, theory
from experiments.theory import PLANTED as POLICIES
from theory import planted
from theory.planted import ANCHORS, FORK, POPULATION, SAMPLE, WORDS
from theory.statements import fork_quality, sandwich
from theory.strings import entropy, string_law
from twotemp.metrics import pass_at_k
from twotemp.policies import parse

N = 4000
SIGMAS = 5.0  # with sixty comparisons, chance exceeds this once in a hundred thousand runs


def test_the_programs_run_and_have_different_outcomes():
    outcomes = {words: planted.outcome(planted.encode(words)) for words, _ in planted.programs()}
    assert len(outcomes) == 18
    assert sum(p for _, p in planted.programs()) == pytest.approx(1, abs=1e-12)
    assert {o for w, o in outcomes.items() if w[FORK] == "numpy"} == {POPULATION}
    assert {o for w, o in outcomes.items() if w[FORK] == "statistics"} == {POPULATION, SAMPLE}
    broken = planted.encode(("numpy", "stdev", "x", "return", "sd("))
    assert planted.outcome(broken) == "ImportError"


def test_anchors_are_more_confident_than_the_fork_and_reduce_its_entropy():
    """Both conditions of assumption 1 hold along the path of greedy LC."""
    state: list[int | None] = [None] * planted.LENGTH
    entropies = [entropy(planted.predict(tuple(state), FORK))]
    remaining = list(ANCHORS)
    while remaining:
        sure = {a: planted.predict(tuple(state), a) for a in remaining}
        best = max(remaining, key=lambda a: sure[a].max())
        assert min(q.max() for q in sure.values()) > planted.predict(tuple(state), FORK).max()
        state[best] = int(sure[best].argmax())
        remaining.remove(best)
        entropies.append(entropy(planted.predict(tuple(state), FORK)))
    falls = -np.diff(entropies)
    assert (falls > 0).all()
    assert entropies[-1] == pytest.approx(planted.exact(parse("lc:t_token=0")).fork_entropy, abs=1e-12)


@pytest.mark.parametrize("spec", POLICIES)
def test_the_engine_samples_the_enumerated_law(spec):
    policy = parse(spec)
    theory, drawn = planted.exact(policy), planted.draw(policy, N, seed=3)
    sampled = drawn.outcomes()

    assert set(sampled.outcomes) <= {o for o, p in theory.outcomes.items() if p > 0}
    for name in ("outcomes", "libraries"):
        for value, p in getattr(theory, name).items():
            error = math.sqrt(p * (1 - p) / N)
            assert abs(getattr(sampled, name).get(value, 0.0) - p) <= SIGMAS * error + 1e-12, (name, value)

    error = drawn.fork_entropies.std() / math.sqrt(N)
    assert abs(sampled.fork_entropy - theory.fork_entropy) <= SIGMAS * error + 1e-6  # the engine's float32

    p = np.array([p for p in theory.outcomes.values() if p > 0])
    spread = math.sqrt(max((p * np.log(p) ** 2).sum() - entropy(p) ** 2, 0))  # of -log p(outcome)
    bias = (len(p) - 1) / (2 * N)
    assert abs(sampled.semantic_entropy - theory.semantic_entropy) <= SIGMAS * spread / math.sqrt(N) + bias

    ks = [1, 4, 16, 64]
    right = sum(planted.outcome(t) == SAMPLE for t in drawn.tokens)
    p1 = theory.pass_at(1)
    for k, value in zip(ks, pass_at_k([N], [right], ks)[0]):
        slope = k * (1 - p1) ** (k - 1)
        error = slope * math.sqrt(p1 * (1 - p1) / N) + (k / N)
        assert abs(value - theory.pass_at(k)) <= SIGMAS * error


def test_at_t_token_1_an_order_independent_of_draws_recovers_the_table():
    table = {planted.encode(words): p for words, p in planted.programs()}
    for spec in ("ar:t_token=1", "random:t_token=1"):
        law = string_law(planted.predict, planted.LENGTH, parse(spec)).strings
        assert law == pytest.approx(table, abs=1e-12)


def test_low_confidence_loses_an_outcome_that_tempering_recovers():
    lc, half, full, ar = (planted.exact(parse(s)) for s in ("lc", "tlc:t_pos=0.5", "tlc:t_pos=1", "ar"))
    assert lc.semantic_entropy < half.semantic_entropy < full.semantic_entropy < ar.semantic_entropy
    assert lc.fork_entropy < half.fork_entropy < ar.fork_entropy
    assert lc.pass_at(16) < 0.1
    assert full.pass_at(16) > 0.9
    ct, tct = planted.exact(parse("ct")), planted.exact(parse("tct:t_pos=0.1"))
    assert ct.semantic_entropy < tct.semantic_entropy
    assert ct.fork_entropy < tct.fork_entropy


@pytest.mark.parametrize("spec", POLICIES)
def test_fork_entropy_bounds_semantic_entropy(spec):
    """The sandwich bound under the sampling distribution, with the library as the fork."""
    law = string_law(planted.predict, planted.LENGTH, parse(spec))
    joint = law.joint(lambda s: WORDS[s[FORK]], planted.outcome)
    quality = fork_quality(joint)
    assert sandwich(joint, quality).holds()
    if spec == "ar":  # both sides of the bound are at work: neither the fork nor the outcome fixes the other
        assert quality.epsilon > 0.2
        assert quality.delta > 0.2


def test_the_table_in_the_documentation_is_correct():
    stored = json.loads((paper.RESULTS / "theory.json").read_text())["found"]["planted"]
    assert [row["policy"] for row in stored] == list(POLICIES)
    for row in stored:
        assert theory.outcomes(row.pop("policy")) == pytest.approx(row, abs=1e-12)
