"""Text edges: chat formats of the families, messages, cutting at the end of the turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny_checkpoints import CONFIGS, EOS, byte_tokenizer, random_model, word_tokenizer
from tests.helpers.toy import ToyModel
from twotemp import sample
from twotemp.errors import UserError
from twotemp.models.base import LanguageModel, language_model
from twotemp.models.checkpoint import fingerprint
from twotemp.models.families import FAMILIES

RENDERED = json.loads((Path(__file__).parents[1] / "fixtures" / "chats.json").read_text("utf-8"))


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_prompt_becomes_a_turn_and_a_prefill_follows_it() -> None:
    model = random_model("llada", word_tokenizer())
    assert model.encode("a b") == model.encode("a b", chat=True) == [0, 1, 4]
    assert model.encode("a b", prefill="c") == [0, 1, 4, 2]
    assert model.encode("a b", chat=False) == [0, 1]


# What the published tokenizers' templates do with turns of text, in our own words; `chats.json` is what they
# themselves rendered.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}"
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{{ '\n\n' }}{% endif %}"
)
QWEN2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLADA2 = (
    "<role>SYSTEM</role>{% if messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}"
    "detailed thinking off<|role_end|>{% for m in messages if m.role != 'system' %}"
    "<role>{{ 'HUMAN' if m.role == 'user' else 'ASSISTANT' }}</role>{{ m.content }}<|role_end|>{% endfor %}"
    "<role>ASSISTANT</role>"
)
TEMPLATES = {
    "llada": LLAMA3,
    "Dream": QWEN2,
    "sdar": QWEN3,
    "sdar_moe": QWEN3,
    "CoDA": QWEN3,
    "llada2_moe": LLADA2,
    "LLaDAMoEModelLM": LLADA2,
    "Fast_dLLM_Qwen": QWEN2,
    "a2d-qwen3": QWEN3,
    "a2d-qwen2": QWEN2,
}
# Their templates were not seen; RND1 is a base model, and the embedded models have no chats.
UNSEEN = {"StableDiffcoderForCausalLM", "a2d-llama", "rnd1", "diffusion_gemma", "illada", "diffuqwen3"}
UNSEEN |= {"llada-uniform"}


@pytest.mark.parametrize("family", CONFIGS)
def test_chats_match_the_published_templates(family: str) -> None:
    """System, user and assistant turns, with and without a beginning of the answer."""
    if family in UNSEEN:
        assert family not in RENDERED["families"]
        return
    tokenizer = byte_tokenizer(TEMPLATES[family])
    rows = {"embedding_size" if family == "llada" else "vocab_size": len(tokenizer)}
    model = random_model(family, tokenizer, {**rows, "mask_token_id": tokenizer.mask_token_id})
    for messages, text in zip(RENDERED["chats"], RENDERED["families"][family]["texts"], strict=True):
        assert tokenizer.decode(model.encode(messages)) == text
        begun = [*messages, said("assistant", " So,\nit")]
        assert model.encode(begun) == model.encode(messages, prefill=" So,\nit")
        assert tokenizer.decode(model.encode(begun)) == text + " So,\nit"


def test_every_family_has_its_chats() -> None:
    """A new family brings what its template renders, or says that it was not seen."""
    assert {FAMILIES[name] for name in [*RENDERED["families"], *UNSEEN]} == set(FAMILIES.values())


def test_a_template_may_refuse_a_turn() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}a"
    model = random_model("llada", word_tokenizer(template))
    assert model.encode([said("user", "b")]) == [0]
    with pytest.raises(UserError, match=r"refuses these messages \(no system turn\); give turns"):
        model.encode([said("system", "c"), said("user", "b")])


@pytest.mark.parametrize(
    "template",
    [
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{{ 1 / 0 }}",
        "{{ [][3].a }}",
        "{% break %}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "-" * 20_000 + "1 }}",
    ],
)
def test_a_template_that_fails_is_a_user_error(template: str) -> None:
    model = random_model("llada", word_tokenizer())
    model.tokenizer.chat_template = template
    with pytest.raises(UserError, match="chat template"):
        model.encode("a b")


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ 'x' * 10 ** 8 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set s = namespace(x='ab') %}{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "{% set s = namespace(x='ab') %}{% for i in range(60) %}{% set s.x = s.x + s.x %}{% endfor %}",
        "{% set x = 'x' * 10000 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
        "x" * 10**6,
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ '7'.zfill(10 ** 9) }}",
        "{{ '%999999999d' % 7 }}",
        "{{ '%*d' % (999999999, 7) }}",
        "{{ '%999999999d' | format(7) }}",
        "{{ '{:999999999}'.format(7) }}",
        "{{ '{:{}}'.format(7, 999999999) }}",
        "{{ ('x' * 10000).replace('', 'y' * 10000) }}",
        "{{ ('x' * 10000) | replace('', 'y' * 10000) }}",
        "{{ ('x' * 10000) | join('y' * 10000) }}",
        "{{ ('y' * 10000).join('x' * 10000) }}",
        "{{ ('x\n' * 10000) | indent(10000) }}",
        "{{ ('\t' * 10000).expandtabs(10000) }}",
        "{{ 'x'.translate({120: 'y' * 10000}) * 10000 }}",
        "{{ [1] | slice(10 ** 9) | list }}",
        "{{ [1] | batch(10 ** 9, 'x') | list }}",
        "{{ ['x'] | map('center', 10 ** 9) | list }}",
        "{{ lipsum(n=10 ** 5) }}",
        "{% set s = namespace(x=[1]) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x }}",
        "{% set s = namespace(x=1) %}{% for i in range(60) %}{% set s.x = (s.x, s.x) %}{% endfor %}{{ {s.x: 1} }}",
        "{% set s = namespace(x=1) %}{% for i in range(60) %}{% set s.x = {'a': s.x, 'b': s.x} %}{% endfor %}",
        "{% set s = namespace(x=99) %}{% for i in range(60) %}{% set s.x = s.x * s.x %}{% endfor %}",
    ],
)
def test_an_endless_or_enormous_template_is_a_user_error(template: str) -> None:
    model = random_model("llada", word_tokenizer())
    model.tokenizer.chat_template = template
    with pytest.raises(UserError, match="chat template"):
        model.encode("a b")


def test_a_template_is_rendered_as_transformers_renders_it() -> None:
    model = random_model("llada", word_tokenizer())
    model.tokenizer.chat_template = (
        "{%- macro turn(m) %}<{{ m.role ~ ':' ~ m['content'] | trim }}>{% endmacro -%}"
        "{%- for m in messages if m.content %}{{ loop.index0 + 1 }}/{{ loop.length }} {{ turn(m) }}"
        "{%- if loop.last and add_generation_prompt %}{{ '-' * 3 }}{% endif %}{% else %}none{% endfor %}"
        "{% for i in range(3) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ messages | tojson }}"
        "{{ messages | map(attribute='content') | join(', ') }}{{ '%s-%3d' | format('a', 7) }}{{ '%d%%' % 7 }}"
        "{{ 'a'.center(5) }}{{ '{:>4}'.format('a') }}{{ messages[0].content.replace('a', 'bc').strip() }}"
        "{% set s = namespace(seen=[], n=2) %}{% for m in messages[::-1] %}{% set s.seen = s.seen + [m.role] %}"
        "{% set s.n = s.n * 3 %}{% endfor %}{{ s.seen | unique | list }}{{ s.n }}{{ ('a', 'b') | tojson(indent=2) }}"
        "{{ {'a': [1, 2]}.items() | list }}{{ 'x\ny' | indent(2) }}{{ 'a-b'.split('-')[-1] }}{{ [1, 2] | sum }}"
        "{% for key, value in messages[0].items() %}{{ key }}{% endfor %}"
        "{{ messages | selectattr('role', 'eq', 'user') | list | length }}"
    )
    turns = [said("system", " a "), said("user", "b"), said("assistant", "a"), said("user", "c")]
    expected = model.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert model.conversation(turns) == expected


def test_a_lone_surrogate_is_a_user_error() -> None:
    model = random_model("llada", word_tokenizer())
    with pytest.raises(UserError, match="lone surrogates"):
        model.encode("a \ud800", chat=False)


def test_a_tokenizer_that_panics_is_a_user_error() -> None:
    class PanicException(BaseException):
        """As the Rust side raises it."""

    class Panicking:
        unk_token_id = None

        def __call__(self, text: str, **options: bool) -> None:
            raise PanicException("stack overflow in a regex")

    model = random_model("llada", word_tokenizer())
    model.tokenizer = Panicking()
    with pytest.raises(UserError, match="stack overflow in a regex"):
        model.encode("a b", chat=False)


def test_a_model_says_what_it_is() -> None:
    assert repr(random_model("sdar")) == "<sdar: sdar, blocks of 4, 40 tokens, on cpu>"


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


def test_a_plain_denoiser_gets_text_methods_and_a_fingerprint_of_its_logits() -> None:
    toy = ToyModel()
    adapted = language_model(toy)
    assert isinstance(adapted, LanguageModel)
    assert language_model(adapted) is adapted
    assert adapted.fingerprint == language_model(ToyModel()).fingerprint == fingerprint(adapted)
    assert adapted.fingerprint != language_model(ToyModel(seed=1)).fingerprint
    toy.tokenizer = word_tokenizer()  # type: ignore[assignment]
    assert language_model(toy).encode("a b") == [0, 1, 4]


def test_rows_of_dqwen3_start_with_its_first_token() -> None:
    """`encode` adds it once; token ids without it are refused before anything runs."""
    model = random_model("diffuqwen3", word_tokenizer(), {"mask_token_id": 4, "eos_token_id": [3]})
    model.first_id = 2
    assert model.encode("a b", chat=False) == [2, 0, 1]
    assert model.encode("c b", chat=False) == [2, 1]
    with pytest.raises(UserError, match=r"start with token 2, which model.encode adds"):
        sample(model, [0, 1], "lc", length=2)
    assert sample(model, [2, 0, 1], "lc", length=2)
