"""Text edges: chat formats of the families, messages, cutting at the end of the turn."""

from __future__ import annotations

import pytest
import torch

from tests.tiny_checkpoints import EOS, random_model, word_tokenizer
from tests.toy import ToyModel
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel, language_model
from twotemp.models.checkpoint import fingerprint

CHATML = (
    "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %} b{% endif %}"
)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_prompt_becomes_a_turn_and_a_prefill_follows_it() -> None:
    model = random_model("llada", word_tokenizer())
    assert model.encode("a b") == model.encode("a b", chat=True) == [0, 1, 4]
    assert model.encode("a b", prefill="c") == [0, 1, 4, 2]
    assert model.encode("a b", chat=False) == [0, 1]


@pytest.mark.parametrize(
    ("family", "user", "chat"),
    [
        ("llada", [2, 5, 0], [2, 5, 0, 5, 1, 5, 0]),
        ("Dream", [7, 2, 5, 0], [7, 2, 5, 0, 5, 1, 5, 0]),  # the beginning of text first
        ("sdar", [2, 5, 0, 1], [2, 5, 0, 5, 1, 5, 0, 1]),  # no thinking
        ("llada2_moe", [2, 5, 0], [2, 5, 0, 5, 1, 5, 0]),
    ],
)
def test_messages_go_through_the_chat_format_of_the_family(family, user, chat) -> None:
    model = random_model(family, word_tokenizer(CHATML))
    assert model.encode("c") == model.encode([said("user", "c")]) == user
    turns = [said("user", "c"), said("assistant", "a"), said("user", "b")]
    assert model.encode(turns) == chat
    started = [*turns, said("assistant", " c")]
    assert model.encode(started) == [*chat, 2] == model.encode(turns, prefill=" c")


def test_llada2_has_a_format_of_its_own_where_no_template_is_shipped() -> None:
    model = random_model("llada2_moe", word_tokenizer(template=None))
    assert model.has_chat
    assert model.chat([said("user", "hello")]) == (
        "<role>SYSTEM</role>detailed thinking off<|role_end|>"
        "<role>HUMAN</role>hello<|role_end|><role>ASSISTANT</role>"
    )
    assert model.chat([said("system", "be kind"), said("user", "x"), said("assistant", "y")]) == (
        "<role>SYSTEM</role>be kind\ndetailed thinking off<|role_end|>"
        "<role>HUMAN</role>x<|role_end|><role>ASSISTANT</role>y<|role_end|><role>ASSISTANT</role>"
    )


def test_text_ends_at_the_first_end_token() -> None:
    model = random_model("llada", word_tokenizer())
    assert model.decode([0, 1, 4, 2, 2]) == "a b"
    assert model.decode(torch.tensor([0, EOS, 1]).tolist()) == "a"
    assert model.decode([0, 6, 1]) == "a b"  # another family's special token is not text
    assert model.decode([4, 0]) == ""
    assert model.decode([4, 0, EOS, 1], cut=False) == "a b"


def test_without_a_chat_format_text_is_plain_and_messages_are_refused() -> None:
    plain = random_model("llada", word_tokenizer(template=None))
    assert not plain.has_chat
    assert plain.encode("a b") == [0, 1]
    with pytest.raises(UserError, match="no chat format"):
        plain.encode([said("user", "a")])
    with pytest.raises(UserError, match="chat=False"):
        plain.encode("a", chat=True)


def test_bad_messages_and_missing_tokenizers_are_clear_errors() -> None:
    model = random_model("llada", word_tokenizer())
    for messages, message in (
        ([{"role": "user"}], "a message is"),
        ([said("user", 3)], "a message is"),  # type: ignore[arg-type]
        ([said("uzer", "a")], "did you mean 'user'"),
        ([], "messages are for the chat format"),
    ):
        with pytest.raises(UserError, match=message):
            model.encode(messages)
    with pytest.raises(UserError, match="leave chat=False out"):
        model.encode([said("user", "a")], chat=False)
    with pytest.raises(UserError, match="no tokenizer"):
        random_model("llada").encode("a")
    with pytest.raises(UserError, match="no tokenizer"):
        random_model("llada").decode([1])


def test_words_without_a_token_are_named_not_swallowed() -> None:
    """A small vocabulary must not turn what it does not know into one silent <unk>."""
    from twotemp.models.load import load

    tiny = load("tiny")
    assert tiny.encode("20 10 15 -> 45")
    with pytest.raises(UserError, match="no token for '2\\+2', 'zebra'"):
        tiny.encode("2+2 20 zebra")


def test_a_plain_denoiser_gets_text_edges_and_a_fingerprint_of_what_it_answers() -> None:
    toy = ToyModel()
    adapted = language_model(toy)
    assert isinstance(adapted, LanguageModel)
    assert language_model(adapted) is adapted
    assert adapted.fingerprint == language_model(ToyModel()).fingerprint == fingerprint(adapted)
    assert adapted.fingerprint != language_model(ToyModel(seed=1)).fingerprint
    toy.tokenizer = word_tokenizer()  # type: ignore[assignment]
    assert language_model(toy).encode("a b") == [0, 1, 4]
