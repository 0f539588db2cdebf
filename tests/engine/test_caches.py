"""Approximate caches: batched, padding-safe, exact where they must be, and their drift measured."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.engine_requests import by_key, requests_of, same
from tests.helpers.fixture_models import fixture_model
from tests.helpers.tiny_checkpoints import random_model
from tests.helpers.toy import ToyModel
from twotemp.engine import run
from twotemp.engine.scheduler import Scheduler
from twotemp.errors import UserError
from twotemp.models import llada
from twotemp.policies import policy
from twotemp.records import Request

CONFIG = {
    "activation_type": "silu",
    "block_type": "llama",
    "d_model": 32,
    "embedding_size": 60,
    "eos_token_id": 1,
    "layer_norm_type": "rms",
    "mask_token_id": 59,
    "max_sequence_length": 128,
    "mlp_hidden_size": 48,
    "model_type": "llada",
    "n_heads": 2,
    "n_kv_heads": 2,
    "n_layers": 2,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_theta": 10000.0,
    "vocab_size": 60,
    "weight_tying": False,
}


@pytest.fixture(scope="module")
def model():
    made = llada.new(CONFIG, seed=0)
    with torch.no_grad():  # sharper than at initialisation, so that context matters
        for weight in made.module.parameters():
            weight.mul_(3)
    made.module.eval()
    return made


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("name", ["lc", "tct", "klass", "ar"])
def test_cached_samples_do_not_depend_on_the_batch(model, cache, name):
    wanted = requests_of(model, policy(name), count=6, length=12, trace=True)
    batched = by_key(run(model, wanted, cache=cache))
    refilled = by_key(run(model, wanted, batch_size=2, cache=cache))
    for request in wanted:
        (alone,) = run(model, [request], cache=cache)
        assert same(alone, batched[request.id, request.index])
        assert same(alone, refilled[request.id, request.index])


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_exact_where_a_block_takes_one_step(model, cache):
    """Every step is then a refresh, and the cache is never read."""
    chosen = policy("ct", threshold=0.0)
    wanted = requests_of(model, chosen, count=4, length=12)
    exact, cached = by_key(run(model, wanted)), by_key(run(model, wanted, cache=cache))
    assert {k: s.tokens for k, s in exact.items()} == {k: s.tokens for k, s in cached.items()}


def test_exact_with_one_block_and_nothing_after_it(model):
    """Prefix: with the block at the end of the row only the prompt is frozen; after one step it is stale."""
    wanted = [Request("q", (2, 3, 4), policy("lc", k=12), 12, 12)]
    (exact,), (cached,) = run(model, wanted), run(model, wanted, cache="prefix")
    assert exact.tokens == cached.tokens


def test_caches_compute_less(model):
    wanted = requests_of(model, policy("lc"), count=4, length=16)
    exact, prefix, dual = (list(run(model, wanted, cache=c)) for c in (None, "prefix", "dual"))
    work = [sum(s.processed for s in samples) for samples in (exact, prefix, dual)]
    assert work[0] > work[1] > work[2]
    assert [s.forwards for s in exact] == [s.forwards for s in dual]


def test_dual_cache_of_dream():
    """The shift needs the position before the block in the window; without it the first token would be wrong."""
    dream = fixture_model("dream")
    wanted = requests_of(dream, policy("ct", threshold=0.0), count=3, length=12)
    exact, cached = by_key(run(dream, wanted)), by_key(run(dream, wanted, cache="dual"))
    assert {k: s.tokens for k, s in exact.items()} == {k: s.tokens for k, s in cached.items()}
    stepwise = list(run(dream, requests_of(dream, policy("lc"), count=3, length=12), cache="dual"))
    assert all(dream.mask_id not in s.tokens for s in stepwise)


def test_impossible_caches_are_refused(model):
    request = [Request("q", (2, 3), policy("lc"), 4)]
    with pytest.raises(UserError, match="did you mean 'dual'"):
        run(model, request, cache="dula")
    with pytest.raises(UserError, match="cannot reuse keys"):
        run(ToyModel(), request, cache="dual")


def test_prompt_prefill_is_shared(model):
    """n samples of one prompt: the first step computes one row."""
    calls = []
    honest = model.window_logits

    def counting(ids, *rest):
        calls.append(len(ids))
        return honest(ids, *rest)

    model.window_logits = counting
    try:
        found = list(
            run(
                model,
                [Request("q", tuple(range(2, 20)), policy("tlc"), 8, 4, index=i) for i in range(6)],
                cache="dual",
            )
        )
    finally:
        del model.window_logits
    assert calls[0] == 1
    for sample in found:
        (alone,) = run(
            model, [Request("q", tuple(range(2, 20)), policy("tlc"), 8, 4, index=sample.index)], cache="dual"
        )
        assert same(alone, sample)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_prompt_is_prefilled_once_for_all_its_rows(monkeypatch, slots):
    """Block-causal: its finished blocks are final, so rows that come later take them over; exact, and booked."""
    sdar = random_model("sdar")
    prompts = [tuple(range(2, 19)), tuple(range(3, 21))]
    wanted = [
        Request(str(n), prompt, policy("tct"), 9, index=i)
        for n, prompt in enumerate(prompts)
        for i in range(6)
    ]
    alone = by_key(sample for request in wanted for sample in run(sdar, [request]))
    from_the_start: list[int] = []
    honest = sdar.window_logits

    def counting(ids, positions, *rest):
        from_the_start.append(int((positions[:, 0] == 0).sum()))
        return honest(ids, positions, *rest)

    monkeypatch.setattr(sdar, "window_logits", counting, raising=False)
    refilled = by_key(run(sdar, wanted, batch_size=slots))
    assert sum(from_the_start) == 2
    assert all(same(alone[key], refilled[key]) for key in alone)


@pytest.mark.parametrize("cache", [None, "dual"])
def test_equal_states_are_searched_only_among_rows_of_one_prompt(model, monkeypatch, cache):
    from twotemp.engine import runner

    def unwanted(*_):
        raise AssertionError("these rows cannot be in the same state")

    others = [Request(f"q{i}", (2, 3, 4 + i), policy("lc"), 4, 4) for i in range(3)]
    twins = [Request("q", (2, 3, 4), policy("lc"), 4, 4, index=i) for i in range(3)]
    monkeypatch.setattr(runner, "DistinctRows", unwanted)
    assert len(list(run(model, others, cache=cache))) == 3
    with pytest.raises(AssertionError, match="cannot be in the same state"):
        list(run(model, twins, cache=cache))


def test_rows_with_another_future_are_not_the_same_state(model):
    """Dual: blocks alike at the start of the row, but what follows differs, and its frozen keys are read."""
    start = (model.mask_id,) * 4
    texts = {"a": (*start, 2, 3, 4, 5, 6, 7), "b": (*start, 12, 13, 14, 15, 16, 17)}
    for seed in range(30):
        wanted = [
            Request(name, text, policy("lc", t_token=1.0), 0, 4, index=i, seed=seed)
            for name, text in texts.items()
            for i in (0, 1)
        ]
        together = by_key(run(model, wanted, cache="dual"))
        for request in wanted:
            (alone,) = run(model, [request], cache="dual")
            assert same(alone, together[request.id, request.index])


# --- memory


def test_out_of_memory_halves_the_batch_and_changes_nothing():
    wanted = requests_of(ToyModel(), policy("tlc"), count=8)
    calm = by_key(run(ToyModel(), wanted))
    model = ToyModel()
    honest = model.logits

    def greedy(ids, attention_mask, want):
        if len(ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(ids, attention_mask, want)

    model.logits = greedy
    squeezed = by_key(run(model, wanted))
    assert set(calm) == set(squeezed)
    assert all(calm[key].tokens == squeezed[key].tokens for key in calm)


def test_one_row_that_does_not_fit_is_an_error():
    model = ToyModel()

    def hungry(ids, attention_mask, want):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    model.logits = hungry
    with pytest.raises(UserError, match="one row alone does not fit"):
        list(run(model, requests_of(model, policy("lc"), count=4)))


def test_halving_keeps_the_order_of_the_queue():
    scheduler = Scheduler("abcdef", 4)
    scheduler.schedule()
    assert scheduler.halve() == [2, 3]
    assert "".join(scheduler.waiting) == "cdef"
    assert scheduler.schedule() == ({}, [], [])
    scheduler.finish([0])
    assert scheduler.schedule() == ({0: "c"}, [], [])


# --- drift


def test_drift_is_zero_where_the_cache_is_exact(model):
    from twotemp.engine.observers import drift

    every_block_at_once = requests_of(model, policy("ct", threshold=0.0), count=3, length=12)
    found = drift(model, every_block_at_once, "dual")
    assert found.kl_max < 1e-4
    assert found.changed_steps == found.changed_tokens == 0


def test_drift_sees_an_approximation(model):
    from twotemp.engine.observers import drift

    wanted = requests_of(model, policy("lc"), count=4, length=16)
    dual, prefix = drift(model, wanted, "dual"), drift(model, wanted, "prefix")
    assert dual.kl_mean > prefix.kl_mean > 1e-6
    assert 0 < dual.changed_steps <= 1
    assert dual.steps == 4 * 16
