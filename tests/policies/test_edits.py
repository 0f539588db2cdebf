"""Policies that write again what they wrote: laws in closed form, budgets, traces, and who may not read them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

import twotemp
from tests.helpers.engine_requests import requests_of
from tests.helpers.policy_steps import chi_square, noise
from tests.helpers.toy import FixedModel, ToyModel
from twotemp.engine import LiveBatches, run, states
from twotemp.errors import UserError
from twotemp.experimental.editing import BlockText
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import Completion, CompletionBatch
from twotemp.models.base import language_model
from twotemp.policies import PRESETS, policy
from twotemp.policies.step import PolicyBatch
from twotemp.records import Sample, Trace
from twotemp.sampling.requests import Prefix

EDITORS = [name for name, preset in PRESETS.items() if preset.policy.edit != "never"]
Q = (0.5, 0.3, 0.15, 0.05)
MASK = 4


def drawn_at_one(name: str, **numbers) -> twotemp.Policy:
    """Commits whatever it draws, so that only the edits decide."""
    return policy(name, t_token=1.0, threshold=0.0, **numbers)


def one_token_each(chosen, n=4000) -> list[Sample]:
    table = torch.tensor([[*map(math.log, Q), -math.inf]] * 2)
    return twotemp.sample(FixedModel(table, MASK), [0], chosen, n=n, length=1, batch_size=n)


def counts(values, kinds: int) -> list[int]:
    return torch.bincount(torch.tensor(list(values)), minlength=kinds).tolist()


@pytest.mark.parametrize("edits", [1, 2])
def test_a_remasked_token_is_drawn_again_until_it_is_likely_or_the_budget_is_spent(edits):
    """With s = q(tokens below tau): q(v) (1 + s + ... + s^e) for the others, q(v) s^e for these. Each remask costs
    two steps: P(NFE = 2 + 2r) = s^r (1 - s), and s^e for r = e."""
    found = one_token_each(drawn_at_one("t2m", edit_threshold=0.2, edits=edits))
    s = Q[2] + Q[3]
    law = [q * (sum(s**r for r in range(edits + 1)) if q >= 0.2 else s**edits) for q in Q]
    assert chi_square(counts((x.tokens[0] for x in found), 4), law) > 1e-3
    times = [*(s**r * (1 - s) for r in range(edits)), s**edits]
    assert chi_square(counts(((x.nfe - 2) // 2 for x in found), edits + 1), times) > 1e-3


@pytest.mark.parametrize("edits", [1, 2])
def test_a_token_is_overwritten_by_another_above_tau_until_none_is_drawn(edits):
    """The chain by brute force: from v to w != v with probability q(w) if q(w) > tau; else v stays for good."""
    tau = 0.2
    found = one_token_each(drawn_at_one("llada2.1", edit_threshold=tau, edits=edits))
    moving, resting = list(Q), [0.0] * 4
    for _ in range(edits):
        after = [0.0] * 4
        for v, mass in enumerate(moving):
            for w, q in enumerate(Q):
                goes = w != v and q > tau
                (after if goes else resting)[w if goes else v] += mass * q
        moving = after
    law = [a + b for a, b in zip(moving, resting)]
    assert chi_square(counts((x.tokens[0] for x in found), 4), law) > 1e-3


@pytest.mark.parametrize("name", EDITORS)
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_edits_follow_their_rule(name, share):
    """Row by row and position by position."""
    rows, width, vocab, budget, tau = 60, 6, 9, 2, 0.15
    source = torch.Generator().manual_seed(1)
    z = torch.randn(rows * width, vocab, generator=source)
    chosen = replace(policy(name, t_token=1.0, edit_threshold=tau, edits=budget), edit_share=share)
    stood = torch.randint(0, vocab - 1, (rows, width), generator=source)
    masked = torch.rand(rows, width, generator=source) < 0.3
    used = torch.randint(0, budget + 1, (rows, width), generator=source)
    everything = torch.ones_like(masked)
    text = BlockText(stood.masked_fill(masked, vocab - 1), everything, used)
    batch, at = (
        PolicyBatch([chosen] * rows, forbidden_ids=[vocab - 1], mask_id=vocab - 1),
        noise(rows, width),
    )
    drawn = batch.draw(at, z, everything, torch.arange(rows * width), text=text)
    plain = batch.choose(at, drawn, masked)[0]
    made = batch.choose(at, drawn, masked, text=text)[0]

    z[:, vocab - 1] = -math.inf
    q = z.softmax(-1).view(rows, width, vocab)
    expected = torch.zeros_like(masked)
    for row in range(rows):
        doubts = {}
        for place in (~masked[row]).nonzero()[:, 0].tolist():
            token, other = int(stood[row, place]), int(drawn.tokens[row, place])
            if name == "t2m":
                wrong, doubt = float(q[row, place, token]) < tau, -float(q[row, place, token])
            else:
                wrong = other != token and float(q[row, place, other]) > tau
                doubt = float(q[row, place, other])
            if wrong and used[row, place] < budget:
                doubts[place] = doubt
        most = max(1, math.floor(share * int((~masked[row]).sum())))
        for place in sorted(doubts, key=lambda p: -doubts[p])[:most]:
            expected[row, place] = True
    assert torch.equal(made.edit, expected)
    assert bool(expected.any())
    assert torch.equal(made.commit, plain.commit | expected)  # masks are committed as if nothing were edited
    new = torch.full_like(stood, vocab - 1) if name == "t2m" else drawn.tokens
    assert torch.equal(made.tokens[expected], new[expected])


@pytest.mark.parametrize("name", EDITORS)
def test_traces_keep_what_was_rewritten_within_the_budget(name):
    model = ToyModel(sharpness=1.5)
    found = list(run(model, requests_of(model, policy(name, edits=2), trace=True)))
    assert sum(len(sample.trace.edits) for sample in found) > 5
    for sample in found:
        stored = json.loads(json.dumps(sample.to_dict()))
        assert Sample.from_dict(stored) == sample
        rewritten = [n for _, n, token in sample.trace.edits if token != model.mask_id]
        assert max((rewritten.count(n) for n in rewritten), default=0) <= 2
        steps = [step for step, _, _ in sample.trace.edits]
        assert steps == sorted(steps)
        seen = [row for row, _ in states(sample, model.mask_id)]
        for step, n, token in sample.trace.edits:
            assert seen[step + 1][sample.positions[n]] == token


def test_a_trace_without_edits_does_not_write_them():
    plain = {"steps": [0, 1], "confidence": [0.5, 0.25], "entropy": [0.1, 0.2]}
    trace = Trace.from_dict(plain)
    assert trace.edits == ()
    assert json.loads(json.dumps(trace.to_dict())) == plain


def test_an_eos_stop_waits_until_the_block_is_final():
    """The model is sure of EOS as long as the first block has a mask, and of another token afterwards."""
    model = FixedModel(torch.zeros(5, 4), mask_id=3, eos_ids=(1,))
    first, then = (torch.eye(4)[token] * 20 for token in (1, 2))

    def changing(ids, attention_mask, want):
        return torch.where((ids[:, 1:3] == 3).any(), first, then).expand(len(want), -1)

    model.logits = changing
    for name, token in (("llada2", 1), ("llada2.1", 2)):
        (found,) = twotemp.sample(model, [0], policy(name), length=4, block=2, eos_stop=True)
        assert found.tokens == (token,) * 4, name


def test_text_that_may_be_edited_is_not_final():
    model = language_model(ToyModel(sharpness=1.5))
    for name in ("lc", "t2m"):
        (request,) = requests_of(model, policy(name), count=1, length=4)
        prefix, told = Prefix(model, request), []
        live = LiveBatches(model, 1)
        live.submit(request, watch=True)
        while not live.idle:
            told += [event for _, event in live.turn()]
        for written in told[:-1]:
            prefix.write(written)
        assert tuple(prefix.canvas) == told[-1].tokens
        assert (prefix.length == 0) == (name == "t2m")


@pytest.mark.parametrize("estimate", ["trajectory", "fork", "deferral", "order"])
def test_likelihoods_of_the_path_refuse_edited_samples(estimate):
    model = ToyModel()
    found = list(run(model, requests_of(model, policy("t2m"), count=2, trace=True)))
    completions = [Completion.from_sample(sample) for sample in found]
    batch = CompletionBatch.pad(completions, eos_ids=model.eos_ids, mask_id=model.mask_id)
    with pytest.raises(UserError, match="rewrites tokens"):
        ESTIMATORS[estimate](batch)
    ESTIMATORS["ar"](batch)
