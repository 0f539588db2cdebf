"""Ordinary masked LMs as denoisers, on tiny randomly initialised checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    BertConfig,
    BertForPreTraining,
    FNetConfig,
    ModernBertConfig,
    RobertaConfig,
)

from tests.helpers.tiny_checkpoints import EOS, MASK, VOCABULARY, left_padded, word_tokenizer
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.models.checkpoint import SINGLE, fingerprint, save
from twotemp.models.load import load
from twotemp.models.masked_lm import MaskedLM

_size: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "initializer_range": 0.3,
}
CONFIGS = {
    "bert": BertConfig(**_size),
    "albert": AlbertConfig(**_size, embedding_size=16),
    "modernbert": ModernBertConfig(
        **_size, local_attention=4, eos_token_id=EOS, cls_token_id=0, sep_token_id=EOS
    ),
    "roberta": RobertaConfig(**_size, eos_token_id=EOS),
}
ROWS = [[5, 6, MASK, 8, 9, MASK, 11, 12], [13, MASK, 15]]


def written(name: str, folder: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(CONFIGS[name]).save_pretrained(folder)
    return folder


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> MaskedLM:
    return load(written(request.param, tmp_path / "m"), mask_id=MASK, eos_ids=(EOS,))


def test_logits_are_those_of_the_native_class(model: MaskedLM, tmp_path: Path) -> None:
    native = AutoModelForMaskedLM.from_pretrained(tmp_path / "m").eval()
    ids = torch.tensor(ROWS[:1])
    with torch.no_grad():
        expected = native(input_ids=ids).logits[ids == MASK]
        torch.testing.assert_close(model.logits(ids, None, ids == MASK), expected)
    assert isinstance(model, Denoiser)
    assert model.max_length == (30 if native.config.model_type == "roberta" else 32)


@pytest.mark.parametrize("left", [True, False])
def test_padding_never_changes_a_row(model: MaskedLM, left: bool) -> None:
    ids, real = left_padded(ROWS, 9)
    if not left:
        ids = torch.stack([row.roll(int(mask.sum())) for row, mask in zip(ids, real)])
        real = real.flip(1)
    with torch.no_grad():
        logits = model.logits(ids, real, (ids == MASK) & real)
        alone = []
        for row in ROWS:
            one = torch.tensor([row])
            alone.append(model.logits(one, None, one == MASK))
    torch.testing.assert_close(logits, torch.cat(alone), atol=1e-4, rtol=0)


def test_a_later_token_matters(model: MaskedLM) -> None:
    ids = torch.tensor([ROWS[0], [*ROWS[0][:-1], 20]])
    with torch.no_grad():
        one, other = model.logits(ids, None, torch.arange(8).expand(2, 8) == 2)
    assert (one - other).abs().max() > 1e-4


def test_save_and_load(model: MaskedLM, tmp_path: Path) -> None:
    again = load(save(model, tmp_path / "copy"))
    ids = torch.tensor(ROWS[:1])
    with torch.no_grad():
        assert torch.equal(model.logits(ids, None, ids == MASK), again.logits(ids, None, ids == MASK))
    assert fingerprint(model) == fingerprint(again)
    assert again.eos_ids == (EOS,)


def test_ids_come_from_the_tokenizer_and_prompts_are_plain_text(tmp_path: Path) -> None:
    folder = written("bert", tmp_path / "m")
    tokenizer = word_tokenizer(template=None)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokenizer.save_pretrained(folder)
    model = load(folder, eos_ids=(EOS,))
    assert model.mask_id == MASK
    assert model.encode("a <|mask|> b") == model.encode("a <|mask|> b", chat=False) == [0, MASK, 1]
    with pytest.raises(UserError, match="chat=False"):
        model.encode("a", chat=True)


def test_heads_of_other_objectives_are_ignored_but_no_other_weight_is(tmp_path: Path) -> None:
    BertForPreTraining(CONFIGS["bert"]).save_pretrained(tmp_path)
    good = load_file(tmp_path / SINGLE)
    species = good | {
        "cls.species.weight": torch.ones(5, 32),
        "cls.species.bias": torch.ones(5),
    }  # AntiBERTy's
    save_file(species, tmp_path / SINGLE, metadata={"format": "pt"})
    assert load(tmp_path, mask_id=MASK, eos_ids=()).vocab_size == VOCABULARY
    layer = "bert.encoder.layer.0.intermediate.dense.weight"
    for spoilt, message in (
        ({key: value for key, value in good.items() if key != layer}, f"missing {layer}"),
        (good | {"extra": torch.ones(1)}, "unexpected extra"),
        (good | {"cls.predictions.extra": torch.ones(1)}, "unexpected cls.predictions.extra"),
        (good | {layer: torch.ones(3, 3)}, "shape"),
    ):
        save_file(spoilt, tmp_path / SINGLE, metadata={"format": "pt"})
        with pytest.raises(UserError, match=message):
            load(tmp_path, mask_id=MASK, eos_ids=())


def test_the_tokenizer_of_another_class_is_refused(tmp_path: Path) -> None:
    """ALBERT's reads no vocab.txt: of the forty words it would know its own five special tokens."""
    folder = written("albert", tmp_path / "m")
    (folder / "vocab.txt").write_text("\n".join(f"w{i}" for i in range(VOCABULARY)))
    with pytest.raises(UserError, match="has 5 tokens, the model 40"):
        load(folder, eos_ids=())


def test_loading_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The library's own progress bar and report of ignored weights are not ours to show."""
    BertForPreTraining(CONFIGS["bert"]).save_pretrained(tmp_path)
    capfd.readouterr()
    load(tmp_path, mask_id=MASK, eos_ids=())
    assert capfd.readouterr() == ("", "")


def test_pickles_missing_ids_and_unsuitable_classes(tmp_path: Path) -> None:
    folder = written("bert", tmp_path / "m")
    with pytest.raises(UserError, match="mask_id="):
        load(folder)
    with pytest.raises(UserError, match="eos_ids="):
        load(folder, mask_id=MASK)
    with pytest.raises(UserError, match="leave quantize and device_map out"):
        load(folder, mask_id=MASK, eos_ids=(), device_map="auto")
    (folder / SINGLE).rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickle"):
        load(folder)
    size = {key: value for key, value in _size.items() if key != "num_attention_heads"}
    AutoModelForMaskedLM.from_config(FNetConfig(**size)).save_pretrained(tmp_path / "fnet")
    with pytest.raises(UserError, match="attention mask"):
        load(tmp_path / "fnet", mask_id=MASK, eos_ids=())


def test_loading_never_runs_code_from_the_checkpoint(tmp_path: Path) -> None:
    folder = written("bert", tmp_path / "m")
    marker = tmp_path / "ran"
    config = (folder / "config.json").read_text().rstrip()
    (folder / "config.json").write_text(
        config[:-1] + ', "auto_map": {"AutoModelForMaskedLM": "modeling.M", "AutoConfig": "modeling.C"}}'
    )
    (folder / "modeling.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    load(folder, mask_id=MASK, eos_ids=())
    assert not marker.exists()
