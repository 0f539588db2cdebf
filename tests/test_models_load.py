"""Checkpoint folders: round trips, shards, what a config leaves out, and every way a folder can be wrong."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.tiny_checkpoints import (
    BLOCK,
    BLOCK_CAUSAL,
    CONFIGS,
    EOS,
    MASK,
    VOCABULARY,
    given,
    random_model,
    word_tokenizer,
)
from twotemp.errors import UserError
from twotemp.models.checkpoint import INDEX, SINGLE, fingerprint, save
from twotemp.models.families import FAMILIES
from twotemp.models.llada import new
from twotemp.models.load import load
from twotemp.models.special import Facts, Given, Published, resolve
from twotemp.models.transformer import Transformer

IDS = torch.tensor([[1, 2, MASK, 4, MASK, 6]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(IDS, None, IDS == MASK)


def load_as(model_type: str, folder: Path) -> Transformer:
    said = given(model_type)
    return load(folder, mask_id=said.mask_id, eos_ids=said.eos_ids, block_size=said.block_size)


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
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", SINGLE]
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_tokenizer_travels_along(tmp_path: Path) -> None:
    model = random_model("llada", word_tokenizer())
    again = load(save(model, tmp_path / "copy"))
    assert again.tokenizer.chat_template == model.tokenizer.chat_template
    assert again.tokenizer("a b <|eot_id|>")["input_ids"] == [0, 1, 4]
    assert again.eos_ids == (4, EOS)


def test_a_dream_tokenizer_needs_no_remote_code(tmp_path: Path) -> None:
    """Dream ships vocab.json and merges.txt under a class name of its own; Qwen2's reads them."""
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
def test_a_stored_head_counts_though_the_config_ties_it(model_type: str, tmp_path: Path) -> None:
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


# What can be wrong with a folder.


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "DROP"}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE)


def shard(folder: Path, **changes: Any) -> None:
    """Deal the weights out over two files; the index with changes."""
    weights = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    where = {}
    for number in (1, 2):
        name = f"model-{number}-of-2.safetensors"
        part = sorted(weights)[number - 1 :: 2]
        save_file({key: weights[key] for key in part}, folder / name)
        where |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where, **changes}))


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
    "a weight in two files": (shard_twice, "is in another file of the folder, too"),
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
        "is stored as I8; take the checkpoint in 16 or 32 bits",
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
    "odd heads": (lambda f: change_config(f, n_heads=32, n_kv_heads=32), "must be pairs"),
    "no feed-forward width": (lambda f: change_config(f, mlp_hidden_size=None), "mlp_ratio is missing"),
    "architectures are numbers": (
        lambda f: change_config(f, architectures=[1], model_type="DROP"),
        "unknown model family",
    ),
    "eos is the mask": (lambda f: change_config(f, eos_token_id=MASK), "both the mask"),
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
def test_configs_that_cannot_be_are_errors_of_the_user(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"take config\.json from the published checkpoint"):
        FAMILIES["llada2_moe"].native_config({**CONFIGS["llada2_moe"], **changes})


@pytest.mark.parametrize("model_type", ["Dream", "sdar", "llada2_moe"])
def test_other_families_refuse_other_architectures_too(model_type: str, tmp_path: Path) -> None:
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


def test_weights_that_do_not_fit_are_an_error_that_says_what_would(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: torch.nn.Module, *, device: torch.device) -> None:
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")

    monkeypatch.setattr(torch.nn.Module, "to_empty", full)
    with pytest.raises(UserError, match=r"has no room \(tried .* quantize='int8' .* doctor --model"):
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
    with pytest.raises(UserError, match="could not be fetched from the hub: the hub cannot be reached"):
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
    with pytest.raises(UserError, match="device 'abacus'"):
        load(folder, device="abacus")
    for path in ("./nope", "../nope", "/nope/nope"):
        with pytest.raises(UserError, match="not a folder"):
            load(path)
    with pytest.raises(UserError, match="could not be fetched"):
        load("a/b..c")  # which the hub's own check refuses
    monkeypatch.setattr("twotemp.models.load.files", lambda package: folder)
    with pytest.raises(UserError, match="embedded model 'tiny'"):
        load("tiny")


def test_the_hub_is_asked_for_data_only_and_for_weights_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
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
    found = resolve(facts, facts.published.vocabularies[0], {})
    assert (found.mask_id, found.eos_ids, found.block_size) == (mask_id, eos_ids, block_size)
    assert len(set(found.forbidden_ids) - {mask_id}) == unused


def test_the_caller_wins_then_the_files_then_what_is_known() -> None:
    facts = Facts("f", ("<|role_end|>",), Published((VOCABULARY,), mask_id=10, eos_ids=(11,)))
    tokenizer = word_tokenizer()
    assert resolve(facts, VOCABULARY, {}).mask_id == 10
    assert resolve(facts, VOCABULARY, {"mask_token_id": 12}).mask_id == 12
    assert resolve(facts, VOCABULARY, {"mask_token_id": 12}, given=Given(mask_id=13)).mask_id == 13
    single = resolve(facts, VOCABULARY, {"eos_token_id": 14}, tokenizer, {"eos_token_id": [15, 16]})
    assert single.eos_ids == (6, 11, 14, 15, 16)
    assert resolve(facts, VOCABULARY, {"eos_token_id": [14]}, tokenizer).eos_ids == (14,)
    assert resolve(facts, VOCABULARY, {}, tokenizer, given=Given(eos_ids=(1,))).eos_ids == (1,)
    assert single.forbidden_ids == (10, *range(30, 38))
