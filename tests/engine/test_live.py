"""Requests that join and leave a running batch, rows that fail alone, and what an observer sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.helpers.engine_requests import by_key, requests_of, same
from tests.helpers.tiny_checkpoints import BIDIRECTIONAL, CONFIGS, random_model
from tests.helpers.toy import ToyModel
from twotemp.engine import LiveBatches, Observer, run
from twotemp.errors import UserError
from twotemp.policies import PRESETS, policy
from twotemp.records import Request, Sample


def arrivals(live: LiveBatches, wanted: list[Request], every: int = 2) -> dict[tuple[str, int], Sample]:
    """Submit one request every few turns, short rows first, so that rows and blocks have to grow."""
    found, waiting = [], sorted(wanted, key=lambda r: len(r.prompt) + r.length)
    turns = 0
    while waiting or not live.idle:
        if waiting and turns % every == 0:
            live.submit(waiting.pop(0))
        found += [outcome for _, outcome in live.turn()]
        turns += 1
    return by_key(found)


@pytest.mark.parametrize("name", PRESETS)
def test_a_sample_does_not_depend_on_when_its_request_arrives(name):
    model = ToyModel(sharpness=1.5)
    wanted = requests_of(model, policy(name), count=7, trace=True)
    wanted += [replace(r, id=f"wide {r.id}", block=7, length=15) for r in wanted[:2]]
    together = by_key(run(model, wanted))
    for slots in (2, 9):
        apart = arrivals(LiveBatches(model, slots), wanted)
        assert apart.keys() == together.keys()
        assert all(same(together[key], apart[key]) for key in together)


# KLASS remembers the last step, which is the policy's affair: one layout of each kind is enough for it.
@pytest.mark.parametrize(
    ("family", "name"), [*((family, "tct") for family in CONFIGS), ("llada", "klass"), ("sdar", "klass")]
)
def test_arrival_does_not_matter_with_real_layouts_and_caches(family, name):
    model = random_model(family)
    wanted = requests_of(model, policy(name), count=6, length=9)
    for cache in (None, "prefix", "dual") if family in BIDIRECTIONAL else (None,):
        together, apart = (
            by_key(run(model, wanted, cache=cache)),
            arrivals(LiveBatches(model, 4, cache), wanted),
        )
        assert all(same(together[key], apart[key]) for key in together)


def test_requests_leave_while_they_wait_and_while_they_run():
    model = ToyModel()
    wanted = requests_of(model, policy("tct"), count=5)
    live = LiveBatches(model, 2)
    handles = [live.submit(request) for request in wanted]
    live.turn()
    live.cancel(handles[0])
    live.cancel(handles[3])
    found = {}
    while not live.idle:
        found |= dict(live.turn())
    assert set(found) == {handles[1], handles[2], handles[4]}
    expected = by_key(run(model, wanted))
    assert all(same(sample, expected[sample.request, sample.index]) for sample in found.values())
    live.cancel(handles[1])  # over already
    only = live.submit(wanted[0])
    live.cancel(only)
    assert live.turn() == []
    assert live.idle


def test_policies_of_several_structures_take_turns():
    model, live = ToyModel(), LiveBatches(ToyModel(), 2)
    wanted = [Request(name, (2, 3, 4), policy(name), 8, 4) for name in ("lc", "eb", "klass")]
    handles = {live.submit(request): request for request in wanted}
    outcomes = live.turn()
    while not live.idle:
        outcomes += live.turn()
    assert {handle for handle, _ in outcomes} == set(handles)
    expected = by_key(run(model, wanted))
    assert all(same(sample, expected[sample.request, 0]) for _, sample in outcomes)


def poisoned(token: int) -> ToyModel:
    """NaN logits for every row whose third token this is."""
    model = ToyModel()
    honest = model.logits

    def logits(ids, attention_mask, want):
        found = honest(ids, attention_mask, want)
        found[(ids[:, 2] == token)[want // ids.shape[1]]] = torch.nan
        return found

    model.logits = logits
    return model


def test_a_row_with_broken_logits_fails_alone():
    wanted = [Request(str(i), (2, 3, 7 if i == 1 else 10 + i), policy("lc"), 6, 3) for i in range(4)]
    live = LiveBatches(poisoned(7), 3)
    handles = [live.submit(request) for request in wanted]
    first = live.turn()
    assert [handle for handle, _ in first] == [handles[1]]
    error = first[0][1]
    assert isinstance(error, UserError)
    assert "'1', sample 0, row 1, step 0, position 3" in str(error)
    rest = {}
    while not live.idle:
        rest |= dict(live.turn())
    assert set(rest) == {handles[0], handles[2], handles[3]}
    for sample in rest.values():
        assert same(next(run(ToyModel(), [wanted[int(sample.request)]])), sample)
    with pytest.raises(UserError, match="NaN or infinite logits for request '1'"):
        list(run(poisoned(7), wanted))


class Seen(Observer):
    def __init__(self):
        self.rows = {}
        self.parts = []

    def lap(self, part):
        self.parts.append(part)

    def step(self, view):
        for row, request in enumerate(view.requests):
            canvas, before = view.canvas[row].tolist(), view.before[row].tolist()
            wrote = view.committed(row)
            assert {
                at: (before[at], canvas[at]) for at in range(len(canvas)) if before[at] != canvas[at]
            } == {at: (view.rows.model.mask_id, token) for at, token, _ in wrote}
            for at, token, confidence in wrote:
                self.rows.setdefault(request.id, []).append((int(view.step[row]), at, token, confidence))


def test_an_observer_sees_every_commit_and_every_part():
    model, seen = ToyModel(), Seen()
    wanted = [replace(r, trace=True) for r in requests_of(model, policy("tct"), count=5)]
    samples = list(run(model, wanted, batch_size=3, observer=seen))
    for sample in samples:
        by_position = sorted((at, step, token, c) for step, at, token, c in seen.rows[sample.request])
        assert [at for at, *_ in by_position] == list(sample.positions)
        assert tuple(step for _, step, *_ in by_position) == sample.trace.steps
        assert tuple(token for *_, token, _ in by_position) == sample.tokens
        assert tuple(c for *_, c in by_position) == sample.trace.confidence
    assert seen.parts[:4] == ["bookkeeping", "forward", "draw", "select"]
