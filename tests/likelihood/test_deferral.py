"""The trajectory likelihoods against the law of threshold samplers on a table, by enumeration."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

import twotemp
from tests.helpers import rl_toys
from tests.helpers.path_laws import (
    MASK,
    as_sample,
    build_queries,
    independent_pair,
    law,
    likelihoods,
    table,
)
from theory.table import TableModel
from twotemp.engine import StepView, run
from twotemp.errors import UserError
from twotemp.likelihood.decisions import CommitQueries
from twotemp.likelihood.queries import log_q
from twotemp.policies import policy
from twotemp.records import Policy, Request, Sample, Trace
from twotemp.rl.objective import Clip, grpo


def test_trajectory_leaves_out_deferred_tokens():
    """The example of two independent positions: over all trajectories it sums to 2.19."""
    model, ct = independent_pair(), policy("ct", threshold=0.6, t_token=1.0)
    paths = law(model, ct)
    assert sum(paths.values()) == pytest.approx(1)
    both = next(
        path for path in paths if len(path) == 1
    )  # A and A in one step: certain, given that both commit
    assert paths[both] == pytest.approx(0.49)
    assert likelihoods(model, ct, paths, "trajectory").sum().item() == pytest.approx(2.19, abs=1e-5)
    assert likelihoods(model, ct, paths, "deferral").sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("t_token", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("threshold", [0.4, 0.6, 0.9])
def test_deferral_is_the_law_of_hard_thresholds(threshold, t_token):
    model, ct = table(), policy("ct", threshold=threshold, t_token=t_token)
    paths = law(model, ct)
    expected = torch.tensor(list(paths.values())).float()
    torch.testing.assert_close(likelihoods(model, ct, paths, "deferral"), expected, atol=1e-6, rtol=1e-4)
    assert expected.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("name", ["ar", "random"])
def test_trajectory_is_the_law_where_the_order_ignores_the_tokens(name):
    """Given the order: its own probability is a number that no weight of the model changes."""
    model, rule = table(), policy(name, t_token=1.0)
    paths = law(model, rule)
    orders = 1 if name == "ar" else 6
    found = likelihoods(model, rule, paths, "trajectory") / orders
    torch.testing.assert_close(found, torch.tensor(list(paths.values())).float(), atol=1e-6, rtol=1e-4)


def step_probabilities(queries: CommitQueries, model: TableModel, rule: Policy) -> torch.Tensor:
    """The probability of each query's step; where one position was committed, with the integral over kappa."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    forbidden = torch.tensor([MASK])

    def probability(cut: float, forced: bool) -> torch.Tensor:
        moved = replace(
            queries, cut=torch.full_like(queries.cut, cut), forced=torch.full_like(queries.forced, forced)
        )
        return moved.totals(log_q(model.logits, moved, forbidden)).exp()

    total = probability(rule.threshold, False)
    lowest = rule.threshold - 30 * rule.t_pos  # scores below it have probability e^-30
    half = (rule.threshold - lowest) / 2
    integral = sum(w * half * probability(lowest + half * (1 + x), True) for x, w in zip(nodes, weights))
    return total + torch.where((queries.committed & queries.queried).sum(1) == 1, integral, 0.0)


@pytest.mark.parametrize(("threshold", "t_pos"), [(0.6, 0.1), (0.6, 1.0), (0.9, 0.3)])
def test_deferral_is_the_law_of_soft_thresholds(threshold, t_pos):
    model, tct = table(length=2), policy("tct", threshold=threshold, t_pos=t_pos, t_token=0.8)
    paths = law(model, tct)
    queries = build_queries("deferral", [as_sample(model, tct, path) for path in paths])
    steps = step_probabilities(queries, model, tct)
    probabilities = torch.zeros(len(paths)).index_add(0, queries.row, steps.log()).exp()
    torch.testing.assert_close(
        probabilities, torch.tensor(list(paths.values())).float(), atol=1e-5, rtol=1e-4
    )
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-4)
    assert likelihoods(model, tct, paths, "trajectory").sum().item() > 1.5


def engine_samples(model, rule: Policy, n: int = 6, length: int = 6, block: int = 3) -> list[Sample]:
    requests = [
        Request(str(i), (5, 6, 7)[: 1 + i % 3], rule, length=length, block=block, seed=1, trace=True)
        for i in range(n)
    ]
    return list(run(model, requests))


