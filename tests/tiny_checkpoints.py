"""Random checkpoints of every family, small enough for a test: a config in the published field names."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from twotemp.models.families import FAMILIES
from twotemp.models.special import Given, resolve
from twotemp.models.transformer import Transformer

VOCABULARY, MASK, EOS = 40, 39, 38

_qwen: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "eos_token_id": EOS,
}
_experts: dict[str, Any] = {
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
# By the name that `load` knows a family by.
CONFIGS: dict[str, dict[str, Any]] = {
    "llada": {
        "model_type": "llada",
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 48,
        "embedding_size": VOCABULARY,
        "max_sequence_length": 128,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "block_type": "llama",
        "activation_type": "silu",
        "weight_tying": False,
        "mask_token_id": MASK,
        "eos_token_id": EOS,
    },
    "Dream": {"model_type": "Dream", **_qwen, "mask_token_id": MASK},
    "sdar": {"model_type": "sdar", **_qwen, "head_dim": 16},
    "llada2_moe": {
        "model_type": "llada2_moe",
        **_qwen,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
    },
    "sdar_moe": {"model_type": "sdar_moe", **_qwen, **_experts, "norm_topk_prob": True},
    "LLaDAMoEModelLM": {
        "model_type": "llada",
        "architectures": ["LLaDAMoEModelLM"],
        **_qwen,
        "expert_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_layer_freq": [1, 1],
        "qk_layernorm": True,
        "mask_token_id": MASK,
    },
    "Fast_dLLM_Qwen": {"model_type": "Fast_dLLM_Qwen", **_qwen, "bd_size": 4, "mask_token_id": MASK},
    "StableDiffcoderForCausalLM": {
        "model_type": "llama",
        "architectures": ["StableDiffcoderForCausalLM"],
        **_qwen,
    },
    "a2d-qwen3": {
        "model_type": "a2d-qwen3",
        **_qwen,
        "head_dim": 16,
        "mask_token_id": MASK,
        "block_size": None,
    },
    "rnd1": {"model_type": "rnd1", **_qwen, **_experts, "rope_scaling": False, "mask_token_id": MASK},
}
BIDIRECTIONAL = ("llada", "Dream", "LLaDAMoEModelLM", "a2d-qwen3", "rnd1")
BLOCK_CAUSAL = ("sdar", "llada2_moe", "sdar_moe", "Fast_dLLM_Qwen", "StableDiffcoderForCausalLM")
MIXTURES = ("llada2_moe", "sdar_moe", "LLaDAMoEModelLM", "rnd1")
SHIFTED = ("Dream", "Fast_dLLM_Qwen", "rnd1")
BLOCK = 4


def given(model_type: str) -> Given:
    """What this family's config leaves out."""
    return Given(MASK, (EOS,), BLOCK) if model_type in BLOCK_CAUSAL else Given()


def random_model(
    model_type: str, tokenizer: Any = None, changes: dict[str, Any] | None = None, seed: int = 0
) -> Transformer:
    """A model whose every weight is random and matters (norms and biases too)."""
    family = FAMILIES[model_type]
    config = {**CONFIGS[model_type], **(changes or {})}
    native = family.native_config(config)
    generator = torch.Generator().manual_seed(seed)
    module = family.native(native).eval()
    with torch.no_grad():
        for key, tensor in module.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + 0.2 * noise if "norm" in key else 0.3 * noise)
    special = resolve(family.facts, native.vocab_size, config, tokenizer, given=given(model_type))
    return family(module, config, special, tokenizer, model_type)


def word_tokenizer(template: str | None = "{{ messages[0].content }}<|eot_id|>") -> PreTrainedTokenizerFast:
    """Three words and the special tokens of a chat model, filled up to id 29; ids 30 ... 37 have no token."""
    words = ["a", "b", "c", "[UNK]", "<|eot_id|>", "<|im_end|>", "<|role_end|>", "<|begin|>"]
    words += [f"w{i}" for i in range(len(words), 30)]
    ids = {word: i for i, word in enumerate(words)} | {"<|endoftext|>": EOS, "<|mask|>": MASK}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        bos_token="<|begin|>",
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|eot_id|>", "<|im_end|>", "<|role_end|>", "<|mask|>"],
        chat_template=template,
    )


def left_padded(rows: list[list[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask of a batch, padded on the left with EOS as the published samplers do."""
    ids = torch.tensor([[EOS] * (width - len(row)) + row for row in rows])
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return ids, real
