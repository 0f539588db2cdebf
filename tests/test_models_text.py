"""Text edges: chat formats of the families, cutting at the end of the turn."""

from __future__ import annotations

import pytest
import torch

from tests.tiny_checkpoints import EOS, random_model, word_tokenizer
from twotemp.errors import UserError
from twotemp.models.text import decode, encode

CHATML = (
    "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %} b{% endif %}"
)


def test_a_prompt_becomes_a_turn_and_a_prefill_follows_it() -> None:
    model = random_model("llada", word_tokenizer())
    assert encode(model, "a b") == [0, 1, 4]
    assert encode(model, "a b", prefill="c") == [0, 1, 4, 2]
    assert encode(model, "a b", chat=False) == [0, 1]


def test_dream_starts_with_the_beginning_of_text() -> None:
    assert encode(random_model("Dream", word_tokenizer(CHATML)), "c") == [7, 2, 5, 0]


def test_sdar_answers_without_thinking() -> None:
    assert encode(random_model("sdar", word_tokenizer(CHATML)), "c") == [2, 5, 0, 1]


def test_llada2_has_a_format_of_its_own_where_no_template_is_shipped() -> None:
    assert encode(random_model("llada2_moe", word_tokenizer(CHATML)), "c") == [2, 5, 0]
    text = random_model("llada2_moe", word_tokenizer(template=None)).chat("hello")
    assert text == (
        "<role>SYSTEM</role>detailed thinking off<|role_end|>"
        "<role>HUMAN</role>hello<|role_end|><role>ASSISTANT</role>"
    )


def test_text_ends_at_the_first_end_token() -> None:
    model = random_model("llada", word_tokenizer())
    assert decode(model, [0, 1, 4, 2, 2]) == "a b"
    assert decode(model, torch.tensor([0, EOS, 1]).tolist()) == "a"
    assert decode(model, [0, 6, 1]) == "a b"  # another family's special token is not text
    assert decode(model, [4, 0]) == ""


def test_without_a_tokenizer_or_template_there_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="no tokenizer"):
        encode(random_model("llada"), "a")
    with pytest.raises(UserError, match="no tokenizer"):
        decode(random_model("llada"), [1])
    with pytest.raises(UserError, match="chat=False"):
        encode(random_model("llada", word_tokenizer(template=None)), "a")


def test_words_without_a_token_are_named_not_swallowed():
    """A small vocabulary must not turn what it does not know into one silent <unk>."""
    from twotemp.models.load import load

    tiny = load("tiny")
    assert encode(tiny, "20 10 15 -> 45")
    with pytest.raises(UserError, match="no token for '2\\+2', 'zebra'"):
        encode(tiny, "2+2 20 zebra")
