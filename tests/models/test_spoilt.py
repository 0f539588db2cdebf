"""Every way a checkpoint folder, or what is asked of it, can be wrong; and what only looks wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.helpers.checkpoint_folders import change_config, change_weights, load_as, logits, shard
from tests.helpers.tiny_checkpoints import (
    BLOCK,
    BLOCK_CAUSAL,
    CONFIGS,
    EOS,
    MASK,
    VOCABULARY,
    random_model,
    word_tokenizer,
)
from twotemp.errors import UserError
from twotemp.models.checkpoint import INDEX, SINGLE, save
from twotemp.models.families import FAMILIES
from twotemp.models.load import load
from twotemp.models.token_ids import Facts, LoadOverrides, PublishedIds, resolve_token_ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good LLaDA checkpoint, to be spoilt."""
    return save(random_model("llada"), tmp_path / "llada")


def shard_twice(folder: Path) -> None:
    shard(folder)
    save_file(load_file(folder / "model-1-of-2.safetensors"), folder / "copy.safetensors")
    (folder / INDEX).unlink()


HEAD = "model.transformer.ff_out.weight"
SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "config is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        "no config.json",
    ),
    "config is too deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "not valid JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "JSON object"),
    "unknown family": (lambda f: change_config(f, model_type="lada"), "did you mean 'llada'"),
    "no family": (lambda f: change_config(f, model_type="DROP"), "unknown model family"),
    "no weights": (lambda f: (f / SINGLE).unlink(), "no weights"),
    "pickle only": (lambda f: (f / SINGLE).rename(f / "pytorch_model.bin"), "safetensors"),
    "truncated": (lambda f: (f / SINGLE).write_bytes((f / SINGLE).read_bytes()[:-9]), "download it again"),
    "index without files": (lambda f: shard(f, weight_map={}), "no weight_map"),
    "index is a list": (lambda f: shard(f, weight_map=[1]), "no weight_map"),
    "index leaves the folder": (
        lambda f: shard(f, weight_map={"a": "/etc/passwd"}),
        "names passwd, which is missing",
    ),
    "a weight in two files": (shard_twice, "is also in another file of the folder"),
    "missing weight": (lambda f: change_weights(f, lambda w: w.pop(HEAD)), f"missing {HEAD}"),
    "unexpected weight": (
        lambda f: change_weights(f, lambda w: w.update(extra=torch.ones(1))),
        "unexpected extra",
    ),
    "wrong shape": (
        lambda f: change_weights(f, lambda w: w.update({HEAD: w[HEAD][:-1].clone()})),
        r"has shape \(39, 32\), not \(40, 32\)",
    ),
    "quantized by others": (
        lambda f: change_weights(f, lambda w: w.update({HEAD: w[HEAD].to(torch.int8)})),
        "is stored as I8; use a 16- or 32-bit checkpoint",
    ),
    "config of another size": (lambda f: change_config(f, n_layers=3), "missing .*blocks.2"),
    "config of thousands of layers": (
        lambda f: change_config(f, n_layers=10**6),
        "1000000 layers, the files have 21 tensors",
    ),
    "another activation": (lambda f: change_config(f, activation_type="swiglu"), "activation_type='swiglu'"),
    "another block": (lambda f: change_config(f, block_type="sequential"), "block_type"),
    "biases": (lambda f: change_config(f, include_bias=True), "include_bias"),
    "biases missing": (lambda f: change_config(f, include_qkv_bias=True), "missing .*k_proj.bias"),
    "alibi": (lambda f: change_config(f, alibi=True), "alibi"),
    "no width": (lambda f: change_config(f, d_model="DROP"), "d_model is missing"),
    "width is text": (lambda f: change_config(f, d_model="64"), "d_model is '64'"),
    "no layers": (lambda f: change_config(f, n_layers=0), "n_layers is 0"),
    "heads do not divide": (lambda f: change_config(f, n_heads=5), "multiple of n_heads"),
    "no mask id": (lambda f: change_config(f, mask_token_id="DROP"), "mask_id="),
    "mask id outside": (lambda f: change_config(f, mask_token_id=40), "not one of the model's 40"),
    "no eos": (
        lambda f: change_config(f, eos_token_id="DROP"),
        r"config.json, or pass load\(..., eos_ids=",
    ),
    "mask id is a list": (lambda f: change_config(f, mask_token_id=[39]), r"mask_id: \[39\] is not one"),
    "eos is nested": (lambda f: change_config(f, eos_token_id=[[1]]), r"eos_ids: \[1\] is not one"),
    "eos is an object": (lambda f: change_config(f, eos_token_id={"a": 1}), "eos_ids: {'a': 1} is not one"),
    "odd heads": (lambda f: change_config(f, n_heads=32, n_kv_heads=32), "must be an even number"),
    "no feed-forward width": (lambda f: change_config(f, mlp_hidden_size=None), "mlp_ratio is missing"),
    "architectures are numbers": (
        lambda f: change_config(f, architectures=[1], model_type="DROP"),
        "unknown model family",
    ),
    "eos is the mask": (lambda f: change_config(f, eos_token_id=MASK), "both the mask"),
    "an enormous width": (lambda f: change_config(f, d_model=10**30), "d_model is 1000"),
    "enormous widths": (
        lambda f: change_config(f, d_model=2**30, n_heads=1, n_kv_heads=1, mlp_hidden_size=2**31 - 1),
        "config.json",
    ),
    "init_std is a word": (lambda f: change_config(f, init_std="x"), "init_std is 'x'"),
    "tokenizer broken": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer files"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_folder_gets_a_clear_error(case: str, folder: Path) -> None:
    spoil, message = SPOILT[case]
    spoil(folder)
    with pytest.raises(UserError, match=message):
        load(folder)


