"""What the engine asks of a device: how often it waits for it, what it keeps there, what it leaves behind."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch

from tests.helpers.engine_requests import by_key, same
from tests.helpers.engine_steps import batch_of, blind, step
from tests.helpers.random_models import MODELS
from tests.helpers.tiny_checkpoints import MIXTURES
from twotemp.engine import Ledger, run
from twotemp.engine.batch import Batch
from twotemp.engine.rows import Rows, compact
from twotemp.policies import PRESETS, policy, tokens
from twotemp.records import Request

LLADA = MODELS["llada"]


# --- one round trip a step


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_compact_is_nonzero(rows, share):
    flags = torch.rand(rows, 7, generator=torch.Generator().manual_seed(1)) < share
    assert compact(flags, int(flags.sum())).tolist() == flags.flatten().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_waits_for_the_device_only_in_sync(monkeypatch, name):
    monkeypatch.setattr(Rows, "sync", lambda self, healthy: True)
    chosen = policy(name)
    wanted = [Request(str(i), (2, 3, 4 + i), chosen, 8, 8) for i in range(3)]
    step(batch_of(blind(LLADA), wanted))


# Block-causal models have their own, exact cache.
CACHED = [
    (family, cache)
    for family, model in MODELS.items()
    if family not in MIXTURES
    for cache in ((None,) if model.block_size else (None, "prefix", "dual"))
]


@pytest.mark.parametrize(("family", "cache"), CACHED)
@pytest.mark.parametrize("lengths", [(18, 18), (18, 20)])
def test_a_step_waits_only_in_sync_for_every_family_and_cache(monkeypatch, family, lengths, cache):
    """A mixture waits in its own layers: how many tokens an expert gets depends on the data."""
    model = blind(MODELS[family])
    monkeypatch.setattr(Rows, "sync", lambda self, healthy: True)
    wanted = [
        Request(str(i), (2 + i,) * n, policy("tct"), 8, model.block_size or 4) for i, n in enumerate(lengths)
    ]
    batch = batch_of(model, wanted, cache)
    step(batch)  # the whole row
    step(batch)  # only the block, where there is a cache
    batch.rows.state.cached[0] = -1
    step(batch)  # some of both


def test_sync_is_a_round_trip():
    """Else the tests above could not fail."""
    wanted = [Request("q", (2, 3), policy("lc"), 8, 8)]
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        step(batch_of(blind(LLADA), wanted))


# --- finished rows


def test_a_finished_row_may_stay_in_the_batch():
    """As in a static batch: it has a window without masks, inside the row, wherever its grid starts."""
    wanted = [Request(str(n), (2, 3, 4, 5, 6), policy("lc", k=n), 8, 3) for n in (1, 3)]
    batch = batch_of(LLADA, wanted)
    with torch.inference_mode():
        while len(step(batch)) < 2:
            pass
        first, second = batch.samples([0, 1])
    assert by_key(run(LLADA, wanted))["1", 0].tokens == first.tokens
    assert by_key(run(LLADA, wanted))["3", 0].tokens == second.tokens


# --- memory


@pytest.fixture
def out_of_memory_while_drawing(monkeypatch):
    """The second draw fails; what it was given is watched."""
    honest, calls, given = tokens.predict, [0], []

    def predict(logits, *rest):
        calls[0] += 1
        if calls[0] == 2:
            given.append(weakref.ref(logits))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(logits, *rest)

    monkeypatch.setattr(tokens, "predict", predict)
    return given


@pytest.mark.parametrize("cache", [None, "dual"])
def test_a_step_that_ran_out_of_memory_costs_nothing_and_keeps_nothing(
    monkeypatch, out_of_memory_while_drawing, cache
):
    wanted = [Request(str(i), (2, 3, 4 + i), policy("lc"), 4, 4) for i in range(4)]
    honest_drop, alive = Batch.drop, []

    def drop(self, slots):
        alive.extend(given() is not None for given in out_of_memory_while_drawing)
        return honest_drop(self, slots)

    monkeypatch.setattr(Batch, "drop", drop)
    squeezed = by_key(run(LLADA, wanted, cache=cache))
    assert alive[0] is False
    monkeypatch.undo()
    calm = by_key(run(LLADA, wanted, cache=cache))
    for key, sample in calm.items():
        assert same(replace(sample, seconds=0.0), replace(squeezed[key], seconds=0.0))
        assert (sample.forwards, sample.processed) == (squeezed[key].forwards, squeezed[key].processed)


def test_a_cache_that_does_not_fit_halves_the_batch(monkeypatch):
    wanted = [Request(str(i), (2, 3, 4 + i), policy("lc"), 4, 4) for i in range(4)]
    calm, honest = by_key(run(LLADA, wanted, cache="dual")), LLADA.new_cache

    def hungry(rows, columns):
        if rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(rows, columns)

    monkeypatch.setattr(LLADA, "new_cache", hungry, raising=False)
    squeezed = by_key(run(LLADA, wanted, cache="dual"))
    assert {key: s.tokens for key, s in squeezed.items()} == {key: s.tokens for key, s in calm.items()}


# --- hooks


def test_a_ledger_leaves_nothing_in_the_model():
    wanted = [Request("q", (2, 3, 4), policy("lc"), 4, 4)]
    first, second = Ledger(LLADA), Ledger(LLADA)
    list(run(LLADA, wanted, observer=first))
    spent = dict(first.seconds)
    list(run(LLADA, wanted, observer=second))
    assert first.seconds == spent
    assert min(second.seconds.values()) > 0
    assert not LLADA.module.lm_head._forward_hooks
    assert not LLADA.module.base_model._forward_pre_hooks
