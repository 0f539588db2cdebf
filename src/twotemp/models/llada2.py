"""LLaDA 2 (model_type `llada2_moe`) on `Glm4MoeForCausalLM`: block-causal, a mixture of experts.

The router is the same function: sigmoid scores, groups ranked by the sum of their two best biased scores,
the bias used for selection only, weights normalised and scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedConfig

from twotemp.models.special import Facts, Published
from twotemp.models.transformer import (
    Transformer,
    Weights,
    bidirectional,
    check_fixed,
    positive,
    qwen_fields,
    rename,
)

NAMES = {
    "model.word_embeddings": "model.embed_tokens",
    "model.layers.{}.attention.dense": "model.layers.{}.self_attn.o_proj",
    "model.layers.{}.attention.query_layernorm": "model.layers.{}.self_attn.q_norm",
    "model.layers.{}.attention.key_layernorm": "model.layers.{}.self_attn.k_norm",
}
ORIGINAL_NAMES = {native: original for original, native in NAMES.items()}

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "moe_router_enable_expert_bias": (True,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "rope_scaling": (None,),
    "score_function": ("sigmoid",),
    "use_bias": (False,),
    "use_qk_norm": (True,),
    "use_qkv_bias": (False,),
    "use_rmsnorm": (True,),
    "use_sliding_window": (False,),
    "using_split_qkv_in_self_attention": (False,),
}


class LLaDA2(Transformer):
    native = Glm4MoeForCausalLM
    facts = Facts(
        "llada2_moe",
        end_tokens=("<|endoftext|>", "<|role_end|>"),
        published=Published((157_184,), mask_id=156_895, eos_ids=(156_892,), block_size=32),
        block_causal=True,
    )
    float32_weights = ("e_score_correction_bias",)  # rounding it changes which experts are chosen

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, FIXED)
        fields = qwen_fields(cls.facts.family, config)
        fields["rope_parameters"]["partial_rotary_factor"] = positive(
            cls.facts.family, config, "partial_rotary_factor", float
        )
        fields["head_dim"] = positive(cls.facts.family, config, "head_dim")
        chosen = positive(cls.facts.family, config, "num_experts_per_tok")
        return bidirectional(
            Glm4MoeConfig(
                **fields,
                use_qk_norm=True,
                first_k_dense_replace=int(config.get("first_k_dense_replace", 0)),
                moe_intermediate_size=positive(cls.facts.family, config, "moe_intermediate_size"),
                n_routed_experts=positive(cls.facts.family, config, "num_experts"),
                n_shared_experts=positive(cls.facts.family, config, "num_shared_experts"),
                num_experts_per_tok=chosen,
                n_group=positive(cls.facts.family, config, "n_group"),
                topk_group=positive(cls.facts.family, config, "topk_group"),
                routed_scaling_factor=positive(cls.facts.family, config, "routed_scaling_factor", float),
                norm_topk_prob=chosen > 1,  # the reference normalises by this and ignores its own flag
                num_mtp_layers=0,
            )
        )

    @classmethod
    def to_native(cls, weights: Weights, config: PreTrainedConfig) -> Weights:
        weights = rename(weights, NAMES)
        q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        for layer in range(config.num_hidden_layers):
            attention = f"model.layers.{layer}.self_attn."
            fused = weights.pop(f"model.layers.{layer}.attention.query_key_value.weight")
            for name, part in zip("qkv", fused.split([q, kv, kv])):
                weights[f"{attention}{name}_proj.weight"] = part
            if layer < config.first_k_dense_replace:
                continue
            mlp = f"model.layers.{layer}.mlp."
            weights[f"{mlp}gate.e_score_correction_bias"] = weights.pop(f"{mlp}gate.expert_bias")
            gate, up, down = (
                torch.stack(
                    [
                        weights.pop(f"{mlp}experts.{expert}.{name}_proj.weight")
                        for expert in range(config.n_routed_experts)
                    ]
                )
                for name in ("gate", "up", "down")
            )
            weights[f"{mlp}experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
            weights[f"{mlp}experts.down_proj"] = down
        return weights

    @classmethod
    def to_original(cls, weights: Weights, config: PreTrainedConfig) -> Weights:
        weights = rename(weights, ORIGINAL_NAMES)
        for layer in range(config.num_hidden_layers):
            attention = f"model.layers.{layer}.self_attn."
            weights[f"model.layers.{layer}.attention.query_key_value.weight"] = torch.cat(
                [weights.pop(f"{attention}{name}_proj.weight") for name in "qkv"]
            )
            if layer < config.first_k_dense_replace:
                continue
            mlp = f"model.layers.{layer}.mlp."
            weights[f"{mlp}gate.expert_bias"] = weights.pop(f"{mlp}gate.e_score_correction_bias")
            gate_up = weights.pop(f"{mlp}experts.gate_up_proj")
            down = weights.pop(f"{mlp}experts.down_proj")
            for expert in range(config.n_routed_experts):
                gate, up = gate_up[expert].chunk(2)
                weights[f"{mlp}experts.{expert}.gate_proj.weight"] = gate
                weights[f"{mlp}experts.{expert}.up_proj.weight"] = up
                weights[f"{mlp}experts.{expert}.down_proj.weight"] = down[expert]
        return weights

    def chat(self, prompt: str) -> str:
        """The checkpoint's template, or where it ships none the format its authors' engine uses."""
        if self.tokenizer.chat_template is not None:
            return super().chat(prompt)
        return (
            "<role>SYSTEM</role>detailed thinking off<|role_end|>"
            f"<role>HUMAN</role>{prompt}<|role_end|><role>ASSISTANT</role>"
        )