HARMLESS: dict[str, Callable[[Path], Any]] = {
    "frequencies": lambda f: change_weights(f, lambda w: w.update({"a.rotary_emb.inv_freq": torch.ones(4)})),
    "byte order mark": lambda f: (f / "config.json").write_bytes(
        b"\xef\xbb\xbf" + (f / "config.json").read_bytes()
    ),
    "no index": lambda f: (shard(f), (f / INDEX).unlink()),
    "a name of a file": lambda f: (f / SINGLE).rename(f / "weights.safetensors"),
    "no architectures": lambda f: change_config(f, architectures=None),
    "one architecture": lambda f: change_config(f, architectures="LLaDAModelLM"),
    "heads of keys left out": lambda f: change_config(f, n_kv_heads=None),
    "a ratio for a width": lambda f: change_config(f, mlp_hidden_size=None, mlp_ratio=WIDTHS),
    "only vocab_size": lambda f: change_config(f, embedding_size=None, vocab_size=VOCABULARY),
    "in double precision": lambda f: change_weights(
        f, lambda w: w.update({key: tensor.double() for key, tensor in w.items()})
    ),
}
WIDTHS = 2


@pytest.mark.parametrize("case", HARMLESS)
def test_other_spellings_of_the_same_model_load(case: str, tmp_path: Path) -> None:
    model = random_model(
        "llada", changes={"n_kv_heads": 4, "mlp_hidden_size": WIDTHS * CONFIGS["llada"]["d_model"]}
    )
    folder = save(model, tmp_path / "of words & signs, ü")
    HARMLESS[case](folder)
    assert torch.equal(logits(load(folder)), logits(model))


@pytest.mark.parametrize(
    "changes",
    [{"rope_scaling": "linear"}, {"rope_parameters": [1]}, {"num_experts_per_tok": 99}, {"n_group": 3}],
)
def test_impossible_configs_are_user_errors(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"take config\.json from the published checkpoint"):
        FAMILIES["llada2_moe"].native_config({**CONFIGS["llada2_moe"], **changes})


@pytest.mark.parametrize("model_type", ["Dream", "sdar", "llada2_moe"])
def test_every_family_refuses_other_architectures(model_type: str, tmp_path: Path) -> None:
    folder = save(random_model(model_type), tmp_path / "copy")
    for changes, message in (
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"rope_theta": "DROP"}, "rope_theta is missing"),
    ):
        spoilt = tmp_path / message.split()[0]
        shutil.copytree(folder, spoilt)
        change_config(spoilt, **changes)
        with pytest.raises(UserError, match=message):
            load(spoilt)


def test_weights_that_do_not_fit_are_an_error_that_names_the_fix(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: torch.nn.Module, *, device: torch.device) -> None:
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")

    monkeypatch.setattr(torch.nn.Module, "to_empty", full)
    with pytest.raises(UserError, match=r"does not fit on cpu \(tried .* quantize='int8' .* doctor --model"):
        load(folder)


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    word_tokenizer().save_pretrained(folder)
    assert load(folder).encode("a", chat=False) == [0]
    for size, words in (("8", 8), ("60", 60)):  # too few, too many for 40 rows
        core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
        PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w0").save_pretrained(folder)
        with pytest.raises(UserError, match=f"has {size} tokens, the model 40: it belongs to another model"):
            load(folder)


def test_bad_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no model 'nowhere'"):
        load("nowhere")
    with pytest.raises(UserError, match="could not be downloaded from the hub: the hub cannot be reached"):
        load("someone/something")  # tests run with the hub offline
    for name in ("GSAI-ML/LLaDA-8B-Instrct", "LLaDA-8B-Instruct", "gsai/llada-8b-instruct"):
        with pytest.raises(UserError, match="did you mean 'GSAI-ML/LLaDA-8B-Instruct'"):
            load(name)
    with pytest.raises(UserError, match="revision"):
        load(folder, revision="main")
    with pytest.raises(UserError, match="no block size"):
        load(folder, block_size=4)
    with pytest.raises(UserError, match="eos_ids: 99"):
        load(folder, eos_ids=(99,))
    with pytest.raises(UserError, match="did you mean 'float32'"):
        load(folder, dtype="float3")
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.complex64):
        with pytest.raises(UserError, match="unknown dtype"):
            load(folder, dtype=dtype)
    with pytest.raises(UserError, match="a folder or a hub id, not 5"):
        load(5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="device 'abacus'"):
        load(folder, device="abacus")
    for path in ("./nope", "../nope", "/nope/nope", "x" * 5000, "/" + "x" * 300, "a\0b", "\ud800"):
        with pytest.raises(UserError, match="not a folder"):
            load(path)
    with pytest.raises(UserError, match="could not be downloaded"):
        load("a/b..c")  # which the hub's own check refuses
    monkeypatch.setattr("twotemp.models.load.files", lambda package: folder)
    with pytest.raises(UserError, match="embedded model 'tiny'"):
        load("tiny")


