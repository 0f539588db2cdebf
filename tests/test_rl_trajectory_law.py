"""What a threshold sampler does with a table, by enumeration, against the likelihoods that claim to know it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from tests.helpers import rl_toys
from theory.anchor_fork import has
from theory.exact import commit_sets
from theory.strings import temper
from theory.table import TableModel
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Policy, Request, Sample, Trace
from twotemp.rl.likelihood import ESTIMATORS, Completions, Decisions, log_likelihood, log_probs
from twotemp.rl.objective import grpo_loss

START, MASK = 2, 3
Step = tuple[tuple[int, int], ...]  # (position, token) of everything a step committed
Law = dict[tuple[Step, ...], float]


def table(length: int = 3, seed: int = 0, spread: float = 1.5) -> TableModel:
    """All strings over two letters, with weights that tie the positions together."""
    generator = torch.Generator().manual_seed(seed)
    strings = list(product(range(2), repeat=length))
    weights = (spread * torch.randn(len(strings), generator=generator)).exp().tolist()
    return TableModel([((START, *s), w) for s, w in zip(strings, weights)], vocab_size=4, mask_id=MASK)


def independent_pair() -> TableModel:
    """Two positions that know nothing of each other, each A with probability 0.7."""
    weights = {0: 0.7, 1: 0.3}
    return TableModel(
        [((START, a, b), weights[a] * weights[b]) for a, b in product((0, 1), repeat=2)], 4, MASK
    )


def predictions(model: TableModel, row: tuple[int, ...]) -> dict[int, np.ndarray]:
    """q at every masked position."""
    ids = torch.tensor([row])
    masked = ids == MASK
    q = model.logits(ids, None, masked).double().exp().numpy()
    return dict(zip(masked[0].nonzero()[:, 0].tolist(), q))


def law(model: TableModel, rule: Policy) -> Law:
    """P(trajectory), from the definition: every draw at all masked positions, every set committed given it."""
    length = model.sequences.shape[1] - 1
    open_ways: Law = {(): 1.0}
    done: Law = {}
    while open_ways:
        longer: Law = defaultdict(float)
        for way, p in open_ways.items():
            row = [START] + [MASK] * length
            for position, token in (pair for step in way for pair in step):
                row[position] = token
            q = predictions(model, tuple(row))
            drawn = {k: temper(q[k][:2], rule.t_token) for k in q}
            for tokens in product((0, 1), repeat=len(q)):
                x = dict(zip(q, tokens))
                chance = p * prod(drawn[k][x[k]] for k in q)
                for chosen, share in commit_sets(rule, {k: float(q[k][x[k]]) for k in q}).items():
                    if chance * share > 0:
                        longer[*way, tuple((k, x[k]) for k in q if has(chosen, k))] += chance * share
        done |= {way: p for way, p in longer.items() if sum(map(len, way)) == length}
        open_ways = {way: p for way, p in longer.items() if way not in done}
    return done


def as_sample(model: TableModel, rule: Policy, way: tuple[Step, ...]) -> Sample:
    steps, tokens, confidence = {}, {}, {}
    row = [START] + [MASK] * sum(map(len, way))
    for number, step in enumerate(way):
        q = predictions(model, tuple(row))
        for position, token in step:
            row[position] = tokens[position] = token
            steps[position], confidence[position] = number, float(np.float32(q[position][token]))
    at = tuple(sorted(tokens))
    trace = Trace(tuple(steps[k] for k in at), tuple(confidence[k] for k in at), (0.0,) * len(at))
    return Sample(
        "q", 0, 0, rule, (START,), at, tuple(tokens[k] for k in at), 1, 1, 1, 0.0, "length", trace=trace
    )


def likelihoods(model: TableModel, rule: Policy, ways: Law, name: str) -> torch.Tensor:
    rows = Completions.of([as_sample(model, rule, way) for way in ways], ())
    asked = ESTIMATORS[name](rows, MASK, 0, 1)
    return log_likelihood(model.logits, rows, asked, torch.tensor([MASK])).exp()


def test_trajectory_leaves_out_what_was_deferred():
    """The example of two independent positions: over all trajectories it sums to 2.19."""
    model, ct = independent_pair(), policy("ct", threshold=0.6, t_token=1.0)
    ways = law(model, ct)
    assert sum(ways.values()) == pytest.approx(1)
    both = next(way for way in ways if len(way) == 1)  # A and A in one step: certain, given that both commit
    assert ways[both] == pytest.approx(0.49)
    assert likelihoods(model, ct, ways, "trajectory").sum().item() == pytest.approx(2.19, abs=1e-5)
    assert likelihoods(model, ct, ways, "deferral").sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("t_token", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("threshold", [0.4, 0.6, 0.9])
def test_deferral_is_the_law_of_hard_thresholds(threshold, t_token):
    model, ct = table(), policy("ct", threshold=threshold, t_token=t_token)
    ways = law(model, ct)
    expected = torch.tensor(list(ways.values())).float()
    torch.testing.assert_close(likelihoods(model, ct, ways, "deferral"), expected, atol=1e-6, rtol=1e-4)
    assert expected.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("name", ["ar", "random"])
def test_trajectory_is_the_law_where_the_order_ignores_the_tokens(name):
    """Given the order: its own probability is a number that no weight of the model changes."""
    model, rule = table(), policy(name, t_token=1.0)
    ways = law(model, rule)
    orders = 1 if name == "ar" else 6
    found = likelihoods(model, rule, ways, "trajectory") / orders
    torch.testing.assert_close(found, torch.tensor(list(ways.values())).float(), atol=1e-6, rtol=1e-4)


def step_probabilities(asked: Decisions, model: TableModel, rule: Policy) -> torch.Tensor:
    """Of each question's step: the chance to pass, and where one position was committed the integral over kappa."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    forbidden = torch.tensor([MASK])

    def chance(cut: float, forced: bool) -> torch.Tensor:
        moved = replace(
            asked, cut=torch.full_like(asked.cut, cut), forced=torch.full_like(asked.forced, forced)
        )
        question = moved.want.nonzero()[:, 0]
        return torch.zeros(len(moved)).index_add(0, question, log_probs(model.logits, moved, forbidden)).exp()

    total = chance(rule.threshold, False)
    lowest = rule.threshold - 30 * rule.t_pos  # scores below it have probability e^-30
    half = (rule.threshold - lowest) / 2
    integral = sum(w * half * chance(lowest + half * (1 + x), True) for x, w in zip(nodes, weights))
    return total + torch.where((asked.committed & asked.want).sum(1) == 1, integral, 0.0)


