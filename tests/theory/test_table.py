"""The table model against the definition, by brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.table import TableModel
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.models.checkpoint import fingerprint

MASK, VOCABULARY, N = 3, 4, 4
sequences = st.lists(
    st.tuples(st.tuples(*[st.integers(0, 2)] * N), st.floats(0.01, 10)), min_size=1, max_size=8
)


def by_definition(table, state: tuple[int, ...], k: int) -> list[float]:
    """Compute q^k(v | x_t) with plain loops; without agreement, over the sequences with the fewest mismatches."""

    def mismatches(ids):
        return sum(x not in (MASK, s) for x, s in zip(state, ids))

    fewest = min(mismatches(ids) for ids, _ in table)
    mass = [0.0] * VOCABULARY
    for ids, weight in table:
        if mismatches(ids) == fewest:
            mass[ids[k]] += weight
    return [m / sum(mass) for m in mass]


@settings(max_examples=30, deadline=None)
@given(table=sequences)
def test_every_state_matches_the_definition(table) -> None:
    model = TableModel(table, VOCABULARY, MASK)
    states = list(itertools.product(range(VOCABULARY), repeat=N))
    ids = torch.tensor(states)
    want = torch.ones_like(ids, dtype=torch.bool)
    q = model.logits(ids, None, want).exp().reshape(len(states), N, VOCABULARY)
    expected = torch.tensor([[by_definition(table, state, k) for k in range(N)] for state in states])
    torch.testing.assert_close(q, expected, atol=1e-6, rtol=1e-5)


def test_the_chain_rule_from_left_to_right_recovers_the_table() -> None:
    table = [((0, 1, 2, 0), 1.0), ((0, 2, 2, 1), 2.0), ((1, 1, 0, 0), 5.0)]
    model = TableModel(table, VOCABULARY, MASK)
    for ids, weight in table:
        probability = 1.0
        for k in range(N):
            state = torch.tensor([[*ids[:k], *[MASK] * (N - k)]])
            want = torch.arange(N)[None] == k
            probability *= float(model.logits(state, None, want)[0, ids[k]].exp())
        assert math.isclose(probability, weight / 8, rel_tol=1e-5)


def test_impossible_tokens_have_no_probability() -> None:
    model = TableModel([((0, 1), 1.0)], 4, MASK)
    logits = model.logits(torch.tensor([[MASK, MASK]]), None, torch.tensor([[True, False]]))
    assert logits.tolist() == [[0.0, -math.inf, -math.inf, -math.inf]]


@settings(max_examples=30, deadline=None)
@given(table=sequences, data=st.data())
def test_padding_never_changes_a_row_and_short_rows_have_a_masked_tail(table, data) -> None:
    model = TableModel(table, VOCABULARY, MASK)
    row = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=N))
    before, after = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    ids = torch.tensor([[0] * before + row + [1] * after])
    real = torch.tensor([[False] * before + [True] * len(row) + [False] * after])
    q = model.logits(ids, real, real).exp()
    state = (*row, *[MASK] * (N - len(row)))
    expected = torch.tensor([by_definition(table, state, k) for k in range(len(row))])
    torch.testing.assert_close(q, expected, atol=1e-6, rtol=1e-5)


def test_a_table_is_a_denoiser_with_a_fingerprint() -> None:
    table, same, other = (TableModel([((0, 1), w), ((1, 1), 1.0)], 4, MASK, [2]) for w in (1.0, 1.0, 2.0))
    assert isinstance(table, Denoiser)
    assert (table.eos_ids, table.forbidden_ids, table.max_length) == ((2,), (MASK,), 2)
    assert fingerprint(table) == fingerprint(same) != fingerprint(other)


@pytest.mark.parametrize(
    ("table", "mask_id", "message"),
    [
        ([], MASK, "at least one"),
        ([((0,), 1.0), ((0, 1), 1.0)], MASK, "the same length"),
        ([((0,), 0.0)], MASK, "positive"),
        ([((0,), math.nan)], MASK, "positive"),
        ([((MASK,), 1.0)], MASK, "not the mask"),
        ([((7,), 1.0)], MASK, "not the mask"),
        ([((0,), 1.0)], 4, "mask_id=4"),
    ],
)
def test_bad_tables_are_refused(table, mask_id: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TableModel(table, VOCABULARY, mask_id)


def test_a_row_longer_than_the_table_is_an_error() -> None:
    model = TableModel([((0, 1), 1.0)], VOCABULARY, MASK)
    with pytest.raises(UserError, match="longer"):
        model.logits(torch.tensor([[0, MASK, MASK]]), None, torch.tensor([[False, True, True]]))
