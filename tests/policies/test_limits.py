"""Where numbers end: temperatures that float32 does not know, large offsets, EOS last; fallbacks and schedules."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from tests.helpers.policy_steps import DRAWS, chi_square, decide, logits_with_confidence, noise, step
from twotemp import records
from twotemp.errors import UserError
from twotemp.policies import PRESETS, parse, policy
from twotemp.policies.positions import RULES, SCORES
from twotemp.policies.step import PolicyBatch
from twotemp.records import PARAMETERS, Policy

Z = torch.tensor([[2.0, 1.0, 0.0, -torch.inf]])


# --- limits of the two temperatures


@pytest.mark.parametrize("t_token", [5e-324, 1e-46, 1e-40])
def test_a_token_temperature_below_float32_is_greedy(t_token):
    assert set(decide(policy("lc", t_token=t_token), Z, 500).tokens[:, 0].tolist()) == {0}


@pytest.mark.parametrize("t_token", [1e30, 1e39, 1.7e308])
def test_a_token_temperature_above_float32_is_uniform_over_what_is_possible(t_token):
    tokens = decide(policy("lc", t_token=t_token), Z, DRAWS).tokens[:, 0]
    assert chi_square(torch.bincount(tokens, minlength=4).tolist()[:3], [1 / 3] * 3) > 1e-3
    assert int(tokens.max()) == 2


def test_the_smallest_nucleus_is_the_likeliest_token():
    found = decide(policy("lc", t_token=1.0, top_p=1e-46), Z, 500)
    assert set(found.tokens[:, 0].tolist()) == {0}


@pytest.mark.parametrize("t_pos", [1e200, 1.7e308, math.inf])
def test_the_hottest_position_temperatures_are_random_order(t_pos):
    table = logits_with_confidence([0.99, 0.21, 0.5, 0.9])
    found = decide(policy("tlc", t_token=0.0, t_pos=t_pos), table, DRAWS)
    assert torch.equal(found.commit, decide(policy("random", t_token=0.0), table, DRAWS).commit)
    assert chi_square(found.commit.sum(0).tolist(), [0.25] * 4) > 1e-3


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_log_confidence_keeps_its_digits_at_large_offsets(offset):
    z = torch.tensor([[3.0, 2.5, -1.0]]) + offset
    exact = torch.log_softmax(z.double(), -1)[0, 0]
    found = decide(policy("lc", t_token=0.0), z, 1)
    assert float(found.confidence[0, 0].double().log()) == pytest.approx(float(exact), abs=1e-6)


def test_half_precision_logits_are_summed_in_float32():
    z = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0)).bfloat16()
    half, single = (decide(policy("tct", t_token=1.0), logits, 8) for logits in (z, z.float()))
    assert torch.equal(half.tokens, single.tokens)
    assert torch.equal(half.confidence, single.confidence)


# --- EOS last


@pytest.mark.parametrize("name", ["tlc", "tct", "klass", "eb", "soft-ar"])
@pytest.mark.parametrize("t_pos", [1e9, math.inf])
def test_eos_last_is_last_at_every_position_temperature(name, t_pos):
    table = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.5]])  # token 0 is EOS, and very sure
    found = decide(policy(name, t_token=1.0, t_pos=t_pos, eos="last"), table, 500, eos=(0,))
    early = found.commit & (found.tokens == 0)
    others_left = ((found.tokens != 0) & ~found.commit).any(1)
    assert not bool((early.any(1) & others_left).any())
    assert bool((found.commit.sum(1) >= 1).all())


# --- fallbacks


def test_klass_falls_back_to_the_most_confident_of_all():
    """The surest position keeps moving, an unsure one is stable: nothing is ready, and the surest goes."""
    chosen = policy("klass", t_token=0.0, threshold=0.9, kl_bound=0.01, kl_steps=1)
    batch, masked, memory = PolicyBatch([chosen]), torch.ones(1, 2, dtype=torch.bool), None
    for number in range(3):
        table = logits_with_confidence([0.3, 0.6 + 0.2 * (number % 2)])
        decision, memory = step(batch, noise(1, 2, number), table, masked, memory=memory)
        assert decision.commit.tolist() == [[False, True]]
    assert memory.stable.tolist() == [[2, 0]]


def test_a_leftmost_fallback_fills_up_from_the_left():
    table = logits_with_confidence([0.3, 0.5, 0.95, 0.4])
    frame = {
        "name": "own",
        "score": "confidence",
        "rule": "threshold",
        "fallback": "leftmost",
        "t_token": 0.0,
    }
    for threshold, k, expected in ((0.99, 1, [0]), (0.99, 2, [0, 1]), (0.9, 1, [2]), (0.9, 2, [0, 2])):
        found = decide(Policy(**frame, threshold=threshold, k=k), table, 1)
        assert found.commit[0].nonzero()[:, 0].tolist() == expected


# --- schedules


@pytest.mark.parametrize(
    ("masks", "steps", "expected"), [(8, 5, [2, 2, 2, 1, 1]), (5, 8, [1] * 5), (6, 3, [2] * 3)]
)
@pytest.mark.parametrize("name", ["lc", "random", "tlc"])
def test_steps_split_a_block_as_llada_does(name, masks, steps, expected):
    """base = n // steps, and one more in each of the first n % steps steps."""
    batch, left, taken = PolicyBatch([policy(name, steps=steps, t_token=0.0)]), masks, []
    while left:
        masked = (torch.arange(masks) < left)[None]
        since = torch.tensor([len(taken)])
        found, _ = step(batch, noise(1, masks, 7), torch.randn(left, 5), masked, block_step=since)
        taken.append(int(found.commit.sum()))
        left -= taken[-1]
    assert taken == expected


