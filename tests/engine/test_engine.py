"""One loop for all: equivalence classes over every preset, blocks, infilling, EOS, NFE, traces, bad input."""

from __future__ import annotations

import json

import pytest
import torch
from scipy import stats

import twotemp
from tests.helpers.engine_requests import by_key, requests_of, same
from tests.helpers.fixture_models import fixture_model
from tests.helpers.toy import FixedModel, ToyModel
from theory.table import TableModel
from twotemp.engine import run, states
from twotemp.engine.scheduler import Scheduler
from twotemp.experimental.editing import BlockText
from twotemp.policies import PRESETS, parse, policy
from twotemp.policies.step import PolicyBatch
from twotemp.records import Request, Sample
from twotemp.rng import Noise, row_key

FAMILIES = ("llada", "dream", "sdar", "llada2")


@pytest.fixture(scope="module")
def fixture_models():
    return {family: fixture_model(family) for family in FAMILIES}


# --- equivalence classes


@pytest.mark.parametrize("name", PRESETS)
def test_alone_batched_refilled_and_replayed_are_one_sample(name):
    model = ToyModel(sharpness=1.5)
    wanted = requests_of(model, policy(name), trace=True)
    batched = by_key(run(model, wanted, batch_size=8))
    refilled = by_key(run(model, wanted, batch_size=3))
    reversed_ = by_key(run(model, wanted[::-1], batch_size=5))
    assert set(batched) == {(r.id, r.index) for r in wanted}
    for request in wanted:
        (alone,) = run(model, [request], batch_size=1)
        key = request.id, request.index
        assert same(alone, batched[key])
        assert same(alone, refilled[key])
        assert same(alone, reversed_[key])
        assert_replays(model, request, alone)


def assert_replays(model, request: Request, found: Sample) -> None:
    """Feed the states of the trace to the policy again: it must take the same decisions."""
    batch = PolicyBatch(
        [request.policy], eos_ids=model.eos_ids, forbidden_ids=model.forbidden_ids, mask_id=model.mask_id
    )
    memory = text = None
    key = torch.tensor([row_key(request.seed, request.id, request.index)])
    start = origin = min(found.positions)
    path, width = list(states(found, model.mask_id)), request.block
    edits = torch.zeros(1, len(path[0][0]), dtype=torch.int64)
    for step, (row, written) in enumerate(path):
        ids = torch.tensor([row])
        # A step that finds nothing to edit writes nothing, and is the last one in its block.
        start = origin + (min(written, default=start) - origin) // width * width
        at = torch.arange(start, min(start + width, len(row)))[None]
        tokens = ids.gather(1, at)
        asked = masked = tokens == model.mask_id
        if batch.edit is not None:
            asked = torch.ones_like(masked)
            text = BlockText(tokens, asked, edits.gather(1, at))
        want = torch.zeros_like(ids, dtype=torch.bool)
        want[0, at[asked]] = True
        noise = Noise(key, torch.tensor([step]), at)
        index = asked.flatten().nonzero()[:, 0]
        drawn = batch.draw(noise, model.logits(ids, None, want), asked, index, text=text)
        decision, memory = batch.choose(noise, drawn, masked, memory=memory, text=text)
        assert at[decision.commit].tolist() == written
        after = path[step + 1][0] if step + 1 < len(path) else dict(zip(found.positions, found.tokens))
        assert decision.tokens[decision.commit].tolist() == [after[p] for p in written]
        if decision.edit is not None:
            edits[0, at[decision.edit]] += 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["lc", "tlc", "tct", "ar"])
def test_real_layouts_do_not_depend_on_the_batch(fixture_models, family, name):
    model = fixture_models[family]
    wanted = requests_of(model, policy(name), count=5, length=10)
    batched, refilled = by_key(run(model, wanted)), by_key(run(model, wanted, batch_size=2))
    for request in wanted:
        (alone,) = run(model, [request])
        assert same(alone, batched[request.id, request.index])
        assert same(alone, refilled[request.id, request.index])


@pytest.mark.parametrize("family", ["sdar", "llada2"])
@pytest.mark.parametrize("name", ["lc", "tct", "t2m:edits=1"])
def test_block_cache_is_exact(fixture_models, family, name, monkeypatch):
    """The same tokens as the full forward at every step."""
    from twotemp.engine import engine, runner

    model = fixture_models[family]
    wanted = requests_of(model, parse(name), count=4, length=14)
    cached = by_key(run(model, wanted, batch_size=3))
    monkeypatch.setattr(engine, "runner_for", lambda model, *_: runner.UncachedRunner(model))
    for key, full in by_key(run(model, wanted, batch_size=3)).items():
        assert cached[key].tokens == full.tokens
        assert cached[key].processed < full.processed


