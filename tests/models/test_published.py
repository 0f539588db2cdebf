"""Checkpoints as they are published: their config.json in every field, made narrow, in bfloat16 and in shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import twotemp
from tests.helpers.tiny_checkpoints import EOS, random_model, word_tokenizer
from twotemp.models.checkpoint import INDEX, save
from twotemp.models.families import family
from twotemp.models.load import load
from twotemp.models.summary import summarize

# Without `torch_dtype`, and with an odd number of heads (a checkpoint of 100M parameters made with dllm).
LLADA = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "embedding_size": 126_464,
    "vocab_size": 126_464,
    "eos_token_id": 126_081,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "mask_token_id": 126_336,
    "max_sequence_length": 1024,
    "d_model": 14,
    "mlp_hidden_size": 24,
    "mlp_ratio": 2,
    "multi_query_attention": None,
    "n_heads": 7,
    "n_kv_heads": 7,
    "n_layers": 2,
    "pad_token_id": 126_081,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 10_000.0,
    "scale_logits": False,
    "weight_tying": False,
}
QWEN: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "use_cache": True,
}
# Tied, and without a mask id.
FAST_DLLM = {
    **QWEN,
    "architectures": ["Fast_dLLM_QwenForCausalLM"],
    "model_type": "Fast_dLLM_Qwen",
    "bd_size": 32,
    "eos_token_id": 151_645,
    "layer_types": ["full_attention"] * 2,
    "max_window_layers": 28,
    "rope_scaling": None,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151_936,
}
# Heads wider than the model; neither mask id nor block size nor the norms of queries and keys are mentioned.
LLADA2 = {
    **QWEN,
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "head_dim": 8,
    "moe_intermediate_size": 8,
    "n_group": 8,
    "norm_head": False,
    "norm_topk_prob": True,
    "num_experts": 16,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "output_router_logits": False,
    "pad_token_id": 156_892,
    "partial_rotary_factor": 0.5,
    "rope_theta": 600_000,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "vocab_size": 157_184,
}
# As transformers 5 writes it.
DIFFCODER = {
    **QWEN,
    "architectures": ["StableDiffcoderForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "dtype": "bfloat16",
    "head_dim": 2,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "tie_word_embeddings": False,
    "vocab_size": 155_136,
}


def write(config: dict[str, Any], folder: Path) -> None:
    """Random weights in two shards, in the family's own layout."""
    kind = family(config)
    native = kind.native_config(config)
    state = {key: tensor.bfloat16() for key, tensor in kind.native(native).state_dict().items()}
    if native.tie_word_embeddings:
        del state["lm_head.weight"]
    weights = {key: torch.cat(parts) for key, parts in kind.layout(state, native).items()}
    shards = {f"model-0000{n + 1}-of-00002.safetensors": sorted(weights)[n::2] for n in range(2)}
    for name, keys in shards.items():
        save_file({key: weights[key] for key in keys}, folder / name)
    size = sum(2 * tensor.numel() for tensor in weights.values())
    where = {key: name for name, keys in shards.items() for key in keys}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("config", "about", "eos_ids"),
    [
        (LLADA, "mask id 126336, bidirectional", (126_081, 126_348)),
        (FAST_DLLM, "mask id 151665, blocks of 32, shifted", (151_643, 151_645)),
        (LLADA2, "mask id 156895, blocks of 32", (156_892,)),
        (DIFFCODER, "mask id 5, blocks of 4", (2,)),
    ],
    ids=["llada", "fast-dllm", "llada2", "diffcoder"],
)
def test_a_published_config_needs_no_arguments(
    config: dict[str, Any], about: str, eos_ids: tuple[int, ...], tmp_path: Path
) -> None:
    write(config, tmp_path)
    found = summarize(str(tmp_path))
    assert (found.about, found.complete, found.missing) == (about, True, 0)
    assert (found.dtype, found.weights // found.parameters) == (torch.bfloat16, 2)
    model = load(tmp_path)
    assert model.eos_ids == eos_ids
    assert {weight.dtype for weight in model.tensors().values()} == {torch.float32}
    (sample,) = twotemp.sample(model, [1, 3, 4], "tct", length=5)
    assert not {*sample.tokens} & {*model.forbidden_ids}


@pytest.mark.parametrize("kept", ["its own file", "tokenizer_config.json"])
def test_a_tokenizer_may_come_in_few_files(kept: str, tmp_path: Path) -> None:
    """tokenizer.json with nothing beside it but a template; or the template where older tokenizers have it."""
    folder = save(random_model("sdar", word_tokenizer("{{ messages[0].content }} a")), tmp_path / "m")
    assert (folder / "chat_template.jinja").is_file()
    if kept == "its own file":
        (folder / "tokenizer_config.json").unlink()
    else:
        about = json.loads((folder / "tokenizer_config.json").read_text())
        template = (folder / "chat_template.jinja").read_text()
        (folder / "tokenizer_config.json").write_text(json.dumps({**about, "chat_template": template}))
        (folder / "chat_template.jinja").unlink()
    model = load(folder)
    assert model.encode([{"role": "user", "content": "b"}]) == [1, 0]
    assert model.decode([0, 1, EOS, 2]) == "a b"
