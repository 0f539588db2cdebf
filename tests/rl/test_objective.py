"""Closed forms of GRPO, and TRL as the oracle where it is installed."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from tests.helpers.rl_toys import terms_of
from twotemp.rl.objective import STD_FLOOR, Clip, Terms, advantages, group_std, grpo

NAN = math.nan


def test_advantage_is_reward_minus_group_mean():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    expected = torch.tensor([[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5]])
    torch.testing.assert_close(advantages(rewards, scale=False), expected)
    std = torch.tensor([[0.5], [math.sqrt(1 / 3)]])
    torch.testing.assert_close(advantages(rewards, scale=True), expected / (std + STD_FLOOR))


def test_ungraded_rewards_count_in_no_mean():
    rewards = torch.tensor([[1.0, 0.0, NAN, NAN], [1.0, NAN, NAN, NAN], [NAN] * 4])
    found = advantages(rewards, scale=True)
    torch.testing.assert_close(found[0, :2], advantages(rewards[:1, :2], scale=True)[0])
    assert (found[0, 2:] == 0).all()
    assert (found[1:] == 0).all()  # one graded sample has nothing to be compared with


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("scale", [False, True])
def test_equal_rewards_have_exactly_zero_advantage(value, scale):
    assert (advantages(torch.full((1, 7), value), scale=scale) == 0).all()
    assert group_std(torch.full((1, 7), value)) == 0


def test_group_std():
    rewards = torch.tensor([[1.0, 0.0, 0.0, NAN], [1.0, 1.0, 1.0, 1.0], [1.0, NAN, NAN, NAN]])
    torch.testing.assert_close(group_std(rewards), torch.tensor([math.sqrt(1 / 3), 0.0, 0.0]))


def loss_of(ratio: float, advantage: float, epsilon: float = 0.2) -> tuple[float, float, float]:
    """Loss, its gradient in log q, and whether it was clipped, for one term."""
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    one = terms_of(new, torch.zeros(1), None, torch.tensor([advantage]), torch.ones(1))
    found = grpo(one, Clip(epsilon, epsilon, 0.0))
    found.total.backward()
    return found.total.item(), new.grad.item(), found.clipped.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0.0),  # at the old weights: the plain policy gradient
        (1.1, 1.0, -1.1, -1.1, 0.0),
        (1.5, 1.0, -1.2, 0.0, 1.0),  # already likelier than 1 + eps: no more push up
        (0.5, -1.0, 0.8, 0.0, 1.0),  # already rarer than 1 - eps: no more push down
        (1.5, -1.0, 1.5, 1.5, 0.0),  # a bad token that became likelier is pushed down in full
        (0.5, 1.0, -0.5, -0.5, 0.0),
    ],
)
def test_clipping(ratio, advantage, loss, gradient, clipped):
    assert loss_of(ratio, advantage) == pytest.approx((loss, gradient, clipped), abs=1e-6)


def test_kl_is_the_k3_estimator_and_pulls_to_the_reference():
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    reference = torch.tensor([-1.5, -2.0])
    weight = torch.tensor([1.0, 3.0])
    found = grpo(terms_of(new, new.detach(), reference, torch.zeros(2), weight), Clip(0.2, 0.2, 0.5))
    kl = math.exp(-0.5) + 0.5 - 1
    assert found.kl.item() == pytest.approx(kl)
    assert found.total.item() == pytest.approx(0.5 * kl)
    found.total.backward()
    torch.testing.assert_close(new.grad, torch.tensor([0.5 * (1 - math.exp(-0.5)), 0.0]))


def test_k3_has_the_expectation_of_the_kl():
    q, p = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.5, 0.25, 0.25])
    found = grpo(terms_of(q.log(), q.log(), p.log(), torch.zeros(3), q), Clip(0.2, 0.2, 1.0))
    torch.testing.assert_close(found.kl, (q * (q / p).log()).sum())


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="needs TRL, which no extra brings: pip install trl"
)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_loss_equals_trl(beta):
    """TRL's loss on a toy batch (a mean over tokens, and its newer correction of the KL off, as in d1)."""
    from trl import GRPOTrainer

    generator = torch.Generator().manual_seed(0)
    shape = (6, 5)
    logps = -torch.rand(shape, generator=generator) * 3
    old, ref = (logps + 0.4 * torch.randn(shape, generator=generator) for _ in range(2))
    mask = torch.arange(5)[None] < torch.tensor([5, 3, 4, 1, 5, 2])[:, None]
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0]])
    advantage = advantages(rewards, scale=True).flatten()
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    torch.testing.assert_close(advantage, ((rewards - mean) / (std + 1e-4)).flatten())  # TRL's formula

    theirs = logps.clone().requires_grad_()
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (theirs, torch.zeros(shape), None),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        beta=beta,
        epsilon_low=0.2,
        epsilon_high=0.2,
        loss_type="bnpo",
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=1,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(6, 1).long(),
        "prompt_mask": torch.ones(6, 1).long(),
        "completion_ids": torch.zeros(shape).long(),
        "completion_mask": mask.long(),
        "advantages": advantage,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
    }
    oracle = GRPOTrainer._compute_loss(stub, None, inputs)
    oracle.backward()

    ours = logps.clone().requires_grad_()
    row, column = mask.nonzero(as_tuple=True)
    terms = Terms(
        ours[mask],
        old[mask],
        ref[mask] if beta else None,
        torch.ones(len(row)),
        row,
        column,
        advantage,
        mask.sum(1),
        torch.arange(6) // 3,
    )
    found = grpo(terms, Clip(0.2, 0.2, beta))
    loss = found.total / mask.sum()
    loss.backward()
    torch.testing.assert_close(loss, oracle)
    torch.testing.assert_close(ours.grad, theirs.grad)