def test_numbers_may_differ_by_row():
    """One batch sweeps T_pos and lambda; each row is what it would be alone."""
    model = ToyModel()
    sweep = [policy("tct", t_pos=t, threshold=lam) for t in (0.0, 0.1, 1.0) for lam in (0.3, 0.9)]
    wanted = [Request(str(i), (2, 3, 4), p, 12, 6) for i, p in enumerate(sweep)]
    batched = by_key(run(model, wanted))
    for request in wanted:
        assert same(next(run(model, [request])), batched[request.id, request.index])
    assert len({s.nfe for s in batched.values()}) > 1


def test_policies_of_any_structure_run_together():
    model = ToyModel()
    wanted = [Request(name, (2, 3, 4), policy(name), 8, 4) for name in PRESETS]
    found = by_key(run(model, wanted, batch_size=4))
    assert {name for name, _ in found} == set(PRESETS)


def test_samples_of_one_prompt_differ_and_seeds_matter():
    """The complaint of users: n identical 'samples'."""
    model = ToyModel(sharpness=0.3)
    found = twotemp.sample(model, [2, 3, 4], policy("tlc"), n=16, length=8, block=4)
    assert len({s.tokens for s in found}) == 16
    again = twotemp.sample(model, [2, 3, 4], policy("tlc"), n=4, length=8, block=4, batch_size=3)
    assert [s.tokens for s in again] == [s.tokens for s in found[:4]]
    other = twotemp.sample(model, [2, 3, 4], policy("tlc"), n=4, length=8, block=4, seed=1)
    assert all(a.tokens != b.tokens for a, b in zip(again, other))


def test_positions_of_a_block_do_not_share_noise():
    """A defect elsewhere: all positions of a block drawn with one random number."""
    table = torch.zeros(12, 30)
    found = twotemp.sample(FixedModel(table, 29), [2, 3], policy("ct", t_token=1.0, threshold=0.0), length=10)
    assert len(set(found[0].tokens)) > 3


def test_rows_in_the_same_state_are_computed_once():
    model = ToyModel()
    found = twotemp.sample(model, [[2, 3], [4, 5, 6]], policy("tlc"), n=8, length=8, block=4)
    assert model.rows[0] == 2  # sixteen rows, two prompts
    assert max(model.rows) > 10
    greedy = ToyModel()
    same = twotemp.sample(greedy, [2, 3], policy("lc", t_token=0.0), n=8, length=8, block=4)
    assert set(greedy.rows) == {1}
    assert len({s.tokens for s in same}) == 1
    assert all(s.forwards == 8 for s in [*found, *same])  # what the row would cost alone


# --- conformance over all presets


@pytest.mark.parametrize("name", PRESETS)
def test_conformance(name):
    """Every preset writes every mask once, never a forbidden id, block after block, and always moves on."""
    model = ToyModel(sharpness=0.5)
    model.forbidden_ids = (7, 8, model.mask_id)
    for found in run(model, requests_of(model, policy(name, t_token=1.5), trace=True)):
        assert len(found.tokens) == 12
        assert not set(found.tokens) & {7, 8, model.mask_id}
        steps = found.trace.steps
        rewritten = [step for step, _, _ in found.trace.edits]
        empty = found.forwards - len({*steps, *rewritten})
        # None, but for the last look at each of three blocks where something might have been edited.
        assert empty == (0 if found.policy.edit == "never" else 3)
        for left, right in zip(range(0, 8, 4), range(4, 12, 4)):
            assert max(steps[left : left + 4]) < min(steps[right : right + 4])
        assert found.nfe == found.forwards or name == "ar"
        assert all(0 < c <= 1 for c in found.trace.confidence)
        assert Sample.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if "t_pos" in p.parameters])
def test_every_score_is_temperable(name):
    model = ToyModel()
    cold = [run(model, requests_of(model, policy(name, t_pos=0.0, t_token=0.0), trace=True))]
    hot = [run(model, requests_of(model, policy(name, t_pos=5.0, t_token=0.0), trace=True))]
    order = [[s.trace.steps for s in runs] for (runs,) in ((cold), (hot))]
    assert order[0] != order[1]


# --- the table model: exact output laws


