"""What the engine asks of a device: how often it waits for it, what it keeps there, what it leaves behind."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from tests.helpers.engine_requests import by_key, same
from tests.helpers.engine_steps import batch_of, blind, step
from tests.helpers.large_models import Operations
from tests.helpers.random_models import MODELS
from tests.helpers.tiny_checkpoints import MIXTURES
from twotemp import rng
from twotemp.engine import Profiler, run
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
@pytest.mark.parametrize("prompts", [(18, 18), (18, 20), (18, 18, 20, 18)], ids=["even", "ragged", "shared"])
def test_a_step_waits_only_in_sync_for_every_family_and_cache(monkeypatch, family, prompts, cache):
    """A mixture waits in its own layers: how many tokens an expert gets depends on the data."""
    model = blind(MODELS[family])
    monkeypatch.setattr(Rows, "sync", lambda self, healthy: True)
    shared = len(prompts) > 2
    wanted = [
        Request(str(i), (2 if shared else 2 + i,) * n, policy("tct"), 8, model.block_size or 4)
        for i, n in enumerate(prompts)
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


# --- rows in the same state


def test_rows_in_the_same_state_are_computed_once(monkeypatch):
    rows, honest = [], LLADA.logits
    monkeypatch.setattr(
        LLADA, "logits", lambda ids, *rest: rows.append(len(ids)) or honest(ids, *rest), raising=False
    )
    prompts = [(2, 3, 4), (5, 6, 7), (2, 3, 4), (2, 3, 4)]
    wanted = [Request(str(i), prompt, policy("lc", t_token=1.0), 8, 8) for i, prompt in enumerate(prompts)]
    together = by_key(run(LLADA, wanted, batch_size=4))
    assert rows[0] == 2
    assert max(rows) == 4
    alone = {key: sample for request in wanted for key, sample in by_key(run(LLADA, [request])).items()}
    assert {key: sample.tokens for key, sample in together.items()} == {
        key: sample.tokens for key, sample in alone.items()
    }


def test_a_row_that_joins_is_not_in_the_state_in_which_another_began():
    """The hash of the row before is out of date, as no rows shared a prompt until now."""
    prompts = {"a": (2, 3), "b": (4, 5)}
    wanted = [Request(name, prompt, policy("lc"), 8, 4, trace=True) for name, prompt in prompts.items()]
    later = replace(wanted[0], id="later")
    batch = batch_of(LLADA, wanted)
    with torch.inference_mode():
        for _ in range(4):  # the first block: as many masks of the second are open then as were of the first
            step(batch)
        batch.append([later])
        while 2 not in step(batch):
            pass
        (found,) = batch.samples([2])
    alone = by_key(run(LLADA, [later]))["later", 0]
    assert found.tokens == alone.tokens
    assert found.trace.confidence == pytest.approx(alone.trace.confidence, rel=1e-4)


def test_equal_rows_have_equal_hashes_whatever_follows_them():
    values = torch.tensor([[1, 2, 3, 9], [1, 2, 3, 8], [2, 1, 3, 9], [1, 2, 4, 9]])
    first, *others = rng.row_hash(values, torch.full((4,), 3)).tolist()
    assert [first == other for other in others] == [True, False, False]
    assert len(set(rng.row_hash(values, torch.full((4,), 4)).tolist())) == 4
    columns = torch.arange(100_000)[:, None] * torch.tensor([1, 7, 1 << 40])
    assert len(rng.row_hash(columns, torch.full((len(columns),), 3)).unique()) == len(columns)


# --- operations


@pytest.mark.parametrize(
    ("name", "trace", "most"),
    [
        *[("lc", False, 156), ("ar", False, 161), ("ct", False, 160)],
        *[("tlc", False, 163), ("tct", False, 167), ("tct", True, 184)],
    ],
)
def test_the_operations_of_a_step_outside_the_model(monkeypatch, name, trace, most):
    """Each starts a kernel or a copy on a GPU; with a hash for each stream of noise TCT had 206."""
    wanted = [Request(str(i), (2, 3, 4 + i), policy(name), 32, 8, trace=trace) for i in range(3)]
    batch, honest = batch_of(LLADA, wanted), LLADA.logits

    def uncounted(*arguments):
        with _disable_current_modes():
            return honest(*arguments)

    monkeypatch.setattr(LLADA, "logits", uncounted, raising=False)
    with torch.inference_mode():
        step(batch)
        with Operations() as operations:
            step(batch)
    assert sum(operations.counts.values()) <= most


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


def test_a_profiler_leaves_nothing_in_the_model():
    wanted = [Request("q", (2, 3, 4), policy("lc"), 4, 4)]
    first, second = Profiler(LLADA), Profiler(LLADA)
    list(run(LLADA, wanted, observer=first))
    spent = dict(first.seconds)
    list(run(LLADA, wanted, observer=second))
    assert first.seconds == spent
    assert min(second.seconds.values()) > 0
    assert not LLADA.module.lm_head._forward_hooks
    assert not LLADA.module.base_model._forward_pre_hooks
