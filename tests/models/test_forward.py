"""What every transformer family promises the engine: padding, masks, cached windows, gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.random_models import MODELS
from tests.helpers.tiny_checkpoints import (
    BIDIRECTIONAL,
    BLOCK,
    BLOCK_CAUSAL,
    CONFIGS,
    EOS,
    MASK,
    SHIFTED,
    VOCABULARY,
    left_padded,
    random_model,
)
from twotemp.errors import UserError
from twotemp.models.base import CachedDenoiser, Denoiser
from twotemp.models.cache import KVCache
from twotemp.models.transformer import Transformer

CLOSE = {"atol": 1e-4, "rtol": 0.0}
rows_of_ids = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=13), min_size=1, max_size=4
)


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return MODELS[request.param]


@pytest.fixture(params=BLOCK_CAUSAL)
def block_causal(request: pytest.FixtureRequest) -> Transformer:
    return MODELS[request.param]


def wanted(model: Transformer, real: torch.Tensor) -> torch.Tensor:
    """All real positions the model can predict."""
    want = real.clone()
    if model.lookback:
        want[torch.arange(len(real)), real.long().argmax(1)] = False
    return want


def full(model: Transformer, row: list[int]) -> torch.Tensor:
    """Logits of one row alone, without padding and without a cache."""
    ids = torch.tensor([row])
    with torch.no_grad():
        return model.logits(ids, None, wanted(model, torch.ones_like(ids, dtype=torch.bool)))


def compute(model: Transformer, rows: torch.Tensor, start: int, end: int, cache: KVCache) -> torch.Tensor:
    """Logits of the columns [start, end) of all rows, against the cache (shifted models: but for column 0)."""
    begin = max(start - model.lookback, 0)
    at = torch.arange(begin, end).expand(len(rows), -1)
    visible = torch.ones(len(rows), rows.shape[1], dtype=torch.bool)
    return model.window_logits(rows[:, begin:end], at, visible, cache, at >= max(start, model.lookback))


def test_a_mask_and_its_indices_ask_for_the_same(model: Transformer) -> None:
    ids, real = left_padded([[1, 2, MASK, MASK], [3, MASK]], 4)
    want = (ids == MASK) & real
    asked = want.flatten().nonzero()[:, 0]
    with torch.no_grad():
        assert torch.equal(model.logits(ids, real, want), model.logits(ids, real, asked))


def test_the_protocol_is_satisfied(model: Transformer) -> None:
    assert isinstance(model, Denoiser)
    assert isinstance(model, CachedDenoiser)
    assert model.vocab_size == VOCABULARY
    assert model.mask_id in model.forbidden_ids


@pytest.mark.parametrize("model_type", CONFIGS)
@settings(max_examples=25, deadline=None)
@given(rows=rows_of_ids, left=st.booleans(), extra=st.integers(0, 3))
def test_padding_never_changes_a_row(model_type: str, rows: list[list[int]], left: bool, extra: int) -> None:
    model = MODELS[model_type]
    ids, real = left_padded(rows, max(map(len, rows)) + extra)
    if not left:
        ids = torch.stack([row.roll(int(mask.sum())) for row, mask in zip(ids, real)])
        real = real.flip(1)
    want = wanted(model, real)
    with torch.no_grad():
        logits = model.logits(ids, real, want)
    alone = torch.cat([full(model, row) for row in rows])
    torch.testing.assert_close(logits, alone, **CLOSE)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("padded", [False, True])
def test_many_rows_are_computed_a_tile_at_a_time(
    model: Transformer, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, real = left_padded(
        [[1, 2, 3, MASK, 5], [3, MASK, 4], [6, 7, 8, 9, MASK], [2, 9], [5, 4, 3, 2, 1]], 5
    )
    mask = real if padded else None
    want = wanted(model, real if padded else torch.ones_like(real))
    sizes: list[int] = []
    hook = model.module.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    with hook, torch.no_grad():
        whole = model.logits(ids, mask, want)
        monkeypatch.setattr("twotemp.models.transformer._TILE", 11)
        torch.testing.assert_close(model.logits(ids, mask, want), whole, **CLOSE)
        assert sizes == [5, 2, 2, 1]
        with torch.enable_grad():  # what is trained is one graph
            model.logits(ids, mask, want)
        assert sizes[4:] == [5]


def test_in_half_precision_all_rows_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding depends on how many that is, and a fixed shape promises that it is always the same."""
    half, sizes = random_model("llada"), []
    half.module.to(torch.bfloat16)
    monkeypatch.setattr("twotemp.models.transformer._TILE", 11)
    half.module.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    ids = torch.full((5, 5), MASK)
    with torch.no_grad():
        half.logits(ids, None, ids == MASK)
    assert sizes == [5]


def test_only_what_is_wanted_in_row_major_order(model: Transformer) -> None:
    ids = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    every = torch.ones_like(ids, dtype=torch.bool)
    every[:, 0] = False
    some = torch.zeros_like(every)
    some[0, 4] = some[2, 1] = some[2, 8] = True
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(ids, None, some), model.logits(ids, None, every)[some[every]], **CLOSE
        )