def test_ar_at_temperature_one_samples_the_model_itself():
    """With K = 1 and T_token = 1, the chain rule makes left-to-right decoding exact."""
    sequences = [((1, 1, 2), 0.4), ((1, 2, 1), 0.3), ((2, 2, 2), 0.2), ((2, 1, 1), 0.1)]
    model = TableModel([((3, *s), w) for s, w in sequences], vocab_size=5, mask_id=4)
    found = twotemp.sample(model, [3], policy("ar", t_token=1.0), n=20_000, length=3, batch_size=5000)
    counts = [sum(s.tokens == seq for s in found) for seq, _ in sequences]
    assert sum(counts) == 20_000
    assert stats.chisquare(counts, [w * 20_000 for _, w in sequences]).pvalue > 1e-3


def test_any_order_samples_the_model_itself_one_at_a_time():
    """Random order, K = 1: any order of exact conditionals gives the same law."""
    sequences = [((1, 1), 0.5), ((1, 2), 0.2), ((2, 2), 0.3)]
    model = TableModel([((3, *s), w) for s, w in sequences], vocab_size=5, mask_id=4)
    found = twotemp.sample(model, [3], policy("random", t_token=1.0), n=10_000, length=2, batch_size=5000)
    counts = [sum(s.tokens == seq for s in found) for seq, _ in sequences]
    assert stats.chisquare(counts, [w * 10_000 for _, w in sequences]).pvalue > 1e-3


# --- infilling


def test_infill_writes_only_the_masks():
    model = ToyModel()
    m = model.mask_id
    row = (2, m, 3, m, m, 4, 5, m)
    (found,) = twotemp.infill(model, [row], policy("lc"), block=3)
    assert found.positions == (1, 3, 4, 7)
    assert m not in found.tokens
    (other,) = twotemp.infill(model, list(row), policy("lc"), block=3, batch_size=1)
    assert same(found, other)


def test_infill_equals_generation_when_the_masks_are_at_the_end():
    model = ToyModel()
    prompt = (2, 3, 4)
    (generated,) = run(model, [Request("q", prompt, policy("tlc"), 8, 4)])
    (filled,) = run(model, [Request("q", (*prompt, *[model.mask_id] * 8), policy("tlc"), 0, 4)])
    assert generated.tokens == filled.tokens


# --- EOS and NFE


def eos_model(length: int, eos_at: int) -> FixedModel:
    """Position 2 + eos_at predicts EOS for certain, the others token 3 with falling confidence."""
    table = torch.zeros(2 + length, 6)
    for i in range(2 + length):
        table[i, 3] = 5 - 0.1 * i
    table[2 + eos_at] = torch.tensor([0, 9.0, 0, 0, 0, 0])
    return FixedModel(table, mask_id=5, eos_ids=(1,))


def test_nfe_accountings():
    """AR: tokens before EOS; the others: steps until all is unmasked; `forwards`: what was run."""
    model = eos_model(10, eos_at=4)
    (ar,) = run(model, [Request("q", (2, 2), policy("ar", t_token=0.0), 10, 5)])
    assert (ar.nfe, ar.forwards) == (4, 10)
    (lc,) = run(model, [Request("q", (2, 2), policy("lc", t_token=0.0), 10, 5)])
    assert (lc.nfe, lc.forwards) == (10, 10)
    (two,) = run(model, [Request("q", (2, 2), policy("lc", t_token=0.0, k=2), 10, 5)])
    assert two.nfe == 6  # ceil(5 / 2) a block
    assert lc.processed == 10 * 12


def test_eos_stop_changes_no_text():
    model = eos_model(10, eos_at=4)
    for name in ("ar", "lc", "tct"):
        chosen = policy(name, t_token=0.0)
        (full,) = run(model, [Request("q", (2, 2), chosen, 10, 5)])
        (stopped,) = run(model, [Request("q", (2, 2), chosen, 10, 5, eos_stop=True)])
        assert stopped.forwards < full.forwards
        assert stopped.tokens[:5] == full.tokens[:5]
        assert stopped.tokens[5:] == (1,) * 5  # nothing stays masked
        assert stopped.finish == full.finish == "eos"


def test_eos_stop_waits_for_what_comes_before():
    """A defect elsewhere: an early stop that leaves masks in the block before the EOS."""
    model = eos_model(8, eos_at=6)
    wanted = Request("q", (2, 2), policy("lc", t_token=0.0), 8, 8, eos_stop=True, trace=True)
    (found,) = run(model, [wanted])
    assert found.trace.steps[6] == 0  # EOS was committed first of all
    assert min(found.trace.steps[:7]) == 0
    assert -1 not in found.trace.steps[:7]
    assert found.trace.steps[7] == -1