# --- parameters, scores and rules are listed once


def test_names_of_scores_and_rules_are_those_of_the_tables():
    assert set(SCORES) == set(get_args(records.Score))
    assert set(RULES) == set(get_args(records.Rule))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "treshold"}, "unknown value of rule 'treshold'; did you mean 'threshold'"),
        ({"score": "confidense"}, "unknown value of score 'confidense'; did you mean 'confidence'"),
        ({"confidence": "modle"}, "unknown value of confidence 'modle'; did you mean 'model'"),
        ({"fallback": "left"}, "did you mean 'leftmost'"),
        ({"schedule": "dreem"}, "did you mean 'dream'"),
        ({"inclusive": 1}, "inclusive must be true or false, not 1"),
        ({"t_pos": None}, "t_pos must be in .*, not None"),
        ({"t_token": "0.8"}, "t_token must be in .*, not '0.8'"),
        ({"entropy_bound": -1.0}, "entropy_bound must be in"),
        ({"steps": -1}, "steps must be an integer >= 0"),
        ({"k": True}, "k must be an integer >= 1"),
        ({"top_k": 2**31}, "top_k must be at most 2147483647"),
        ({"name": ["x"]}, "a policy's name must be a string"),
    ],
)
def test_every_field_of_a_policy_is_checked(fields, message):
    with pytest.raises(UserError, match=message):
        Policy(**{"name": "own", "score": "confidence", "rule": "threshold", **fields})


def test_every_parameter_can_be_spelled():
    for name, preset in PRESETS.items():
        for key in preset.settable:
            value = getattr(preset.policy, key)
            assert type(PARAMETERS[key].read(key, str(value))) is type(value)
            assert parse(f"{name}:{key}={value}") == preset.policy


def test_true_and_false_are_read_as_such():
    parameter = PARAMETERS["inclusive"]
    assert [parameter.read("inclusive", text) for text in ("true", "false", "False")] == [True, False, False]
    with pytest.raises(UserError, match="true or false"):
        parameter.checked("inclusive", parameter.read("inclusive", "no"))
