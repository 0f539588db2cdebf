"""Samples that repel each other: the push by autograd and by its authors, and groups that nothing takes apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

import twotemp
from tests.helpers.engine_requests import by_key, same
from tests.helpers.engine_steps import batch_of, blind, step
from tests.helpers.tiny_checkpoints import random_model
from tests.helpers.toy import FixedModel, ToyModel
from twotemp.backends import local
from twotemp.backends.local import LocalService
from twotemp.backends.pool import cut
from twotemp.engine import LiveBatches, run, states
from twotemp.engine.rows import Rows
from twotemp.engine.scheduler import Scheduler
from twotemp.errors import UserError
from twotemp.experimental.repulsion import Repulsion, SampleGroups
from twotemp.policies import PRESETS, parse, policy
from twotemp.policies.step import PolicyBatch
from twotemp.records import Policy, Request, Sample
from twotemp.rl.settings import GrpoSettings
from twotemp.rng import Noise, row_key

FIXTURE = Path(__file__).parents[1] / "fixtures" / "odd.json"
ODD = policy("odd")


def group(
    chosen: Policy, n: int, id: str = "q", prompt=(2, 3, 4), length=12, block=4, **more
) -> list[Request]:
    return [Request(id, prompt, chosen, length, block, index=i, **more) for i in range(n)]


# --- the push


def bag(p: Tensor, masked: Tensor, tokens: Tensor) -> Tensor:
    """max over positions of what is predicted or written there, [B, V]; a token < 0 is none."""
    once = torch.nn.functional.one_hot(tokens.clamp_min(0), p.shape[-1]).to(p.dtype)
    return torch.where(masked[..., None], p, once * (tokens >= 0)[..., None]).max(1).values


def by_autograd(z: Tensor, masked: Tensor, tokens: Tensor, eos: list[int]) -> Tensor:
    """G for the samples of one group, [B, W, V], as the paper states it."""
    z = z.clone().requires_grad_()
    p = z.softmax(-1)
    v = torch.nn.functional.normalize(bag(p, masked, tokens), dim=-1)
    q = (p.amax(-1) * masked).sum(1) / masked.sum(1).clamp_min(1)
    basis: list[Tensor] = []
    loss = 0 * z.sum()
    for k in range(len(z)):
        rest = v[k].detach()
        for d in basis:
            rest = rest - (rest @ d) * d
        if rest.norm() > 1e-4:
            basis.append(rest / rest.norm())
            loss = loss - (v[k] @ basis[-1]) * q[k] * (k > 0)
    (g,) = torch.autograd.grad(loss, z)
    g = (g * masked[..., None]).index_fill(2, torch.tensor(eos), 0.0)
    return g / g.norm(dim=-1).amax(1).clamp_min(1e-8)[:, None, None]


def repulsion_of(groups: SampleGroups, masked: Tensor, tokens: Tensor, vocab: int) -> Repulsion:
    written = bag(torch.zeros(*masked.shape, vocab), masked, tokens) > 0
    return Repulsion(groups, written, masked.sum(1) / masked.shape[1])


def arranged(sizes: list[int], alpha: float = 16.0) -> SampleGroups:
    """Groups of these sizes, their rows shuffled among each other."""
    rows = [r for n, size in enumerate(sizes) for r in group(replace(ODD, repel=alpha), size, id=str(n))]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(5)).tolist()
    found = SampleGroups.from_requests([rows[i] for i in order], "cpu")
    assert found is not None
    return found


@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
def test_the_closed_form_is_the_gradient(written):
    """Several groups at once, with rows in the same state, and positions that are predicted but not masked."""
    noise = torch.Generator().manual_seed(1)
    groups, vocab, width = arranged([3, 1, 4]), 11, 5
    z = 2 * torch.randn(8, width, vocab, generator=noise, dtype=torch.float64)
    masked = torch.rand(8, width, generator=noise) >= written
    tokens = torch.randint(-1, vocab, (8, width), generator=noise)
    twin, other = groups.slots[2][1:3]
    z[twin], masked[twin], tokens[twin] = z[other], masked[other], tokens[other]
    index = torch.arange(masked.numel())
    repulsion = repulsion_of(groups, masked, tokens, vocab)
    moved = repulsion.push(z.flatten(0, 1), index, masked, torch.tensor([1, 7])).view_as(z)
    assert torch.equal(moved[~masked], z[~masked])
    for slots in groups.slots:
        assert torch.equal(moved[slots[0]], z[slots[0]]), "nothing pushes the first"
        g = by_autograd(z[slots], masked[slots], tokens[slots], [1, 7])
        expected = (
            z[slots]
            - 16
            * repulsion.masked_share[slots, None, None]
            * g
            * torch.tensor([k > 0 for k in range(len(slots))])[:, None, None]
        )
        torch.testing.assert_close(moved[slots], expected, rtol=0, atol=1e-9)
    if written < 1:
        assert float((moved - z).abs().max()) > 1, "there was something to compare"
        assert torch.equal(moved[..., [1, 7]], z[..., [1, 7]])


@pytest.mark.parametrize("number", range(3))
def test_the_push_matches_the_authors_code(number):
    """Their alpha_t = alpha (1 - t / steps) at a step before which t of 5 positions were written."""
    case = json.loads(FIXTURE.read_text())["cases"][number]
    z, ids, theirs = (torch.tensor(case[name]) for name in ("logits", "ids", "pushed"))
    masked, size = ids == 8, len(ids)
    groups = SampleGroups.from_requests(group(replace(ODD, repel=case["alpha"]), size), "cpu")
    assert groups is not None
    index = masked.flatten().nonzero()[:, 0]
    repulsion = repulsion_of(groups, masked, ids.masked_fill(masked, -1), z.shape[-1])
    found = repulsion.push(z[masked], index, masked, torch.tensor([1, 7]))
    torch.testing.assert_close(found, theirs[masked], rtol=0, atol=1e-4)
    assert float((found - z[masked]).abs().max()) > 0.5


def test_samples_in_one_state_do_not_push_each_other():
    """Rounding must not become a direction: it would differ from batch to batch."""
    noise = torch.Generator().manual_seed(0)
    groups, z = arranged([5]), torch.randn(1, 6, 300, generator=noise).repeat(5, 1, 1)
    z += 1e-6 * torch.randn(z.shape, generator=noise)
    masked = torch.ones(5, 6, dtype=torch.bool)
    repulsion = repulsion_of(groups, masked, torch.full((5, 6), -1), 300)
    z = z.flatten(0, 1)
    assert torch.equal(repulsion.push(z, torch.arange(30), masked, torch.tensor([1])), z)


# --- a group is drawn in lock-step: by brute force


def lock_step(model, requests: list[Request]) -> Iterator[Sample | tuple[int, ...]]:
    """Yield the tokens by definition: row by row, gradients by autograd, finished rows unchanged."""
    first = requests[0]
    start, total = len(first.prompt), len(first.prompt) + first.length
    ids = torch.tensor([[*first.prompt, *[model.mask_id] * first.length]] * len(requests))
    own = PolicyBatch([first.policy], eos_ids=model.eos_ids, forbidden_ids=model.forbidden_ids)
    for number in range(first.length):
        open_ = ids == model.mask_id
        begin = start + (open_.int().argmax(1) - start).clamp_min(0) // first.block * first.block
        at = torch.arange(total)
        block = open_ & (at >= begin[:, None]) & (at < (begin + first.block)[:, None])
        if not open_.any():
            break
        z = model.logits(ids, None, torch.ones_like(ids, dtype=torch.bool).flatten().nonzero()[:, 0])
        z = z.view(*ids.shape, -1).index_fill(2, torch.tensor(model.forbidden_ids), -torch.inf).double()
        said = ids.masked_fill(open_, -1)
        said[:, :start] = -1
        g = by_autograd(z, block, said, list(model.eos_ids)).nan_to_num()
        g[0] = 0
        share = open_.sum(1) / first.length
        z = z - first.policy.repel * share[:, None, None] * g
        for row, request in enumerate(requests):
            if not open_[row].any():
                continue
            place = torch.arange(int(begin[row]), min(int(begin[row]) + first.block, total))[None]
            masked = block[row, place[0]][None]
            key = torch.tensor([row_key(request.seed, request.id, request.index)])
            noise = Noise(key, torch.tensor([number]), place)
            index = masked.flatten().nonzero()[:, 0]
            drawn = own.draw(noise, z[row, place[0][index]].float(), masked, index)
            decision, _ = own.choose(noise, drawn, masked)
            ids[row, place[decision.commit]] = decision.tokens[decision.commit]
    return (tuple(row) for row in ids[:, start:].tolist())


@pytest.mark.parametrize(
    "spec", ["odd", "odd:k=3,t_pos=1", "tct:repel=6,t_token=1.2", "ar:repel=9,k=2", "tpp:repel=3"]
)
def test_the_engine_runs_groups_in_lock_step(spec):
    model, chosen = ToyModel(sharpness=0.7), parse(spec)
    wanted = group(chosen, 5)
    found = by_key(run(model, wanted))
    assert [found["q", i].tokens for i in range(5)] == list(lock_step(model, wanted))
    if "tct" in spec:
        assert len({s.nfe for s in found.values()}) > 1, "some are over before the others"
    plain = by_key(run(model, group(replace(chosen, repel=0.0), 5)))
    assert any(plain[key].tokens != found[key].tokens for key in found)


# --- nothing takes a group apart


@pytest.mark.parametrize("name", PRESETS)
def test_alone_it_is_the_plain_policy(name):
    model = ToyModel(sharpness=1.5)
    (plain,) = run(model, group(policy(name, repel=0.0), 1, trace=True))
    (found,) = run(model, group(policy(name, repel=16.0), 1, trace=True))
    assert same(replace(found, policy=plain.policy), plain)


def scattered(chosen: Policy) -> list[list[Request]]:
    """Groups of several sizes and prompts."""
    return [group(chosen, n, f"g{n}", (2,) * n, 6, 3, trace=n == 4) for n in (1, 4, 2, 3)]


@pytest.mark.parametrize("name", PRESETS)
def test_a_group_does_not_depend_on_its_batch(name):
    """Alone, beside other groups, refilled, in any order; and sample k of n the same for every n > k."""
    model, chosen = ToyModel(sharpness=0.8), policy(name, repel=8.0, t_token=1.0)
    most = by_key(run(model, group(chosen, 7, length=6, block=3)))
    for n in (2, 4):
        assert all(
            same(s, most[key]) for key, s in by_key(run(model, group(chosen, n, length=6, block=3))).items()
        )
    asked = scattered(chosen)
    expected = by_key(chain(*(run(model, some) for some in asked)))
    wanted = list(chain(*asked))
    shuffled = [wanted[i] for i in torch.randperm(len(wanted), generator=torch.Generator().manual_seed(2))]
    for found in (run(model, wanted), run(model, shuffled, batch_size=5)):
        found = by_key(found)
        assert found.keys() == expected.keys()
        assert all(same(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("spec", ["odd", "tct:repel=8,t_token=1.2", "klass:repel=8"])
def test_out_of_memory_returns_whole_groups_to_the_queue(spec):
    model, squeezed = ToyModel(sharpness=0.8), ToyModel(sharpness=0.8)
    wanted = list(chain(*scattered(parse(spec))))
    expected, honest, ran_out = by_key(run(model, wanted)), squeezed.logits, []

    def greedy(ids, attention_mask, want):
        if len(ids) > 4:
            ran_out.append(len(ids))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(ids, attention_mask, want)

    squeezed.logits = greedy
    found = by_key(run(squeezed, wanted))
    assert ran_out
    assert found.keys() == expected.keys()
    assert all(same(found[key], expected[key]) for key in expected)


def test_a_group_that_lost_its_batch_restarts_as_a_whole(monkeypatch):
    """Some of its rows have finished when memory runs out; no event is sent twice."""
    model, chosen = ToyModel(sharpness=0.7), parse("tct:repel=6,t_token=1.2")
    wanted = [*group(chosen, 5), *group(chosen, 4, "r", (5, 6))]
    expected = by_key(run(model, wanted))
    assert len({s.nfe for s in expected.values() if s.request == "r"}) > 1
    real, syncs = Rows.sync, []

    def sync(self, healthy):
        syncs.append([info.sample for info in self.info if info.sample is not None])
        if len(syncs) == min(s.nfe for s in expected.values()) + 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, healthy)

    monkeypatch.setattr(Rows, "sync", sync)
    found = list(run(model, wanted))
    assert any(syncs[:-1]), "some had finished"
    assert len(found) == 9
    assert all(same(s, expected[s.request, s.index]) for s in found)


@pytest.mark.parametrize(
    ("family", "cache"), [("llada", None), ("llada", "dual"), ("Dream", "prefix"), ("sdar", None)]
)
@pytest.mark.parametrize(
    "spec", ["odd:t_token=1.5", "tct:repel=9,t_token=1.5", "llada2.1:repel=9,t_token=1.5"]
)
def test_real_layouts_and_caches(family, cache, spec):
    model = random_model(family)
    block = None if model.block_size else 4
    asked = [group(parse(spec), n, str(n), tuple(range(2, 4 + n)), 9, block) for n in (5, 1, 3)]
    together = by_key(run(model, list(chain(*asked)), batch_size=6, cache=cache))
    for some in asked:
        for key, sample in by_key(run(model, some, cache=cache)).items():
            assert same(sample, together[key])


def test_a_row_that_stops_at_eos_still_counts():
    """Rows that stop at their first EOS rest; those after them are pushed by what they wrote."""
    table = torch.randn(14, 12, generator=torch.Generator().manual_seed(3))
    table[4, 1] = 4.0
    model, wanted = FixedModel(table, 11, (1,)), group(ODD, 6, prompt=(2, 3), eos_stop=True)
    found = by_key(run(model, wanted))
    assert {s.finish for s in found.values()} == {"eos", "length"} or len({s.nfe for s in found.values()}) > 1
    for n in (2, 5):
        assert all(same(s, found[key]) for key, s in by_key(run(model, wanted[:n])).items())


def test_a_group_causes_no_wait_for_the_device(monkeypatch):
    monkeypatch.setattr(Rows, "sync", lambda self, healthy: True)
    batch = batch_of(blind(random_model("llada")), group(ODD, 3, length=8, block=8))
    batch.rows.shared_prompts = False  # to know rows in the same state costs a wait, for every policy
    step(batch)


# --- who else handles requests


def test_the_scheduler_adds_and_removes_whole_groups():
    scheduler = Scheduler(["aa", "bbb", "c", "dd"], 5)
    assert scheduler.schedule().added == list("aabbb")
    scheduler.finish([0, 1])
    assert scheduler.schedule() == ({0: "c"}, [1], [])  # dd waits for two
    assert scheduler.schedule() == ({}, [], [])
    scheduler.finish([0])
    assert scheduler.schedule() == ({0: "d"}, [], ["d"])
    assert scheduler.running == list("dbbbd")
    assert scheduler.halve() == [1, 2, 3]
    assert (scheduler.running, scheduler.slots, "".join(scheduler.waiting)) == (["d", "d"], 2, "bbb")
    assert scheduler.schedule() == ({}, [], [])
    scheduler.finish([0, 1])
    assert scheduler.schedule() == ({0: "b", 1: "b"}, [], ["b"])  # larger than the batch has become: alone
    with pytest.raises(UserError, match="3 samples that repel each other do not fit"):
        scheduler.halve()
    scheduler.cancel("b")
    assert scheduler.idle


def test_requests_are_cut_at_groups(monkeypatch):
    wanted = list(chain(*(group(ODD, n, str(n)) for n in (5, 2, 6, 1, 4)), group(policy("lc"), 9)))
    with monkeypatch.context() as patch:
        for name in ("CHUNK", "LARGEST_CHUNK"):
            patch.setattr(local, name, 3)
        assert [len(chunk) for chunk in local.chunks(wanted)] == [5, 8, 5, 3, 3, 3]
        assert list(chain(*local.chunks(wanted))) == wanted
    mixed = wanted[::2] + wanted[1::2]
    units = list(cut(mixed, 7))
    assert sorted(map(str, chain(*units))) == sorted(map(str, wanted))
    for unit in units:
        for some in {r.group for r in unit if r.group}:
            assert [r for r in unit if r.group == some] == [r for r in wanted if r.group == some]
    assert len(units) > 4
    model = ToyModel()
    drawn = by_key(chain(*(run(model, unit) for unit in units)))
    assert all(same(s, drawn[s.request, s.index]) for s in run(model, wanted))


def test_a_batch_holds_the_largest_group(monkeypatch):
    monkeypatch.setattr("twotemp.engine.engine.fit_batch", lambda *_: (2, "little memory"))
    model = ToyModel()
    assert len(list(run(model, group(ODD, 5)))) == 5
    assert max(model.rows) == 5


def test_a_group_may_be_submitted_again_once_it_finished():
    live, short, long = LiveBatches(ToyModel(), 4), group(ODD, 2, length=4), group(ODD, 2, id="long")
    first, _ = live.submit_group(short)
    live.submit_group(long)
    while not any(handle is first and isinstance(event, Sample) for handle, event in live.turn()):
        pass
    again, _ = live.submit_group(short)  # its rows still stand in the batch, beside those that go on
    live.cancel(first)  # which is over: this says nothing about the second time
    with pytest.raises(UserError, match="being drawn already"):
        live.submit_group(short)
    live.cancel(again)
    live.submit_group(short)


def test_groups_are_compared_a_bounded_number_of_times(monkeypatch):
    looked, real = [], Request.group.fget
    monkeypatch.setattr(Request, "group", property(lambda self: looked.append(1) or real(self)))
    live = LiveBatches(ToyModel(), 4)
    for n in range(100):
        live.submit_group(group(ODD, 2, id=str(n)))
    assert len(looked) < 1000


def test_what_cannot_be_drawn_as_a_group_is_refused():
    model, wanted = ToyModel(), group(ODD, 4)
    refused = [
        (
            lambda: run(model, wanted[1:]),
            "request 'q': with repel=16 a sample depends .* these are samples 1, 2, 3",
        ),
        (lambda: run(model, [*wanted, wanted[2]]), "these are samples 0, 1, 2, 2, 3"),
        (lambda: run(model, wanted, batch_size=3), "a batch has 3 rows; set batch_size to 4 or more"),
        (lambda: LiveBatches(model, 4).submit(wanted[1]), "these are samples 1"),
        (lambda: GrpoSettings(ODD, 8), "GRPO's likelihoods"),
        (lambda: policy("lc", repel=-1.0), r"repel must be in \[0, inf\)"),
    ]
    for call, message in refused:
        with pytest.raises(UserError, match=message):
            call()
    live = LiveBatches(model, 4)
    handles = live.submit_group(wanted)
    with pytest.raises(UserError, match="being drawn already"):
        live.submit_group(wanted)
    live.turn()
    live.cancel(handles[2])
    assert live.turn() == []
    assert live.idle
    with (
        LocalService(model, 4) as service,
        pytest.raises(UserError, match="a service that starts each row when it arrives"),
    ):
        service.submit(wanted[0], print)


def test_sampling_with_a_larger_n_keeps_the_first_samples():
    model = ToyModel(sharpness=0.8)
    many = twotemp.sample(model, [[2, 3], [4, 5]], "odd", n=6, length=8, block=4)
    few = twotemp.sample(model, [4, 5], "odd", n=3, length=8, block=4, batch_size=3)
    assert [s.tokens for s in few] == [s.tokens for s in many[6:9]]


def test_a_row_with_broken_logits_fails_its_group():
    """The samples after it would be pushed from fewer than they should, and be others."""
    model = ToyModel(sharpness=0.7)
    wanted = [*group(ODD, 4, trace=True), *group(ODD, 3, id="other", trace=True)]
    expected = by_key(run(model, wanted))
    seen = {key: [row for row, _ in states(s, model.mask_id)] for key, s in expected.items()}
    mine = seen.pop(("q", 1))
    alone = next(row for n, row in enumerate(mine) if row not in [rows[n] for rows in seen.values()])
    honest = model.logits

    def logits(ids, attention_mask, want):
        found = honest(ids, attention_mask, want)
        found[(ids == torch.tensor(alone)).all(1)[want // ids.shape[1]]] = torch.nan
        return found

    model.logits = logits
    live = LiveBatches(model, 8)
    handles = [*live.submit_group(wanted[:4]), *live.submit_group(wanted[4:])]
    events = []
    while not events:
        events = live.turn()
    assert {handle for handle, _ in events} == {*handles[:4]}
    for _, error in events:
        assert isinstance(error, UserError)
        assert "request 'q', sample 1" in str(error)
    while not live.idle:
        events += live.turn()
    assert {handle for handle, _ in events[4:]} == {*handles[4:]}
    assert all(same(sample, expected["other", sample.index]) for _, sample in events[4:])


def test_extreme_repulsion_still_gives_samples():
    found = twotemp.sample(ToyModel(), [2, 3], "odd:repel=1e300", n=3, length=8, block=4)
    assert len({s.tokens for s in found}) == 3
