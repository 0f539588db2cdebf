"""Rows that end with the block being written, and get another until one has an EOS (`Request.extend`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import twotemp
from tests.helpers.fixture_models import fixture_model
from twotemp.engine import run
from twotemp.engine.scheduler import check_request
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Request, Sample, first_eos


def requests(model: object, name: str, lengths: tuple[int, ...], **fields: object) -> list[Request]:
    """Return ten requests, whose prompts end in different places of the block grid."""
    rules = {"k": 2} if name == "tlc" else {}
    chosen = policy(name, t_token=4.0, **rules)
    return [
        Request(f"r{i}", tuple(1 + (7 * i + j) % 40 for j in range(3 + i)), chosen, lengths[i % 2], **fields)  # type: ignore[arg-type]
        for i in range(10)
    ]


def drawn(model: object, wanted: list[Request], **options: object) -> dict[str, Sample]:
    return {sample.request: sample for sample in run(model, wanted, **options)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "rule"),
    [("sdar", "t2m"), ("llada2", "tct"), ("fast-dllm-v2", "tlc"), ("a2d-qwen3-bd3lm", "tlc")],
)
def test_block_causal_rows_are_those_of_a_fixed_length(name: str, rule: str) -> None:
    """Up to the EOS; the rows end in that block, and their trace and cost are those of the steps up to there."""
    model = fixture_model(name)
    fixed = requests(model, rule, (40, 24), trace=True)
    whole = drawn(model, fixed, batch_size=5)
    grown = drawn(model, [replace(r, extend=True) for r in fixed], batch_size=5)
    ends = 0
    for request in fixed:
        one, other = whole[request.id], grown[request.id]
        end = first_eos(one.tokens, model.eos_ids)
        assert other.tokens == one.tokens[: len(other.tokens)]
        assert other.trace is not None
        assert one.trace is not None
        assert other.trace.steps == one.trace.steps[: len(other.tokens)]
        if end < request.length:
            ends += 1
            position = len(request.prompt) + end
            assert model.block_size is not None
            last = (position // model.block_size + 1) * model.block_size
            assert len(other.tokens) == min(last - len(request.prompt), request.length)
            assert other.finish == "eos"
            assert other.nfe <= one.nfe
        else:
            assert len(other.tokens) == request.length
            assert other.nfe == one.nfe
    assert ends > 1


@pytest.mark.parametrize("cache", [None, "dual", "prefix"])
def test_bidirectional_rows_see_no_mask_after_their_block(cache: str | None) -> None:
    """Nor does a sample depend on its batch, with any cache."""
    model = fixture_model("illada")
    wanted = requests(model, "tlc", (64, 21), block=4, extend=True)
    found = drawn(model, wanted, batch_size=5, cache=cache)
    assert len({len(sample.tokens) for sample in found.values()}) > 2
    for request in wanted:
        alone = drawn(model, [request], cache=cache)[request.id]
        assert alone.tokens == found[request.id].tokens
    seen: list[tuple[int, int]] = []
    one = replace(wanted[0], extend=True)
    logits = model.logits

    def spy(ids: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append((ids.shape[1], int((ids == model.mask_id).sum())))
        return logits(ids, *rest)  # type: ignore[arg-type]

    model.logits = spy  # type: ignore[method-assign]
    tokens = drawn(model, [one])[one.id].tokens
    assert max(masks for _, masks in seen) == 4
    assert {width for width, _ in seen} == {len(one.prompt) + n for n in range(4, len(tokens) + 1, 4)}


def test_greedy_blocks_follow_one_another_as_separate_requests() -> None:
    model = fixture_model("illada")
    row = (9, 21, 14, 8)
    one = Request("a", row, policy("lc", t_token=0.0), 32, block=4, extend=True)
    tokens = drawn(model, [one])["a"].tokens
    for start in range(0, len(tokens), 4):
        step = Request("b", row + tokens[:start], one.policy, 4, block=4)
        assert drawn(model, [step])["b"].tokens == tokens[start : start + 4]


def test_auto_lengths() -> None:
    """Where models were trained so; with a stream, stop strings and a fixed shape of the forward passes."""
    tiny = twotemp.load("tiny")
    with pytest.raises(UserError, match=r"trained with masks after the block.*extend=True"):
        twotemp.sample(tiny, "3 7 12 -> 33", "tct", length="auto")
    samples = twotemp.sample(tiny, "3 7 12 -> 33", "tct", 6, "auto", 4, extend=True)
    assert all(sample.finish == "eos" and len(sample.tokens) % 4 == 0 for sample in samples)
    assert max(len(sample.tokens) for sample in samples) < 40
    shape = {"batch_size": 3, "columns": tiny.max_length}
    fixed = twotemp.sample(tiny, "3 7 12 -> 33", "tct", 6, "auto", 4, extend=True, **shape)
    assert [sample.tokens for sample in fixed] == [sample.tokens for sample in samples]
    events = list(twotemp.stream(tiny, "3 7 12 -> 33", "tct", 1, "auto", 4, extend=True))
    assert "".join(event.piece for event in events) == samples[0].text
    model = fixture_model("sdar")
    (sample,) = twotemp.sample(model, [1, 2, 3], "tct:t_token=1.5", length="auto")
    longest = model.max_length
    assert longest is not None
    assert sample.finish == "eos" or len(sample.tokens) == longest - 3
    with pytest.raises(UserError, match="length must be an integer"):
        twotemp.sample(tiny, "3 7 12 -> 33", "tct", length="long")  # type: ignore[arg-type]


def test_rows_that_cannot_be_extended() -> None:
    tiny = twotemp.load("tiny")
    with pytest.raises(UserError, match="infilled"):
        check_request(Request("a", (1, tiny.mask_id), policy("lc"), 0, extend=True), tiny)