def test_deferral_replays_the_noise_of_the_engine():
    """A step is forced exactly where its one score is not above lambda, and only the active block takes part."""
    model, tct = rl_toys.micro_model(), policy("tct", threshold=0.4, t_pos=0.5)
    samples = engine_samples(model, tct, n=24)
    queries = build_queries("deferral", samples, mask_id=model.mask_id, block=3)
    alone = (queries.committed & queries.queried).sum(1) == 1
    assert queries.forced.any()
    assert (~queries.forced & ~alone).any()
    assert not (queries.forced & ~alone).any(), "several positions are never forced"
    assert (queries.queried.sum(1) <= 3).all(), "only the active block takes part"
    assert (queries.committed <= queries.queried).all()
    first = queries.queried.nonzero()[queries.queried.nonzero()[:, 0].diff(prepend=torch.tensor([-1])) > 0]
    mqueries = queries.ids == model.mask_id
    assert torch.equal(first[:, 1], mqueries.int().argmax(1)), "the active block holds the leftmost mask"
    assert (queries.cut <= 0.4 + 1e-6).all()


def test_deferral_has_finite_values_and_gradients():
    model = rl_toys.micro_model()
    for rule in (policy("tct", threshold=0.4), policy("ct", threshold=0.4)):
        queries = build_queries("deferral", engine_samples(model, rule), mask_id=model.mask_id, block=3)
        new = log_q(model.logits, queries, torch.tensor(model.forbidden_ids))
        assert torch.isfinite(new).all()
        weight = torch.ones_like(new)
        grpo(rl_toys.terms_of(new, new.detach(), None, weight, weight), Clip(0.5, 0.5, 0.0)).total.backward()
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
def test_deferral_refuses_other_policies(rule):
    trace = Trace((0,), (0.5,), (0.1,))
    sample = Sample("a", 0, 0, rule, (0,), (1,), (1,), 1, 1, 9, 0.0, "length", trace=trace)
    with pytest.raises(UserError, match="--likelihood trajectory"):
        build_queries("deferral", [sample])


def test_fork_asks_only_about_steps_that_committed_one_position():
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
    queries = build_queries("fork", samples)
    assert queries.row.tolist() == [0, 0]
    assert [queried.nonzero()[:, 0].tolist() for queried in queries.queried] == [[3], [4]]
    assert queries.ids.tolist() == [[2, 1, 1, MASK, MASK], [2, 1, 1, 0, MASK]]


def test_fork_counts_positions_after_eos_when_it_looks_for_single_commits():
    eos, trace = 1, Trace((0, 0), (0.5,) * 2, (0.1,) * 2)
    rule = policy("ct", t_token=1.0)
    sample = Sample("a", 0, 0, rule, (2,), (1, 2), (eos, 0), 1, 1, 9, 0.0, "eos", trace=trace)
    assert len(build_queries("fork", [sample], eos=(eos,))) == 0


def decided(view: StepView, row: int) -> float:
    """Return the log-probability of a CT step as the engine took it, from its own logits: T_token = 1."""
    q = view.logits[view.window.row == row].double().softmax(-1)
    columns = view.window.column[view.window.row == row].tolist()
    written = {position: token for position, token, _ in view.committed(row)}
    passing = [q[n, written[k]].item() for n, k in enumerate(columns) if k in written]
    cut = min(view.requests[row].policy.threshold, max(passing))
    total = 0.0
    for probabilities, column in zip(q, columns):
        mass = probabilities[probabilities <= cut * (1 + 1e-6)].sum()
        total += float((probabilities[written[column]] if column in written else mass).log())
    return total


@pytest.mark.parametrize("block", [2, 3, 6])
def test_score_asks_about_the_blocks_that_the_sample_was_decoded_in(block):
    model, rule = rl_toys.micro_model(), policy("ct", threshold=0.4, t_token=1.0)
    expected: dict[str, float] = defaultdict(float)

    def add(view: StepView) -> None:
        for row, request in enumerate(view.requests):
            expected[request.id] += decided(view, row)

    samples = twotemp.sample(
        model, [[5], [5, 6]], rule, length=6, block=block, ids=["a", "b"], trace=True, on_step=add
    )
    scores = [likelihood.log_p for likelihood in twotemp.score(model, samples, estimator="deferral")]
    assert scores == pytest.approx([expected[sample.request] for sample in samples], abs=1e-4)


def test_score_refuses_a_sample_that_does_not_know_its_blocks():
    model, rule = rl_toys.micro_model(), policy("ct", threshold=0.4, t_token=1.0)
    (sample,) = twotemp.sample(model, [5], rule, length=6, block=3, ids=["a"], trace=True)
    stored = Sample.from_dict(sample.to_dict())
    with pytest.raises(UserError, match=r"sample 0 of 'a' .*replace\(sample, block="):
        twotemp.score(model, stored, estimator="deferral")
    again = twotemp.score(model, replace(stored, block=3), estimator="deferral")
    assert again == twotemp.score(model, sample, estimator="deferral")
