"""Coupled masks, quadrature and merged steps against enumeration: 3 letters, 5 positions, EOS and ragged prompts."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product
from math import factorial

import numpy as np
import pytest
import torch

import twotemp
from theory.table import TableModel
from twotemp.likelihood.estimators import ESTIMATORS
from twotemp.likelihood.queries import Completion, CompletionBatch, MaskedQueries, log_q
from twotemp.records import Sample

LETTERS, LENGTH = 3, 5
START, MASK, EOS = LETTERS, LETTERS + 1, LETTERS - 1


@cache
def table() -> TableModel:
    generator = torch.Generator().manual_seed(4)
    strings = list(product(range(LETTERS), repeat=LENGTH + 1))
    weights = (1.5 * torch.randn(len(strings), generator=generator)).exp().tolist()
    return TableModel([((START, *s), w) for s, w in zip(strings, weights)], LETTERS + 2, MASK, eos_ids=(EOS,))


@cache
def samples() -> tuple[Sample, ...]:
    prompts = [[START], [START, 0], [START, 1]] * 4
    found = twotemp.sample(
        table(), prompts, "tct:t_token=1,threshold=0.5", length=LENGTH, trace=True, eos_stop=True
    )
    assert len({Completion.from_sample(sample).scored((EOS,)) for sample in found}) > 2, "lengths must differ"
    return tuple(found)


def scored(sample: Sample) -> list[int]:
    return list(sample.positions[: Completion.from_sample(sample).scored((EOS,))])


@cache
def log_probability(row: tuple[int, ...], column: int, token: int) -> float:
    ids = torch.tensor([row])
    want = torch.zeros_like(ids, dtype=torch.bool)
    want[0, column] = True
    return float(table().logits(ids, None, want)[0, token])


def term(sample: Sample, hidden: set[int], column: int) -> float:
    """log q(token at the column | hidden scored positions and all after EOS masked)."""
    known = scored(sample)
    row = list(sample.prompt) + list(sample.tokens)
    for position in sample.positions:
        if position in hidden or position not in known:
            row[position] = MASK
    return log_probability(tuple(row), column, row_token(sample, column))


def row_token(sample: Sample, column: int) -> int:
    return dict(zip(sample.positions, sample.tokens))[column]


def build(name: str, draws: range, size: int = 1) -> MaskedQueries:
    completions = [Completion.from_sample(sample) for sample in samples()]
    batch = CompletionBatch.pad(completions, eos_ids=(EOS,), mask_id=MASK).merged(size)
    return ESTIMATORS[name](batch, draws)


def by_row(queries: MaskedQueries) -> torch.Tensor:
    sums = queries.weight * queries.totals(log_q(table().logits, queries, torch.tensor([MASK])))
    return torch.zeros(len(samples())).index_add(0, queries.row, sums)


def test_coupled_reads_every_token_once_in_a_pair_as_the_authors_do():
    queries = build("coupled", range(1))
    found, rows = by_row(queries), len(samples())
    assert len(queries) == 3 * rows
    for n, sample in enumerate(samples()):
        everything = set(scored(sample))
        whole, part, rest = (set(queries.queried[n + i * rows].nonzero()[:, 0].tolist()) for i in range(3))
        assert whole == everything == part | rest
        assert not part & rest
        ratio = 0.5 / float(queries.weight[n + rows])
        assert 0.2 < ratio < 0.8
        assert 0.5 / float(queries.weight[n + 2 * rows]) == pytest.approx(1 - ratio, abs=1e-6)
        total = sum(term(sample, everything, k) for k in everything)
        total += sum(term(sample, part, k) / ratio for k in part)
        total += sum(term(sample, rest, k) / (1 - ratio) for k in rest)
        assert found[n].item() == pytest.approx(total / 2, abs=1e-5)


def test_the_parts_of_coupled_have_the_size_of_their_ratio():
    queries, rows = build("coupled", range(200)), len(samples())
    pairs = queries.queried.view(200, 3, rows, -1).sum(-1).double()
    ratio = 0.5 / 200 / queries.weight.view(200, 3, rows)[:, 1]
    error = pairs[:, 1] - ratio * pairs[:, 0]
    spread = (ratio * (1 - ratio) * pairs[:, 0]).sum() ** 0.5
    assert abs(error.sum()) < 4 * spread
    assert abs(ratio.double().mean() - 0.5) < 4 * 0.6 / 12**0.5 / (200 * rows) ** 0.5


def bound_at(sample: Sample, ratio: float) -> float:
    """The expectation over all masks with this ratio of 1/t sum log q."""
    known, total = scored(sample), 0.0
    for inside in product((False, True), repeat=len(known)):
        hidden = {k for k, chosen in zip(known, inside) if chosen}
        p = ratio ** len(hidden) * (1 - ratio) ** (len(known) - len(hidden))
        total += p / ratio * sum(term(sample, hidden, k) for k in hidden)
    return total


def bound(sample: Sample) -> float:
    """The mean over all orders of the log-likelihood in that order."""
    known = scored(sample)
    total = sum(term(sample, set(order[n:]), k) for order in permutations(known) for n, k in enumerate(order))
    return total / factorial(len(known))


@pytest.mark.parametrize("draws", [1, 2, 3, 6])
def test_quadrature_follows_its_formula(draws):
    nodes = draws // 2 if draws % 2 == 0 else draws
    x, w = np.polynomial.legendre.leggauss(nodes)
    queries, rows = build("quadrature", range(draws)), len(samples())
    found = by_row(queries)
    for n, sample in enumerate(samples()):
        total = 0.0
        for draw in range(draws):
            hidden = set(queries.queried[n + draw * rows].nonzero()[:, 0].tolist())
            ratio, weight = (x[draw % nodes] + 1) / 2, w[draw % nodes] / 2
            total += weight / ratio * nodes / draws * sum(term(sample, hidden, k) for k in hidden)
        assert found[n].item() == pytest.approx(total, abs=1e-5)


def test_three_nodes_have_the_expectation_of_the_bound_for_six_tokens_or_fewer():
    x, w = np.polynomial.legendre.leggauss(3)
    for sample in samples()[:4]:
        expected = sum(weight / 2 * bound_at(sample, (node + 1) / 2) for node, weight in zip(x, w))
        assert expected == pytest.approx(bound(sample), abs=1e-5)
    longest = max(samples(), key=lambda sample: len(scored(sample)))
    assert abs(bound_at(longest, 0.5) - bound(longest)) > 1e-3, (
        "one node is not enough for more than two tokens"
    )


def test_quadrature_masks_at_its_nodes():
    queries = build("quadrature", range(402))  # 201 nodes, two masks each
    sizes = torch.zeros(402).index_add(0, queries.draw, queries.queried.sum(1).float())
    nodes = torch.tensor((np.polynomial.legendre.leggauss(201)[0] + 1) / 2).repeat(2)
    tokens = sum(len(scored(sample)) for sample in samples())
    z = (sizes - nodes * tokens) / (nodes * (1 - nodes) * tokens).sqrt()
    assert abs(z.mean()) < 4 / 402**0.5
    assert 0.7 < z.square().mean() < 1.3


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_merged_steps_are_asked_for_given_what_came_before_the_first_of_them(size):
    found = by_row(build("trajectory", range(1), size))
    for n, sample in enumerate(samples()):
        when = dict(zip(sample.positions, sample.trace.steps))
        numbers = sorted({step for step in sample.trace.steps if step >= 0})
        group = {k: numbers.index(when[k]) // size if when[k] >= 0 else 99 for k in sample.positions}
        total = 0.0
        for k in scored(sample):
            row = list(sample.prompt) + [
                MASK if group[p] >= group[k] else row_token(sample, p) for p in sample.positions
            ]
            total += log_probability(tuple(row), k, row_token(sample, k))
        assert found[n].item() == pytest.approx(total, abs=1e-5)
    whole, merged = len(build("trajectory", range(1))), len(build("trajectory", range(1), size))
    assert merged <= whole if size == 1 else merged < whole