def test_which_positions_see_which(model: Transformer) -> None:
    """Perturb one token: in a bidirectional model all react, in a block-causal one only its block and later."""
    row = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    changed = row.copy()
    changed[6] = 20
    moved = (full(model, row) - full(model, changed)).abs().amax(1) > 1e-4
    reacts = torch.ones(len(row), dtype=torch.bool)
    if model.block_size:
        reacts = (torch.arange(len(row)) - model.lookback) // BLOCK >= 6 // BLOCK
    assert moved.tolist() == reacts[model.lookback :].tolist()


@pytest.fixture
def attention_masks(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor | None]:
    """The masks that reach the attention kernel, one a layer."""
    masks: list[torch.Tensor | None] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, attn_mask=None, is_causal=False, **kwargs):
        assert not is_causal
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    return masks


def test_no_mask_is_built_when_nothing_is_padded(attention_masks: list[torch.Tensor | None]) -> None:
    for model_type in BIDIRECTIONAL:
        ids = torch.tensor([[1, 2, MASK]])
        MODELS[model_type].logits(ids, None, ids == MASK)
    assert attention_masks == [None] * 2 * len(BIDIRECTIONAL)


def test_no_query_attends_to_nothing(model: Transformer, attention_masks: list[torch.Tensor | None]) -> None:
    """Some kernels answer NaN there, and NaN spreads through gradients: not even a row of padding may."""
    ids, real = left_padded([[1, 2, MASK], []], 4)
    model.logits(ids, real, (ids == MASK) & real)
    visible = torch.tensor([[True, True, True], [False, False, False]])
    positions = torch.tensor([[0, 1, 2, 3], [3, 3, 3, 3]])  # column 3 does not exist: padding
    model.window_logits(ids, positions, visible, model.new_cache(2, 3), torch.zeros_like(real))
    assert len(attention_masks) == 4
    assert all(mask is not None and mask.any(-1).all() for mask in attention_masks)


def test_gradients_flow(model: Transformer) -> None:
    """To every parameter, and to the embedding of EOS, which pads but is a token to be learnt."""
    ids, real = left_padded([[1, EOS, 3, MASK, 5], [7, MASK]], 6)
    model.module.zero_grad()
    model.logits(ids, real, ids == MASK).logsumexp(1).sum().backward()
    dead = [name for name, p in model.module.named_parameters() if p.grad is None or not p.grad.any()]
    learnt = model.module.model.embed_tokens.weight.grad[EOS].any()
    model.module.zero_grad()
    assert not dead
    assert learnt


def test_a_window_of_everything_is_the_uncached_forward(model: Transformer) -> None:
    rows = [[1, 2, MASK, 4, 5, MASK, 7], [3, MASK, 9]]
    columns = 9
    cache = model.new_cache(2, columns)
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((2, columns), EOS)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = torch.tensor(row)
    positions = torch.where(torch.arange(columns) < lengths[:, None], torch.arange(columns), columns)
    visible = positions < columns
    logits = model.window_logits(ids, positions, visible, cache, visible & (ids == MASK))
    expected = torch.cat([full(model, row)[torch.tensor(row[model.lookback :]) == MASK] for row in rows])
    torch.testing.assert_close(logits, expected, **CLOSE)