@pytest.mark.parametrize(("threshold", "t_pos"), [(0.6, 0.1), (0.6, 1.0), (0.9, 0.3)])
def test_deferral_is_the_law_of_soft_thresholds(threshold, t_pos):
    model, tct = table(length=2), policy("tct", threshold=threshold, t_pos=t_pos, t_token=0.8)
    ways = law(model, tct)
    rows = Completions.of([as_sample(model, tct, way) for way in ways], ())
    asked = ESTIMATORS["deferral"](rows, MASK, 0, 1)
    steps = step_probabilities(asked, model, tct)
    found = torch.zeros(len(ways)).index_add(0, asked.row, steps.log()).exp()
    torch.testing.assert_close(found, torch.tensor(list(ways.values())).float(), atol=1e-5, rtol=1e-4)
    assert found.sum().item() == pytest.approx(1, abs=1e-4)
    assert likelihoods(model, tct, ways, "trajectory").sum().item() > 1.5


def engine_samples(model, rule: Policy, n: int = 6, length: int = 6, block: int = 3) -> list[Sample]:
    requests = [
        Request(str(i), (5, 6, 7)[: 1 + i % 3], rule, length=length, block=block, seed=1, trace=True)
        for i in range(n)
    ]
    return list(run(model, requests))


def test_deferral_knows_which_positions_were_open_and_why_each_was_committed():
    """Replaying the engine's noise: a step is forced exactly where its one score is not above lambda."""
    model, tct = rl_toys.micro_model(), policy("tct", threshold=0.4, t_pos=0.5)
    samples = engine_samples(model, tct, n=24)
    asked = ESTIMATORS["deferral"](Completions.of(samples, (), block=3), model.mask_id, 0, 1)
    alone = (asked.committed & asked.want).sum(1) == 1
    assert asked.forced.any()
    assert (~asked.forced & ~alone).any()
    assert not (asked.forced & ~alone).any(), "several positions are never forced"
    assert (asked.want.sum(1) <= 3).all(), "only the active block takes part"
    assert (asked.committed <= asked.want).all()
    first = asked.want.nonzero()[asked.want.nonzero()[:, 0].diff(prepend=torch.tensor([-1])) > 0]
    masked = asked.ids == model.mask_id
    assert torch.equal(first[:, 1], masked.int().argmax(1)), "the active block holds the leftmost mask"
    assert (asked.cut <= 0.4 + 1e-6).all()


