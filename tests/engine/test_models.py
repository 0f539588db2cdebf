"""What the engine does with any model: masks forbidden, logits left alone, whole blocks, half precision."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.engine_requests import by_key, requests_of, same
from tests.helpers.random_models import MODELS
from tests.helpers.tiny_checkpoints import BLOCK, BLOCK_CAUSAL, CONFIGS, random_model
from tests.helpers.toy import FixedModel, ToyModel
from twotemp.engine import run
from twotemp.engine.batch import Batch
from twotemp.errors import UserError
from twotemp.policies import PRESETS, policy
from twotemp.records import Request

# --- any Denoiser


@pytest.mark.parametrize("name", PRESETS)
def test_the_mask_is_never_written_whatever_the_model_says(name):
    table = torch.zeros(10, 6)
    table[:, 5] = 9.0  # the mask token is by far the likeliest
    model = FixedModel(table, mask_id=5)
    model.forbidden_ids = ()
    (found,) = run(model, [Request("q", (2, 3), policy(name), 8, 4)])
    assert 5 not in found.tokens
    assert len(found.tokens) == 8


@pytest.mark.parametrize("eos", ["free", "never"])
def test_logits_of_the_model_are_not_modified(eos):
    table = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    model = FixedModel(table.clone(), mask_id=5, eos_ids=(1,))
    model.logits = lambda ids, attention_mask, want: model.table  # itself: all eight positions are wanted
    list(run(model, [Request("q", (5,) * 8, policy("ct", threshold=0.0, eos=eos), 0, 8)]))
    assert torch.equal(model.table, table)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_accepted(dtype):
    model = ToyModel()
    honest = model.logits
    model.logits = lambda *given: honest(*given).to(dtype)
    assert len(list(run(model, requests_of(model, policy("tct"), count=3, trace=True)))) == 3


# --- the last block of block-causal models


def block_by_block(model, prompt, length, threshold, k):
    """Upstream's loop, greedy: SDAR and LLaDA-2 have a canvas of whole blocks, cut to `length` at the end."""
    canvas = len(prompt) + length
    if model.completes_blocks:
        canvas = -(-canvas // BLOCK) * BLOCK
    ids = torch.tensor([[*prompt, *[model.mask_id] * (canvas - len(prompt))]])
    for start in range(len(prompt) // BLOCK * BLOCK, canvas, BLOCK):
        seen = ids[:, : start + BLOCK]
        while bool((seen[:, start:] == model.mask_id).any()):
            want = seen == model.mask_id
            z = model.logits(seen, None, want).index_fill(1, torch.tensor(model.forbidden_ids), -torch.inf)
            c, tokens = torch.softmax(z, -1).max(-1)
            at = want[0].nonzero()[:, 0]
            chosen = c > threshold
            chosen[c.topk(min(k, len(c))).indices] = True
            seen[0, at[chosen]] = tokens[chosen]
    return tuple(ids[0, len(prompt) : len(prompt) + length].tolist())


BD3LM = [family for family in CONFIGS if family.startswith("a2d")]  # A2D comes in both kinds


@pytest.mark.parametrize("family", [*BLOCK_CAUSAL, *BD3LM])
@pytest.mark.parametrize("threshold", [0.25, 1.0])
@torch.inference_mode()
def test_the_last_block_is_as_upstream_leaves_it(family, threshold):
    model = random_model(family, changes={"block_size": BLOCK})
    assert model.block_size == BLOCK
    chosen = policy("sdar", t_token=0.0, threshold=threshold, k=2)
    wanted = [Request(str(n), tuple(range(2, 4 + n)), chosen, 5 + n % 3, trace=True) for n in range(8)]
    assert any((len(r.prompt) + r.length) % BLOCK for r in wanted)
    for request, found in zip(wanted, sorted(run(model, wanted, batch_size=3), key=lambda s: s.request)):
        assert found.tokens == block_by_block(model, request.prompt, request.length, threshold, 2)
        assert len(found.positions) == len(found.trace.steps) == request.length
        assert max(found.trace.steps) + 1 == found.nfe == found.forwards, (
            "over when all that was asked for is written"
        )


def test_families_whose_samplers_end_inside_a_block():
    ending = {family for family in [*BLOCK_CAUSAL, *BD3LM] if not random_model(family).completes_blocks}
    assert BD3LM
    assert ending == {"StableDiffcoderForCausalLM", *BD3LM}


def test_a_block_is_completed_no_further_than_the_context():
    model = random_model("sdar", changes={"max_position_embeddings": 18})
    (found,) = run(model, [Request("q", tuple(range(2, 10)), policy("lc"), 9)])
    assert len(found.tokens) == 9


# --- NFE of left-to-right decoding


@pytest.mark.parametrize(("length", "block", "k"), [(6, 3, 2), (7, 4, 3), (9, 9, 2), (5, 2, 2)])
def test_left_to_right_counts_the_passes_that_were_needed(length, block, k):
    model = FixedModel(torch.eye(12, 6) * 5 + torch.tensor([0, 0, 0, 3.0, 0, 0]), mask_id=5)
    (found,) = run(model, [Request("q", (2, 2), policy("ar", k=k, t_token=0.0), length, block)])
    assert found.nfe == found.forwards


def test_left_to_right_counts_up_to_eos_block_by_block():
    table = torch.zeros(11, 6)
    table[:, 3] = 5.0
    table[2 + 5] = torch.tensor([0, 9.0, 0, 0, 0, 0])  # EOS after five tokens
    model = FixedModel(table, mask_id=5, eos_ids=(1,))
    (found,) = run(model, [Request("q", (2, 2), policy("ar", k=2, t_token=0.0), 9, 3)])
    assert (found.nfe, found.forwards) == (3, 6)  # 2 + 1 tokens, then 2 before EOS


# --- steps split by block


def test_steps_are_split_in_every_block():
    model = ToyModel()
    wanted = [Request(str(n), (2, 3, 4), policy("tlc", steps=n), 16, 8, trace=True) for n in (3, 5, 8)]
    for found in run(model, wanted):
        steps, n = found.trace.steps, found.policy.steps
        for block in (steps[:8], steps[8:]):
            counts = [block.count(step) for step in sorted(set(block))]
            assert counts == [8 // n + (i < 8 % n) for i in range(n)]


# --- a fixed shape


@pytest.mark.parametrize("family", CONFIGS)
def test_in_bfloat16_a_fixed_shape_keeps_samples_the_same(family):
    model = random_model(family)
    model.module.to(torch.bfloat16)
    shape = {"batch_size": 3, "columns": 40}
    wanted = requests_of(model, policy("tct"), count=5, length=9)
    together = by_key(run(model, wanted, **shape))
    others = by_key(run(model, wanted[::-1][:4], **shape))
    for request in wanted:
        key = request.id, request.index
        assert same(together[key], next(run(model, [request], **shape)))
        assert key not in others or same(together[key], others[key])


def test_a_fixed_shape_is_one_shape():
    model, shapes = ToyModel(), set()
    honest = model.logits

    def noting(ids, attention_mask, want):
        shapes.add((tuple(ids.shape), len(want), attention_mask is None))
        return honest(ids, attention_mask, want)

    model.logits = noting
    for name in ("ar", "tct"):
        wanted = requests_of(model, policy(name), count=5)
        fixed = by_key(run(model, wanted, batch_size=3, columns=30))
        assert all(same(sample, fixed[key]) for key, sample in by_key(run(ToyModel(), wanted)).items())
    assert shapes == {((3, 30), 3 * 4, False)}


def test_impossible_shapes_are_refused():
    model, wanted = ToyModel(), requests_of(ToyModel(), policy("lc"), count=2)
    with pytest.raises(UserError, match="set batch_size as well"):
        run(model, wanted, columns=30)
    with pytest.raises(UserError, match="more than columns=10"):
        list(run(model, wanted, batch_size=2, columns=10))

    def hungry(ids, attention_mask, want):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.logits = hungry
    with pytest.raises(UserError, match="lower batch_size"):
        list(run(model, wanted, batch_size=2, columns=30))


# --- recovery from running out of memory


def test_recovery_survives_running_out_of_memory_itself(monkeypatch):
    """Neither the step nor making the batch smaller fits: the rows begin again, and are the same."""
    model, left = MODELS["llada"], {"step": 3, "drop": 1}
    wanted = [Request(str(i), (2, 3, 4 + i), policy("lc"), 6, 3) for i in range(4)]
    calm = by_key(run(model, wanted, cache="dual"))
    honest_logits, honest_keep = model.window_logits, Batch.drop

    def logits(*given):
        left["step"] -= 1
        if left["step"] == 0:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return honest_logits(*given)

    def drop(self, slots):
        left["drop"] -= bool(slots)
        if slots and left["drop"] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        honest_keep(self, slots)

    monkeypatch.setattr(model, "window_logits", logits, raising=False)
    monkeypatch.setattr(Batch, "drop", drop)
    squeezed = by_key(run(model, wanted, cache="dual"))
    assert left["drop"] <= 0
    assert all(same(calm[key], squeezed[key]) for key in calm)


def test_a_cache_gives_up_rows_layer_by_layer():
    """At no time are two whole caches alive: layer n is made smaller after the old layer n - 1 is gone."""
    cache = MODELS["llada"].new_cache(4, 5)
    sizes, rows = [], torch.tensor([0, 2])
    count = len(cache._keys) + len(cache._values)

    class Watched(list):
        def __setitem__(self, at, layer):
            super().__setitem__(at, layer)
            sizes.append(sum(len(kept) for kept in (*cache._keys, *cache._values)))

    cache._keys, cache._values = Watched(cache._keys), Watched(cache._values)
    cache.keep(rows)
    assert sizes == [4 * count - 2 * (n + 1) for n in range(count)]
    assert cache.rows == 2
