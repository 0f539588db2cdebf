"""The measuring tools: order, pairing, exponents, counted steps, and reports of missing peers."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import peers
from benchmarks.decoding import limited, paired
from benchmarks.measure import EnoughSteps, Spread, Times, exponent, interleave, ratio, table
from benchmarks.peers import FullLogits, SamplingTask
from benchmarks.proxies import POLICIES, RATIO, Proxy, prompts, requests
from benchmarks.scheduling import static
from twotemp.engine import run
from twotemp.policies import policy

ROOT = Path(__file__).resolve().parents[2]
SMALL = Proxy("small", width=64, layers=1, vocabulary=96)


@pytest.fixture(scope="module")
def model():
    return SMALL.model()


@pytest.fixture(scope="module")
def wanted(model):
    return requests(prompts(model, 2, 5), POLICIES["LC, K = 1"], 6, 3)


@pytest.mark.slow
def test_an_unknown_part_is_refused():
    """All modules of the parts are imported by then."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "none"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert "unknown parts: none; the parts are bare, peers, caches" in done.stderr


class RecordingContender:
    """A contender that records its calls and the noise it would see."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __call__(self, small):
        self.calls.append((self.name, small, float(torch.rand(()))))
        return len(self.calls)


def test_contenders_warm_up_take_turns_and_run_at_least_one_round():
    calls = []
    contenders = {name: RecordingContender(name, calls) for name in "abc"}
    times = interleave(contenders, seconds=0)
    assert [(name, small) for name, small, _ in calls[:3]] == [("a", True), ("b", True), ("c", True)]
    assert [(name, small) for name, small, _ in calls[3:]] == [("a", False), ("b", False), ("c", False)]
    assert {name: t.count for name, t in times.items()} == {"a": [4], "b": [5], "c": [6]}, (
        "without the warm-up"
    )
    assert [len(t.cpu) for t in times.values()] == [1, 1, 1]


def test_each_round_starts_with_a_different_contender_and_uses_one_seed():
    calls = []
    interleave({name: RecordingContender(name, calls) for name in "abc"}, seconds=60)
    assert "".join(name for name, small, _ in calls if not small) == "abcbcacababcbca"
    noise = [value for _, small, value in calls if not small]
    rounds = [set(noise[at : at + 3]) for at in range(0, 15, 3)]
    assert [len(values) for values in rounds] == [1] * 5
    assert len(set.union(*rounds)) == 5, "different rounds have different seeds"


def test_the_cost_per_unit_is_taken_over_all_rounds():
    """An adaptive policy took 10 steps in one round and 30 in the other."""
    assert Times(cpu=[1.0, 3.0], wall=[9.0, 9.0], count=[10, 30]).each == pytest.approx(0.1)


def test_ratios_are_paired_by_round():
    assert ratio([2.0, 9.0], [1.0, 3.0]).values == (2.0, 3.0)
    with pytest.raises(ValueError):
        ratio([1.0], [1.0, 2.0])
    assert Spread((3.0, 1.0, 2.0)).text(1) == "2.0 (1.0 to 3.0)"
    assert Spread((3.0,)).text(1) == "3.0"


def test_the_exponent_of_a_power_law():
    sizes = [64, 256, 1024]
    assert exponent(sizes, [7 * n**1.5 for n in sizes]) == pytest.approx(1.5)


def test_a_table_is_markdown():
    assert table(["", "a"], [["x", "1"]]) == "|  | a |\n| --- | --: |\n| x | 1 |\n"


def test_the_proxy_has_the_ratio_of_body_to_head_of_llada_8b():
    """Counted from the weights: multiplications per token equal the parameters of the matrices."""
    weights = SMALL.model().module.state_dict()
    body = sum(w.numel() for key, w in weights.items() if "layers" in key and w.dim() == 2)
    assert SMALL.body_to_head == pytest.approx(body / weights["lm_head.weight"].numel())
    llada_8b = Proxy("", width=4096, layers=32, vocabulary=126_464).body_to_head
    assert RATIO.body_to_head == pytest.approx(llada_8b, rel=0.05)


def test_steps_are_counted_and_limited(model, wanted):
    assert limited(model, wanted, 4).steps == 4
    assert limited(model, wanted, 99).steps == 6
    full = FullLogits(model, steps=2)
    ids = torch.full((1, 4), model.mask_id)
    assert bool((full(ids).logits[..., model.mask_id] == -torch.inf).all())
    full(ids)
    with pytest.raises(EnoughSteps):
        full(ids)
    assert full.calls == 2


def test_the_bare_forward_pass_repeats_every_step_with_the_same_inputs(model, wanted):
    calls = []
    original = model.logits

    def counting(ids, attention_mask, want):
        calls.append((ids.clone(), want.clone()))
        return original(ids, attention_mask, want)

    model.logits = counting
    try:
        pairs = paired(model, wanted, steps=3, seconds=0)
    finally:
        model.__dict__.pop("logits", None)
    assert len(pairs) == 1
    assert len(calls) == 2 * 2 * 3  # two runs (one warms up) of three steps, each forward twice
    for (ids, want), (repeated_ids, repeated_want) in zip(calls[::2], calls[1::2]):
        assert torch.equal(ids, repeated_ids)
        assert torch.equal(want, repeated_want)


@pytest.mark.parametrize("shared", [True, False])
def test_static_batches_finish_every_row(model, shared):
    """Adaptive rows end at different steps, and finished rows stay in the batch; 5 + 6 is not a multiple of 4."""
    wanted = requests(prompts(model, 4, 5), policy("tct", t_token=0.8), 6, 4)
    steps = {sample.forwards for sample in run(model, wanted)}
    assert len(steps) > 1, "rows must end at different steps"
    assert static(model, wanted, 3, shared=shared) == 4


def test_missing_peers_are_reported():
    available, missing = peers.uncached(None)
    assert (available, len(missing)) == ({}, 1)
    available, missing = peers.uncached(Path("/nowhere"))
    assert available == {}
    assert len(missing) == 3
    assert all("is skipped" in reason for reason in missing)


def test_a_peer_declares_which_tasks_it_supports():
    alone = SamplingTask(torch.zeros(1, 3), 4, 4, 0.8, None, 9)
    batch, threshold = (
        SamplingTask(torch.zeros(2, 3), 4, 4, 0.8, None, 9),
        SamplingTask(torch.zeros(1, 3), 4, 4, 0.8, 0.6, 9),
    )
    limited_peer = peers.Peer(lambda model, task: task.prompts, thresholds=False, batches=False)
    assert [limited_peer.can(task) for task in (alone, batch, threshold)] == [True, False, False]
    assert all(peers.Peer(limited_peer.sample).can(task) for task in (alone, batch, threshold))


def test_the_checkpoint_of_real_size_has_the_published_tensors() -> None:
    """LLaDA-8B's published index has 291 names and 16,031,162,368 bytes."""
    from benchmarks.real_size import CONFIG, shapes

    sizes = [2 * math.prod(shape) for shape in shapes(CONFIG).values()]
    assert (len(sizes), sum(sizes)) == (291, 16_031_162_368)