def test_deferral_has_finite_answers_and_gradients_on_a_network():
    model = rl_toys.micro_model()
    for rule in (policy("tct", threshold=0.4), policy("ct", threshold=0.4)):
        rows = Completions.of(engine_samples(model, rule), (), block=3)
        asked = ESTIMATORS["deferral"](rows, model.mask_id, 0, 1)
        new = log_probs(model.logits, asked, torch.tensor(model.forbidden_ids))
        assert torch.isfinite(new).all()
        weight = torch.ones_like(new)
        grpo_loss(new, new.detach(), None, weight, weight, epsilon=0.5, beta=0.0).total.backward()
        grads = [p.grad for p in model.module.parameters() if p.grad is not None]
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert any(grad.abs().max() > 0 for grad in grads)
        model.module.zero_grad()


@pytest.mark.parametrize(
    "rule",
    [
        policy("lc", t_token=1.0),
        policy("ct", t_token=0.0),
        policy("tct", t_pos=float("inf")),
        policy("tct", top_p=0.9),
        policy("sdar", k=2),
        policy("llada2", t_token=1.0),
    ],
)
def test_deferral_refuses_rules_it_does_not_know(rule):
    trace = Trace((0,), (0.5,), (0.1,))
    sample = Sample("a", 0, 0, rule, (0,), (1,), (1,), 1, 1, 9, 0.0, "length", trace=trace)
    with pytest.raises(UserError, match="--likelihood trajectory"):
        ESTIMATORS["deferral"](Completions.of([sample], ()), MASK, 0, 1)


def test_fork_asks_only_where_one_position_was_committed():
    trace = Trace((0, 0, 1, 2), (0.5,) * 4, (0.1,) * 4)
    rule = policy("ct", t_token=1.0)
    samples = [
        Sample("a", 0, 0, rule, (2,), (1, 2, 3, 4), (1, 1, 0, 1), 3, 3, 9, 0.0, "length", trace=trace),
        Sample(
            "b",
            0,
            0,
            rule,
            (2,),
            (1, 2),
            (1, 0),
            1,
            1,
            9,
            0.0,
            "length",
            trace=Trace((0, 0), (0.5,) * 2, (0.1,) * 2),
        ),
    ]
    asked = ESTIMATORS["fork"](Completions.of(samples, ()), MASK, 0, 1)
    assert asked.row.tolist() == [0, 0]
    assert [want.nonzero()[:, 0].tolist() for want in asked.want] == [[3], [4]]
    assert asked.ids.tolist() == [[2, 1, 1, MASK, MASK], [2, 1, 1, 0, MASK]]


def test_fork_does_not_take_a_pair_for_single_because_one_is_after_the_end():
    eos, trace = 1, Trace((0, 0), (0.5,) * 2, (0.1,) * 2)
    rule = policy("ct", t_token=1.0)
    sample = Sample("a", 0, 0, rule, (2,), (1, 2), (eos, 0), 1, 1, 9, 0.0, "eos", trace=trace)
    assert len(ESTIMATORS["fork"](Completions.of([sample], (eos,)), MASK, 0, 1)) == 0