def test_eos_in_the_prompt_does_not_stop():
    model = eos_model(4, eos_at=3)
    (found,) = run(model, [Request("q", (1, 1), policy("ar", t_token=0.0), 4, 4, eos_stop=True)])
    assert found.tokens[:3] == (3, 3, 3)


def test_finished_rows_cost_nothing():
    """A defect elsewhere: finished rows stay in the batch and are computed for ever."""
    model = ToyModel()
    wanted = [Request(str(i), (2, 3 + i), policy("ar"), 4 if i else 16, 4) for i in range(4)]
    list(run(model, wanted))
    assert model.rows == [4] * 4 + [1] * 12


def test_scheduler_refills_in_place_then_shrinks():
    scheduler = Scheduler("abcdef", 3)
    assert scheduler.schedule() == ({}, [], ["a", "b", "c"])
    scheduler.finish([1])
    assert scheduler.schedule() == ({1: "d"}, [], [])
    assert scheduler.running == ["a", "d", "c"]
    scheduler.finish([2, 0])
    assert scheduler.schedule() == ({0: "e", 2: "f"}, [], [])
    scheduler.finish([0, 2])
    assert scheduler.schedule() == ({}, [0, 2], [])
    assert scheduler.running == ["d"]
    scheduler.add("g")
    scheduler.add("h")
    scheduler.finish([0])
    assert scheduler.schedule() == ({0: "g"}, [], ["h"])
    scheduler.finish([0, 1])
    assert scheduler.idle


def test_scheduler_cancels_what_waits_and_what_runs():
    scheduler = Scheduler("abcd", 2)
    scheduler.schedule()
    for item in "ca":
        scheduler.cancel(item)
    assert scheduler.schedule() == ({0: "d"}, [], [])
    scheduler.cancel("a")  # gone already
    assert scheduler.running == ["d", "b"]


# --- habits of other code bases that must not come back


def test_sampling_leaves_the_global_generator_alone():
    """A defect elsewhere: `set_seed` in a hot path resets everybody's randomness."""
    before = torch.get_rng_state()
    twotemp.sample(ToyModel(), [2, 3], policy("tct"), n=4, length=8)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    a = twotemp.sample(ToyModel(), [2, 3], policy("tct"), length=8)
    torch.manual_seed(1)
    assert a[0].tokens == twotemp.sample(ToyModel(), [2, 3], policy("tct"), length=8)[0].tokens


def test_an_exception_is_not_turned_into_greedy_sampling():
    model = ToyModel()

    def broken(ids, attention_mask, want):
        raise RuntimeError("probability tensor contains inf")

    model.logits = broken
    with pytest.raises(RuntimeError, match="contains inf"):
        list(run(model, [Request("q", (2,), policy("lc"), 4)]))


@pytest.mark.parametrize("name", ["lc", "ct", "ar", "margin", "entropy", "eb", "klass", "llada2", "sdar"])
def test_zero_temperatures_are_greedy(name):
    """A defect elsewhere: T = 0 that samples at T = 1."""
    chosen = policy(name, t_token=0.0)
    tokens = {twotemp.sample(ToyModel(), [2, 3], chosen, length=8, seed=s)[0].tokens for s in range(5)}
    assert len(tokens) == 1


# --- where time goes


def test_left_to_right_predicts_only_what_it_can_commit():
    model = ToyModel()
    seen: list[int] = []
    honest = model.logits

    def counting(ids, attention_mask, want):
        seen.append(len(want))
        return honest(ids, attention_mask, want)

    model.logits = counting
    twotemp.sample(model, [2, 3], policy("ar", k=2), length=8, block=8)
    assert seen == [2] * 4


def test_profiler_accounts_for_the_whole_run():
    from time import perf_counter

    from twotemp.engine import Profiler

    model, profiler = ToyModel(vocab=5000), Profiler()
    before = perf_counter()
    list(run(model, requests_of(model, policy("tlc"), count=16, length=16), observer=profiler))
    elapsed = perf_counter() - before
    assert sum(profiler.seconds.values()) == pytest.approx(elapsed, rel=0.2)
    assert profiler.steps == 16
    assert profiler.row_steps == 16 * 16
    assert profiler.seconds["draw"] > 0
    assert profiler.seconds["forward"] > 0
    assert "16 steps" in profiler.report()
