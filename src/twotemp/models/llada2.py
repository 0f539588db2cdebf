"""LLaDA 2 (model_type `llada2_moe`) on `Glm4MoeForCausalLM`: block-causal, a mixture of experts.

The router is the same function: sigmoid scores, groups ranked by the sum of their two best biased scores,
the bias used for selection only, weights normalized and scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import Glm4MoeForCausalLM, PreTrainedConfig

from twotemp.models.native import AllowedValues, Native, check_experts, positive, rope_fields
from twotemp.models.token_ids import Facts, PublishedIds
from twotemp.models.weight_loading import Layout, Weights, rename, split_experts

ORIGINAL_NAMES = {
    "model.embed_tokens": "model.word_embeddings",
    "model.layers.{}.self_attn.o_proj": "model.layers.{}.attention.dense",
    "model.layers.{}.self_attn.q_norm": "model.layers.{}.attention.query_layernorm",
    "model.layers.{}.self_attn.k_norm": "model.layers.{}.attention.key_layernorm",
}


class LLaDA2(Native):
    native = Glm4MoeForCausalLM
    facts = Facts(
        "llada2_moe",
        end_tokens=("<|endoftext|>", "<|role_end|>"),
        published=PublishedIds((157_184,), mask_id=156_895, eos_ids=(156_892,), block_size=32),
        blocks="always",
    )
    float32_weights = ("e_score_correction_bias",)  # rounding it changes which experts are chosen
    fixed: ClassVar[AllowedValues] = {
        "hidden_act": ("silu",),
        "moe_router_enable_expert_bias": (True,),
        "norm_head": (False,),
        "norm_softmax": (False,),
        "score_function": ("sigmoid",),
        "use_bias": (False,),
        "use_qk_norm": (True,),
        "use_qkv_bias": (False,),
        "use_rmsnorm": (True,),
        "use_sliding_window": (False,),
        "using_split_qkv_in_self_attention": (False,),
    }
    sizes = (
        "head_dim",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "n_group",
        "topk_group",
    )
    optional: ClassVar[Mapping[str, Any]] = {
        "first_k_dense_replace": 0,
        "norm_topk_prob": None,
        "num_mtp_layers": 0,
        "routed_scaling_factor": None,
        "use_qk_norm": True,
    }

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        family = cls.facts.family
        partial = positive(family, config, "partial_rotary_factor", float)
        names = {
            "n_routed_experts": positive(family, config, "num_experts"),
            "n_shared_experts": positive(family, config, "num_shared_experts"),
            "rope_parameters": {**rope_fields(family, config), "partial_rotary_factor": partial},
            "routed_scaling_factor": positive(family, config, "routed_scaling_factor", float),
            # The reference normalizes by this and ignores its own flag.
            "norm_topk_prob": positive(family, config, "num_experts_per_tok") > 1,
        }
        native = super().native_config({**config, **names})
        groups = native.n_group, native.topk_group
        check_experts(family, native.n_routed_experts, native.num_experts_per_tok, *groups)
        return native

    @classmethod
    def layout(cls, native: Weights, config: PreTrainedConfig) -> Layout:
        layout = rename(split_experts(super().layout(native, config)), ORIGINAL_NAMES)
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            projections = (layout.pop(f"{prefix}self_attn.{name}_proj.weight") for name in "qkv")
            layout[f"{prefix}attention.query_key_value.weight"] = sum(projections, ())
            if layer >= config.first_k_dense_replace:
                bias = layout.pop(f"{prefix}mlp.gate.e_score_correction_bias")
                layout[f"{prefix}mlp.gate.expert_bias"] = bias
        return layout