@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("model_type", BLOCK_CAUSAL)
@given(rows=rows_of_ids, data=st.data())
def test_block_by_block_with_a_cache_is_exact(model_type: str, rows: list[list[int]], data) -> None:
    """Ragged rows, each at its own block: prefill, noisy passes that are overwritten, the clean pass."""
    model = MODELS[model_type]
    columns = 16
    cache = model.new_cache(len(rows), columns)
    last = [(len(row) - 1) // BLOCK for row in rows]  # a row's last block, which it is denoising
    visible = torch.arange(columns) < torch.tensor([len(row) for row in rows])[:, None]

    def run(spans: list[tuple[int, int]], texts: list[list[int]]) -> torch.Tensor:
        width = max(end - start for start, end in spans)
        ids = torch.full((len(rows), width), EOS)
        positions = torch.full((len(rows), width), columns)
        for b, (start, end) in enumerate(spans):
            ids[b, : end - start] = torch.tensor(texts[b][start:end])
            positions[b, : end - start] = torch.arange(start, end)
        first = torch.tensor([max(number * BLOCK, model.lookback) for number in last])[:, None]
        return model.window_logits(
            ids, positions, visible, cache, (positions >= first) & (positions < columns)
        )

    noisy = [data.draw(st.lists(st.integers(0, 39), min_size=len(r), max_size=len(r))) for r in rows]
    if any(last):  # prefill with noise, then overwrite it by the clean prompt, leaving the last block out
        run([(0, last[b] * BLOCK) for b in range(len(rows))], noisy)
        run([(0, last[b] * BLOCK) for b in range(len(rows))], rows)
    block = [(last[b] * BLOCK, len(row)) for b, row in enumerate(rows)]
    # A shifted model computes the last position before the block again, which is final.
    spans = [(max(start - model.lookback, 0), end) for start, end in block]
    run(spans, [row[:start] + noise[start:] for row, noise, (start, _) in zip(rows, noisy, block)])
    logits = run(spans, rows)
    expected = torch.cat(
        [full(model, row)[max(last[b] * BLOCK - model.lookback, 0) :] for b, row in enumerate(rows)]
    )
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_a_stale_block_in_the_cache_does_matter(block_causal: Transformer) -> None:
    """The test above can fail: without the clean pass over the first block the second one is wrong."""
    row = torch.arange(1, 9)[None]
    cache = block_causal.new_cache(1, 8)
    compute(block_causal, torch.full((1, 8), MASK), 0, 4, cache)
    # The last two: in a shifted model the first is predicted from the block before, which is computed again.
    logits = compute(block_causal, row, 4, 8, cache)[2:]
    assert (logits - full(block_causal, row[0].tolist())[-2:]).abs().max() > 1e-2


def test_padding_entries_of_a_window_are_written_nowhere(block_causal: Transformer) -> None:
    row = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    cache = block_causal.new_cache(1, 8)
    compute(block_causal, row, 0, 8, cache)
    outside = torch.full((1, 2), MASK)
    visible = torch.ones(1, 8, dtype=torch.bool)
    block_causal.window_logits(
        outside, torch.tensor([[8, 9]]), visible, cache, torch.zeros(1, 2, dtype=torch.bool)
    )
    logits = compute(block_causal, row, 4, 6, cache)
    first = 4 - block_causal.lookback
    torch.testing.assert_close(logits, full(block_causal, row[0].tolist())[first : first + 2], **CLOSE)


def test_rows_can_leave_the_cache(block_causal: Transformer) -> None:
    rows = torch.randint(36, (3, 8), generator=torch.Generator().manual_seed(2))
    cache = block_causal.new_cache(3, 8)
    compute(block_causal, rows, 0, 4, cache)
    kept = torch.tensor([2, 0])
    cache.keep(kept)
    assert cache.rows == 2
    logits = compute(block_causal, rows[kept], 4, 8, cache)
    expected = torch.cat([full(block_causal, rows[b].tolist())[-4:] for b in (2, 0)])
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_a_frozen_context_is_an_approximation_for_bidirectional_models() -> None:
    """The dual cache: only the block is computed anew; exact again once its context is."""
    model = MODELS["llada"]
    before, after = [1, 2, 3, MASK, MASK, 6, 7, 8], [1, 2, 3, 4, MASK, 6, 7, 8]
    cache = model.new_cache(1, 8)
    visible = torch.ones(1, 8, dtype=torch.bool)
    everywhere = torch.arange(8)[None]
    at = torch.arange(3, 5)[None]
    want = torch.tensor([[False, True]])
    model.window_logits(torch.tensor([before]), everywhere, visible, cache, everywhere == 4)
    frozen = model.window_logits(torch.tensor([after[3:5]]), at, visible, cache, want)
    expected = full(model, after)[4:5]
    assert 1e-3 < (frozen - expected).abs().max() < 10
    fresh = model.window_logits(torch.tensor([after]), everywhere, visible, cache, everywhere == 4)
    torch.testing.assert_close(fresh, expected, **CLOSE)


def test_a_wanted_padding_entry_is_an_error(model: Transformer) -> None:
    ids = torch.tensor([[1, 2]])
    cache = model.new_cache(1, 2)
    with pytest.raises(ValueError, match="padding"):
        model.window_logits(ids, torch.tensor([[0, 2]]), ids > 0, cache, torch.tensor([[False, True]]))


@pytest.mark.parametrize("model_type", SHIFTED)
def test_a_shifted_model_cannot_predict_the_first_position(model_type: str) -> None:
    model = MODELS[model_type]
    ids, real = left_padded([[1, 2, 3], [4, 5]], 3)
    first = torch.zeros_like(real)
    first[1, 1] = True  # column 1, but position 0 of its row
    with pytest.raises(UserError, match="first position"):
        model.logits(ids, real, first)
    cache = model.new_cache(1, 4)
    visible = torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(UserError, match="one position earlier"):
        model.window_logits(
            torch.tensor([[3, 4]]), torch.tensor([[2, 3]]), visible, cache, torch.tensor([[True, True]])
        )


@pytest.mark.parametrize("model_type", SHIFTED)
def test_a_window_with_its_lookback_predicts_the_block(model_type: str) -> None:
    model = MODELS[model_type]
    row = torch.arange(1, 7)[None]
    cache = model.new_cache(1, 6)
    compute(model, row, 0, 6, cache)
    torch.testing.assert_close(compute(model, row, 3, 6, cache), full(model, row[0].tolist())[2:], **CLOSE)
