"""A portfolio says which policy draws which sample, and its samples are those of its components."""

from __future__ import annotations

import random

import pytest

import twotemp
from tests.helpers import toy_task
from twotemp.errors import UserError
from twotemp.policies import PRESETS, Portfolio, parse, parse_portfolio, policy_from_dict, spell
from twotemp.records import Policy


def names(spec: str, n: int) -> str:
    portfolio = parse_portfolio(spec)
    return " ".join(portfolio.for_sample(index).name for index in range(n))


def test_the_last_policy_goes_on_unless_it_has_a_count():
    assert names("lc + tlc:t_pos=0.5", 4) == "lc tlc tlc tlc"
    assert names("2*lc + ar + tlc", 5) == "lc lc ar tlc tlc"
    assert names("2*ct + 1*tct", 7) == "ct ct tct ct ct tct ct"


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("lc+tlc:t_pos=0.5", "lc + tlc:t_pos=0.5"),
        ("1*lc + tlc", "lc + tlc"),
        ("lc + lc + 1*tlc", "2*lc + 1*tlc"),
        (" 3 * ct:threshold=0.9 +5* tct", "3*ct:threshold=0.9 + 5*tct"),
        ("lc + tlc:t_pos=1e+06,t_token=0.5 + llada2.1", "lc + tlc:t_pos=1e+06,t_token=0.5 + llada2.1"),
        ("lc + tlc + tlc", "lc + tlc"),
        ("3*ar", "ar"),
        ("lc + lc", "lc"),
    ],
)
def test_every_spelling_has_one_canonical_form(spec, canonical):
    parsed = parse_portfolio(spec)
    assert spell(parsed) == canonical
    assert parse_portfolio(canonical) == parsed
    assert policy_from_dict(parsed.to_dict()) == parsed


def test_a_single_policy_is_a_policy_with_the_same_interface():
    policy = parse_portfolio("tct:t_pos=0.2")
    assert isinstance(policy, Policy)
    assert (policy.for_sample(5), policy.components) == (policy, (policy,))


def test_spellings_of_random_portfolios_are_read_back():
    rng = random.Random(0)
    specs = [spell(preset.policy) for preset in PRESETS.values() if not preset.policy.repel]
    for _ in range(200):
        parts = [f"{rng.randint(1, 9)}*{rng.choice(specs)}" for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.5:
            parts[-1] = parts[-1].partition("*")[2]
        portfolio = parse_portfolio(" + ".join(parts))
        again = parse_portfolio(spell(portfolio))
        assert again == portfolio
        assert [again.for_sample(index) for index in range(60)] == [
            portfolio.for_sample(index) for index in range(60)
        ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lc + tlcc", "tlcc"),
        ("lc + 0*tlc", "integer >= 1"),
        ("99999999999*lc + tlc", "at most"),
        pytest.param("9" * 5000 + "*lc + tlc", "unknown policy", id="thousands of digits"),
        ("lc + odd", "repel=0"),
        ("lc + ", "unknown policy"),
        ("lc + tlc:t_pos", "name=value"),
    ],
)
def test_mistakes_are_explained(spec, message):
    with pytest.raises(UserError, match=message):
        parse_portfolio(spec)


def test_every_policy_is_changed():
    cooler = parse_portfolio("lc + 3*tlc:t_pos=0.5 + ar").map(
        lambda policy: twotemp.policy(policy.name, t_token=0.1)
    )
    assert spell(cooler) == "lc:t_token=0.1 + 3*tlc:t_token=0.1 + ar:t_token=0.1"


def test_samples_are_the_components_token_for_token():
    """A portfolio of every preset, twice around, in several batches."""
    model = toy_task.micro_model()
    policies = [preset.policy for preset in PRESETS.values() if not preset.policy.repel]
    portfolio = Portfolio(tuple((1, policy) for policy in policies), cycle=True)
    n = 2 * len(policies) - 1
    options = {"n": n, "length": 8, "seed": 5, "ids": ["question"]}
    drawn = twotemp.sample(model, [3, 1, 4], portfolio, batch_size=7, **options)
    assert [sample.policy for sample in drawn] == [portfolio.for_sample(index) for index in range(n)]
    own = {policy: twotemp.sample(model, [3, 1, 4], policy, **options) for policy in policies}
    for sample in drawn:
        alone = own[sample.policy][sample.index]
        assert (sample.tokens, sample.nfe, sample.text) == (alone.tokens, alone.nfe, alone.text)


def test_a_policy_that_does_not_fit_is_refused_before_anything_is_drawn():
    with pytest.raises(UserError, match="lower k"):
        twotemp.sample(twotemp.load("tiny"), "1 2 -> 3", "lc + lc:k=9", n=1, length=8)
    assert parse("lc:k=9").k == 9
