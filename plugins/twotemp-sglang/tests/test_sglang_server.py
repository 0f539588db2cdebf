"""The SGLang plug-in, inside an engine that schedules as SGLang does (fake_sglang.py)."""

from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest
import torch

import fake_sglang
from fake_sglang import LENGTH, wanted
from tests.helpers.policy_steps import chi_square, logits_with_confidence
from tests.helpers.tiny_checkpoints import BLOCK, EOS, MASK
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.policies import PRESETS, parse
from twotemp.policies.step import PolicyBatch
from twotemp.records import Request
from twotemp.rng import Noise, row_key
from twotemp_sglang import server

# SGLang cannot change committed tokens and draws rows independently, so policies that edit or repel are refused.
WRITERS = [
    name for name, preset in PRESETS.items() if preset.policy.edit == "never" and not preset.policy.repel
]
PAPERS = ("ar", "lc", "tlc", "ct", "tct", "klass")


@pytest.mark.parametrize("fdfo", [True, False], ids=["fdfo", "sync"])
def test_every_policy_writes_the_same_samples_as_our_engine(checkpoint, algorithm, fdfo):
    """All policies run together, four rows at a time, including EOS and ids without a token."""
    model, folder = checkpoint
    more = ("tct:eos=never", "lc:eos=last", "tlc:t_pos=1,top_p=0.9,k=2", "lc:steps=2")
    requests = wanted(*(WRITERS if fdfo else PAPERS), *more)
    engine = fake_sglang.Engine(algorithm, model, folder, fdfo=fdfo)
    rows = engine.generate([fake_sglang.asked(request, engine.config) for request in requests])
    expected = {(s.key, s.policy): s for s in run(model, requests)}
    assert any(EOS in s.tokens for s in expected.values())
    for request, row in zip(requests, rows):
        own = expected[request.key, request.policy]
        info = {name: values[:LENGTH] for name, values in row.customized_info.items()}
        assert tuple(row.output_ids[:LENGTH]) == own.tokens, request
        assert tuple(info[server.STEPS]) == own.trace.steps, request
        assert info["step_maps"] == [step + 1 for step in own.trace.steps], request
        assert info[server.CONFIDENCE] == pytest.approx(own.trace.confidence, abs=1e-5)
        assert info[server.ENTROPY] == pytest.approx(own.trace.entropy, abs=1e-5)
        blocks = -(-(len(request.prompt) + LENGTH) // BLOCK) - len(request.prompt) // BLOCK
        steps = max(row.customized_info[server.STEPS]) + 1
        # Every block takes one more pass, for the keys and values of its final tokens.
        assert row.customized_info[server.FORWARDS][-1] == steps + blocks


def rows_of(algorithm, checkpoint, specs, keys, logits):
    """Run the first step of fully masked rows with the same logits [W, V]; return the ids and the states."""
    model, folder = checkpoint
    engine = fake_sglang.Engine(algorithm, model, folder, fdfo=True)
    reqs = [
        fake_sglang.req((1, 2, 3, 4), 4, engine.config, policy=spec, request="q", index=key, trace=True)
        for spec, key in zip(specs, keys)
    ]
    batch = SimpleNamespace(
        input_ids=torch.full((BLOCK * len(reqs),), MASK),
        positions=torch.arange(BLOCK, 2 * BLOCK, dtype=torch.int32).repeat(len(reqs)),
        twotemp_requests=reqs,
        twotemp_model=engine.about,
    )
    states = engine.algorithm.init_step_state(batch)
    assert engine.algorithm.step(batch, logits.repeat(len(reqs), 1), states) == [False] * len(reqs)
    return batch.input_ids.view(-1, BLOCK), states


def test_decisions_equal_those_of_policy_batch_exactly(checkpoint, algorithm):
    model, _ = checkpoint
    logits = torch.randn(BLOCK, model.vocab_size, generator=torch.Generator().manual_seed(1))
    specs = [spec for spec in WRITERS for _ in range(3)]
    ids, states = rows_of(algorithm, checkpoint, specs, range(len(specs)), logits)
    for row, (spec, block) in enumerate(zip(specs, states)):
        batch = PolicyBatch([parse(spec)], eos_ids=model.eos_ids, forbidden_ids=model.forbidden_ids)
        key = torch.tensor([row_key(0, "q", row)])
        noise = Noise(key, torch.tensor([0]), torch.arange(BLOCK, 2 * BLOCK)[None])
        masked, _ = batch.candidates(torch.ones(1, BLOCK, dtype=torch.bool), torch.tensor([BLOCK]))
        index = masked.flatten().nonzero()[:, 0]
        drawn = batch.draw(noise, logits[index], masked, index, entropy=True)
        made, _ = batch.choose(noise, drawn, masked)
        assert torch.equal(ids[row], torch.where(made.commit, made.tokens, MASK)[0]), spec
        chosen = made.commit[0].nonzero()[:, 0].tolist()
        assert block.written == {
            at: (0, made.confidence[0, at].item(), made.entropy[0, at].item()) for at in chosen
        }


CONFIDENCES = [0.8, 0.6, 0.4, 0.3]
DRAWS = 2000


def first_sets(algorithm, checkpoint, spec):
    """Count the sets of positions that samples commit in their first step."""
    logits = torch.full((BLOCK, 40), -torch.inf)
    peaked = logits_with_confidence(CONFIDENCES)
    logits[:, : peaked.shape[1]] = peaked
    ids, _ = rows_of(algorithm, checkpoint, [spec] * DRAWS, range(DRAWS), logits)
    return Counter(map(tuple, (ids != MASK).tolist()))


@pytest.mark.parametrize("t_pos", [0.3, 1.0])
def test_the_first_pick_of_tlc_follows_the_tempered_confidence(checkpoint, algorithm, t_pos):
    sets = first_sets(algorithm, checkpoint, f"tlc:t_token=0,t_pos={t_pos}")
    weights = [c ** (1 / t_pos) for c in CONFIDENCES]
    counts = [sets[tuple(column == n for column in range(BLOCK))] for n in range(BLOCK)]
    assert sum(counts) == DRAWS
    assert chi_square(counts, [w / sum(weights) for w in weights]) > 1e-3


def test_the_sets_of_tct_follow_their_law(checkpoint, algorithm):
    """Positions are included independently with probability sigma((c - lambda) / T_pos); an empty set gets one."""
    sets = first_sets(algorithm, checkpoint, "tct:t_token=0,threshold=0.5,t_pos=0.2")
    coins = torch.sigmoid((torch.tensor(CONFIDENCES) - 0.5) / 0.2).tolist()
    law: Counter[tuple[bool, ...] | None] = Counter()
    for subset in product([True, False], repeat=BLOCK):
        p = 1.0
        for chosen, coin in zip(subset, coins):
            p *= coin if chosen else 1 - coin
        law[subset if sum(subset) > 1 else None] += p
    counts = {subset: sets[subset] for subset in law if subset is not None}
    counts[None] = DRAWS - sum(counts.values())
    assert sets[(False,) * BLOCK] == 0
    assert chi_square([counts[subset] for subset in law], list(law.values())) > 1e-3


def test_a_block_that_sglang_abandons_is_drawn_again_identically(checkpoint, algorithm):
    model, folder = checkpoint
    engine = fake_sglang.Engine(algorithm, model, folder, fdfo=True)
    requests = wanted("tlc:t_pos=1", "klass")
    whole = engine.generate([fake_sglang.asked(request, engine.config) for request in requests])
    again = [fake_sglang.asked(request, engine.config) for request in requests]
    for row in again:
        for _ in range(5):  # the last step is in the middle of a block
            engine._round([row])
        assert row.state is not None
        row.state = row.block = None
    engine.generate(again)
    assert [(r.output_ids, r.customized_info) for r in again] == [
        (r.output_ids, r.customized_info) for r in whole
    ]


def test_a_request_without_options_uses_sglangs_id_and_the_servers_policy(checkpoint, algorithm):
    model, folder = checkpoint
    engine = fake_sglang.Engine(algorithm, model, folder, fdfo=True, policy="tlc:t_pos=1")
    requests = [fake_sglang.req((1, 2, 3, 4), 8, engine.config, rid=rid) for rid in ("x", "y", "x")]
    x, y, same = engine.generate(requests)
    assert x.output_ids == same.output_ids != y.output_ids
    (own,) = run(model, [Request("x", (1, 2, 3, 4), parse("tlc:t_pos=1"), 8)])
    assert tuple(x.output_ids) == own.tokens
    assert server.CONFIDENCE not in x.customized_info


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"custom": {"policy": "tctt"}}, "did you mean 'tct'"),
        ({"custom": {"polcy": "tct"}}, "did you mean 'policy'"),
        ({"custom": {"policy": {"name": "x"}}}, "policy"),
        ({"custom": {"policy": "t2m"}}, "rewrites tokens"),
        ({"custom": {"policy": "odd"}}, "whole groups, which SGLang cannot do"),
        (
            {"custom": {"policy": {"name": ["x"], "score": "confidence", "rule": "threshold"}}},
            "must be a string",
        ),
        ({"custom": {"policy": f"lc:top_k={10**30}"}}, "top_k must be at most"),
        ({"custom": {"seed": "many"}}, "custom_params"),
        ({"custom": {"seed": float("inf")}}, "custom_params"),
        ({"custom_params": ["policy"]}, "names to values"),
        ({"prompt": (1, MASK)}, "mask token"),
        ({"repetition_penalty": 1.2, "regex": "a*"}, "repetition_penalty, regex: not supported by TwoTemp"),
    ],
)
def test_invalid_requests_are_refused_before_anything_is_computed(algorithm, change, message):
    config = SimpleNamespace(mask_id=MASK, algorithm_config={})
    custom = change.pop("custom", {})
    request = fake_sglang.req(change.pop("prompt", (1, 2)), 8, config, **custom)
    vars(request.sampling_params).update(change)
    assert message in str(algorithm.validate_request(request))
    assert algorithm.validate_request(fake_sglang.req((1, 2), 8, config)) is None


def test_nan_logits_end_only_their_request(checkpoint, algorithm):
    model, folder = checkpoint
    engine = fake_sglang.Engine(algorithm, model, folder, fdfo=True)
    broken, healthy = (fake_sglang.asked(request, engine.config) for request in wanted("ct"))
    forward = engine._forward

    def forward_with_nan(batch):
        logits = forward(batch).clone().view(-1, BLOCK, model.vocab_size)
        logits[[n for n, row in enumerate(batch.twotemp_requests) if row is broken]] = torch.nan
        return logits.flatten(0, 1)

    engine._forward = forward_with_nan
    engine.generate([broken, healthy])
    assert "NaN or infinite" in broken.to_finish.message
    assert healthy.to_finish is None


def test_another_version_of_sglang_is_refused_when_a_server_starts(algorithm, monkeypatch):
    algorithm.configure_server_args(None)
    monkeypatch.setattr(server, "version", lambda name: "0.6.0")
    with pytest.raises(
        UserError, match=r"SGLang 0\.5\.23, and this is 0\.6\.0.*pip install sglang==0\.5\.23"
    ):
        algorithm.configure_server_args(None)
