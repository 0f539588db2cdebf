"""A wrapped module gives the samples of the native model, whatever it does with padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import twotemp
from tests.helpers.tiny_checkpoints import BIDIRECTIONAL, EOS, MASK, left_padded, random_model, word_tokenizer
from twotemp.errors import UserError
from twotemp.models.base import Denoiser, LanguageModel

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]


class Bare(nn.Module):
    """Only `forward(input_ids)`, and the logits as a tensor."""

    def __init__(self, module):
        super().__init__()
        self.inner = module

    def forward(self, input_ids):
        return self.inner(input_ids=input_ids, use_cache=False).logits


class Careless(Bare):
    """Takes an attention mask and does not look at it."""

    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids)


class Watched(Bare):
    """Notes the shapes and masks it is called with."""

    def forward(self, input_ids, attention_mask=None):
        self.calls = [*getattr(self, "calls", []), (tuple(input_ids.shape), attention_mask)]
        four = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        return self.inner(input_ids=input_ids, attention_mask=four, use_cache=False)


def tokens(model, policy="tct:threshold=0.05,t_pos=0.02"):
    found = twotemp.sample(model, PROMPTS, policy, n=3, length=8, batch_size=5)
    return [(one.tokens, one.nfe) for one in found]


def wrapped(native, module, **options):
    options = {"mask_id": MASK, "eos_ids": (EOS,), "shift": native.lookback == 1, **options}
    return twotemp.wrap(module, **options)


@pytest.mark.parametrize("family", BIDIRECTIONAL)
def test_a_wrapped_module_samples_as_the_native_model(family):
    native = random_model(family)
    expected, greedy = tokens(native), tokens(native, "lc")
    for module in (native.module, *(kind(native.module) for kind in (Bare, Careless, Watched))):
        model = wrapped(native, module)
        assert isinstance(model, LanguageModel)
        assert isinstance(model, Denoiser)
        assert tokens(model) == expected, module
        assert tokens(model, "lc") == greedy, module


@pytest.mark.parametrize("kind", [Bare, Careless, Watched])
def test_padding_on_either_side_never_changes_a_row(kind):
    native = random_model("llada")
    model = wrapped(native, kind(native.module))
    rows = [[1, MASK, 3], [4, 5, MASK, MASK, 8], [MASK, 2]]
    ids, real = left_padded(rows, 5)
    want = (ids == MASK) & real
    expected = native.logits(ids, real, want)
    torch.testing.assert_close(model.logits(ids, real, want), expected, atol=1e-4, rtol=1e-4)
    places = want.flatten().nonzero()[:, 0]
    torch.testing.assert_close(model.logits(ids, real, places), expected, atol=1e-4, rtol=1e-4)
    flipped = model.logits(ids.flip(1), real.flip(1), want.flip(1))
    torch.testing.assert_close(
        flipped, native.logits(ids.flip(1), real.flip(1), want.flip(1)), atol=1e-4, rtol=1e-4
    )


def test_rows_are_computed_apart_only_where_the_module_ignores_its_mask():
    native = random_model("llada")
    ids, real = left_padded([[1, MASK], [2, MASK, 3]], 3)
    shapes = {}
    for kind in (Watched, Careless):
        module = kind(native.module)
        model = wrapped(native, module)
        seen = []
        module.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(tuple(args[0].shape)))
        model.logits(ids, real, ids == MASK)
        shapes[kind] = seen
    assert shapes == {Watched: [(2, 3)], Careless: [(1, 2), (1, 3)]}


def test_text_config_weights_and_forbidden_ids_are_there():
    native = random_model("llada", word_tokenizer())
    model = wrapped(native, native.module, tokenizer=native.tokenizer)
    assert model.encode("a b") == native.encode("a b")
    assert model.forbidden_ids == native.forbidden_ids
    assert model.max_length == native.max_length
    before = model.fingerprint
    with torch.no_grad():
        native.module.lm_head.weight[0, 0] += 1
    assert model.fingerprint != before
    assert wrapped(native, native.module, forbidden_ids=(0,)).forbidden_ids == (0, MASK)


def test_a_shifted_module_cannot_predict_the_first_position():
    native = random_model("Dream")
    model = wrapped(native, native.module)
    with pytest.raises(UserError, match="first position of a row"):
        twotemp.infill(model, [MASK, 1], "lc")
    ids = torch.tensor([[MASK, 1]])
    with pytest.raises(UserError, match="the one before it"):
        model.logits(ids, None, ids == MASK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_id": 99}, "mask_id: 99 is not one of the model's 40"),
        ({"mask_id": "x"}, "mask_id: 'x' is not"),
        ({"eos_ids": (99,)}, "eos_ids: 99"),
        ({"eos_ids": (MASK,)}, "both the mask and an end-of-text"),
    ],
)
def test_wrong_ids_are_refused(options, message):
    native = random_model("llada")
    with pytest.raises(UserError, match=message):
        wrapped(native, native.module, **options)


def test_a_causal_module_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=32, n_embd=16, n_layer=2, n_head=2))
    with pytest.raises(UserError, match="is causal"):
        twotemp.wrap(network, mask_id=19)


def test_messages_name_what_wrap_takes():
    native = random_model("llada")
    with pytest.raises(UserError, match=r"pass twotemp\.wrap\(\.\.\., tokenizer="):
        wrapped(native, native.module).encode("a b")
    with pytest.raises(UserError, match="pass another mask_id") as error:
        twotemp.wrap(native.module, mask_id=99)
    assert "load(" not in str(error.value)


def test_a_module_that_returns_something_else_is_refused():
    with pytest.raises(UserError, match="must return logits"):
        twotemp.wrap(nn.Flatten(0), mask_id=4)


def test_wrap_refuses_an_object_that_is_not_a_module():
    with pytest.raises(UserError, match="not 5; "):
        twotemp.wrap(5, mask_id=1)


def test_a_network_with_uniform_noise_has_no_mask():
    class Successor(torch.nn.Module):
        """Predicts each token from its neighbors: one more than the left, and rather one less than the right."""

        def forward(self, input_ids):
            before, after = input_ids.roll(1, 1), input_ids.roll(-1, 1)
            one_hot = torch.nn.functional.one_hot
            return 14.0 * one_hot((before + 1) % 10, 10) + 2.0 * one_hot((after - 1) % 10, 10)

    model = twotemp.wrap(Successor(), mask_id=None)
    (sample,) = twotemp.sample(model, [3], "diffusion-gemma:steps=12", length=6, block=6)
    assert sample.tokens == (4, 5, 6, 7, 8, 9)
    assert sample.nfe < 12
    (filled,) = twotemp.infill(model, [3, model.mask_id, model.mask_id, 6, model.mask_id, 8], "eb", block=6)
    assert filled.tokens == (4, 5, 7)