def test_the_hub_is_asked_for_data_only_and_for_weights_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def snapshot_download(name: str, *, revision: str, allow_patterns: list[str], **options: object) -> str:
        assert (name, revision) == ("someone/llada", "v1")
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    model = load("someone/llada", revision="v1")
    assert model.name == "someone/llada"
    assert not any("py" in pattern or "bin" in pattern for patterns in asked for pattern in patterns)
    assert ["*.safetensors" in patterns for patterns in asked] == [False, True]
    change_config(folder, model_type="gpt2")
    with pytest.raises(UserError, match="unknown model family"):
        load("someone/llada", revision="v1")
    assert len(asked) == 3  # and no weights were fetched for a family we cannot load


def test_dtype(folder: Path) -> None:
    assert load(folder).module.dtype == torch.float32
    half = load(folder, dtype="float16")
    assert half.module.dtype == torch.float16
    assert logits(half).dtype == torch.float32


def test_the_router_bias_of_llada2_stays_in_float32(tmp_path: Path) -> None:
    folder = save(random_model("llada2_moe"), tmp_path / "copy")
    state = load(folder, dtype="bfloat16").module.state_dict()
    kinds = {key: tensor.dtype for key, tensor in state.items()}
    assert {kind for key, kind in kinds.items() if "e_score" in key} == {torch.float32}
    assert {kind for key, kind in kinds.items() if "e_score" not in key} == {torch.bfloat16}


# What a config leaves out.


@pytest.mark.parametrize("model_type", BLOCK_CAUSAL)
def test_ids_and_block_size_of_block_causal_models(model_type: str, tmp_path: Path) -> None:
    folder = save(random_model(model_type), tmp_path / "copy")
    change_config(folder, mask_token_id="DROP", block_size="DROP", bd_size="DROP", eos_token_id=EOS)
    with pytest.raises(UserError, match="mask_id="):
        load(folder)
    with pytest.raises(UserError, match="block_size="):
        load(folder, mask_id=MASK)
    with pytest.raises(UserError, match="block_size must be"):
        load(folder, mask_id=MASK, block_size=0)
    model = load_as(model_type, folder)
    assert (model.mask_id, model.eos_ids, model.block_size) == (MASK, (EOS,), BLOCK)
    assert load(folder, mask_id=MASK, eos_ids=(), block_size=8).eos_ids == ()


@pytest.mark.parametrize(
    ("model_type", "mask_id", "eos_ids", "block_size", "unused"),
    [
        ("llada", 126336, (126081, 126348), None, 115),
        ("Dream", 151666, (151643, 151645), None, 397),
        ("sdar", 151669, (151643, 151645), 4, 266),
        ("llada2_moe", 156895, (156892,), 32, 0),
    ],
)
def test_published_checkpoints_need_no_arguments(
    model_type: str, mask_id: int, eos_ids: tuple[int, ...], block_size: int | None, unused: int
) -> None:
    facts = FAMILIES[model_type].facts
    found = resolve_token_ids(facts, facts.published.vocabularies[0], {})
    assert (found.mask_id, found.eos_ids, found.block_size) == (mask_id, eos_ids, block_size)
    assert len(set(found.forbidden_ids) - {mask_id}) == unused


def test_arguments_precede_files_and_files_precede_family_facts() -> None:
    facts = Facts("f", ("<|role_end|>",), PublishedIds((VOCABULARY,), mask_id=10, eos_ids=(11,)))
    tokenizer = word_tokenizer()
    assert resolve_token_ids(facts, VOCABULARY, {}).mask_id == 10
    assert resolve_token_ids(facts, VOCABULARY, {"mask_token_id": 12}).mask_id == 12
    assert (
        resolve_token_ids(
            facts, VOCABULARY, {"mask_token_id": 12}, overrides=LoadOverrides(mask_id=13)
        ).mask_id
        == 13
    )
    single = resolve_token_ids(facts, VOCABULARY, {"eos_token_id": 14}, tokenizer, {"eos_token_id": [15, 16]})
    assert single.eos_ids == (6, 11, 14, 15, 16)
    assert resolve_token_ids(facts, VOCABULARY, {"eos_token_id": [14]}, tokenizer).eos_ids == (14,)
    assert resolve_token_ids(
        facts, VOCABULARY, {}, tokenizer, overrides=LoadOverrides(eos_ids=(1,))
    ).eos_ids == (1,)
    assert single.forbidden_ids == (10, *range(30, 38))
