"""Checkpoint folders: round trips, shards, and what a config leaves out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.checkpoint_folders import change_config, change_weights, logits, shard
from tests.helpers.tiny_checkpoints import (
    CONFIGS,
    EOS,
    MASK,
    random_model,
    word_tokenizer,
)
from twotemp.errors import UserError
from twotemp.models.checkpoint import SINGLE, fingerprint, save
from twotemp.models.llada import new
from twotemp.models.load import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good LLaDA checkpoint, to be spoilt."""
    return save(random_model("llada"), tmp_path / "llada")


@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_save_and_load_give_the_same_model(model_type: str, tied: bool, tmp_path: Path) -> None:
    changes = {"weight_tying" if model_type == "llada" else "tie_word_embeddings": tied}
    model = random_model(model_type, changes=changes)
    folder = save(model, tmp_path / "deep" / "copy")
    again = load(folder)  # what the config left out was written down
    assert torch.equal(logits(model), logits(again))
    assert fingerprint(model) == fingerprint(again)
    for field in (
        "mask_id",
        "eos_ids",
        "forbidden_ids",
        "block_size",
        "max_length",
        "vocab_size",
        "tokenizer",
    ):
        assert getattr(model, field) == getattr(again, field)
    assert model.config.items() <= json.loads((folder / "config.json").read_text()).items()
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", SINGLE]
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    model = random_model("llada", word_tokenizer())
    again = load(save(model, tmp_path / "copy"))
    assert again.tokenizer.chat_template == model.tokenizer.chat_template
    assert again.tokenizer("a b <|eot_id|>")["input_ids"] == [0, 1, 4]
    assert again.eos_ids == (4, EOS)


def test_a_dream_tokenizer_needs_no_remote_code(tmp_path: Path) -> None:
    """Dream ships vocab.json and merges.txt under its own class name; Qwen2's class reads them."""
    folder = save(random_model("Dream"), tmp_path / "dream")
    vocabulary = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<|endoftext|>": EOS, "<|mask|>": MASK}
    vocabulary |= {f"w{i}": i for i in range(4, 30)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\na b\n", "utf-8")
    about = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "mask_token": "<|mask|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    model = load(folder)
    assert model.tokenizer("ab b<|mask|>")["input_ids"] == [2, 3, 1, MASK]
    assert 35 in model.forbidden_ids
    again = save(model, tmp_path / "again") / "tokenizer_config.json"
    assert "auto_map" not in json.loads(again.read_text())


@pytest.mark.parametrize("name", ["org/model", "/somewhere/model"])
def test_a_saved_copy_names_no_code_that_it_lacks(name: str, tmp_path: Path) -> None:
    """The Python files are not copied: `auto_map` points at their hub repository, or goes; a card says what it is."""
    model = random_model("llada")
    before, model.name = model.fingerprint, name
    model.config["auto_map"] = {"AutoModel": "modeling_llada.LLaDAModelLM", "AutoConfig": "a/b--c.D"}
    folder = save(model, tmp_path / "copy", about="Trained for a test.")
    hub = {"AutoModel": "org/model--modeling_llada.LLaDAModelLM", "AutoConfig": "a/b--c.D"}
    config = json.loads((folder / "config.json").read_text())
    assert config.get("auto_map") == (hub if name == "org/model" else None)
    card = (folder / "README.md").read_text()
    assert "Trained for a test." in card
    assert ('base_model: "org/model"' in card) == (name == "org/model")
    assert load(folder).fingerprint == model.fingerprint == before


def test_saving_never_replaces_a_folder_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    model = random_model("llada")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        save(model, tmp_path / "full")
    model.write_weights = lambda folder: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        save(model, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_adapters_must_be_merged_before_saving(tmp_path: Path) -> None:
    model = random_model("llada")
    model.module.lm_head.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="merge"):
        save(model, tmp_path / "copy")


def test_biases_of_queries_keys_and_values_only(tmp_path: Path) -> None:
    model = random_model("llada", changes={"include_qkv_bias": True})
    again = load(save(model, tmp_path / "copy"))
    assert torch.equal(logits(again), logits(model))
    biases = {key.split(".")[-2] for key in load_file(tmp_path / "copy" / SINGLE) if key.endswith("bias")}
    assert biases == {"q_proj", "k_proj", "v_proj"}
    with torch.no_grad():
        again.module.model.layers[0].self_attn.v_proj.bias += 1
    assert not torch.equal(logits(again), logits(model))


def test_a_device_without_float64_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's GPUs: the noise is drawn in float64."""

    def empty(*size: int, dtype: torch.dtype = torch.float32, device: torch.device) -> torch.Tensor:
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return torch.zeros(*size)

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(UserError, match=r"device 'mps' cannot be used here .*float64.*device='cpu'"):
        load(folder, device="mps")


def test_a_new_model_is_reproducible_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (new(CONFIGS["llada"], seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_the_fingerprint_sees_weights_and_ids() -> None:
    model = random_model("llada")
    before = fingerprint(model)
    with torch.no_grad():
        model.module.model.norm.weight[3] += 1e-3
    assert fingerprint(model) != before
    assert fingerprint(random_model("llada", changes={"eos_token_id": 1})) != before


@pytest.mark.parametrize("model_type", CONFIGS)
def test_sharded_folders(model_type: str, tmp_path: Path) -> None:
    model = random_model(model_type)
    folder = save(model, tmp_path / "copy")
    shard(folder)
    assert torch.equal(logits(load(folder)), logits(model))
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(UserError, match="model-2-of-2"):
        load(folder)


@pytest.mark.parametrize("model_type", ["llada", "a2d-qwen3"])
def test_a_stored_head_is_used_even_if_the_config_ties_it(model_type: str, tmp_path: Path) -> None:
    """dllm's smaller checkpoints have one of their own."""
    changes = {"weight_tying" if model_type == "llada" else "tie_word_embeddings": True}
    model = random_model(model_type, changes=changes)
    folder = save(model, tmp_path / "copy")
    embedding = model.module.model.embed_tokens.weight.detach()
    change_weights(folder, lambda w: w.update({model.head: embedding.clone()}))
    assert torch.equal(logits(load(folder)), logits(model))
    change_weights(folder, lambda w: w.update({model.head: -embedding}))
    assert torch.equal(logits(load(folder)), -logits(model))
    assert torch.equal(logits(load(save(load(folder), tmp_path / "again"))), -logits(model))


def test_loading_never_runs_code_from_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("modeling_llada.py", "configuration_llada.py", "tokenization_llada.py"):
        (folder / name).write_text(code)
    change_config(
        folder,
        auto_map={"AutoConfig": "configuration_llada.C", "AutoModelForCausalLM": "modeling_llada.M"},
    )
    word_tokenizer().save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    extra = {
        "auto_map": {"AutoTokenizer": ["tokenization_llada.T", None]},
        "tokenizer_class": "LLaDATokenizer",
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **extra}))
    assert load(folder).tokenizer is not None
    assert not marker.exists()
    assert not any("modeling_llada" in module for module in sys.modules)
