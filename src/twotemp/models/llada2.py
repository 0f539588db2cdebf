"""LLaDA 2 (model_type `llada2_moe`) on `Glm4MoeForCausalLM`: block-causal, a mixture of experts.

The router is the same function: sigmoid scores, groups ranked by the sum of their two best biased scores,
the bias used for selection only, weights normalised and scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedConfig

from twotemp.models.base import Message
from twotemp.models.filling import Layout, Weights, rename, split_experts
from twotemp.models.native import bidirectional, check_fixed, common_fields, positive
from twotemp.models.special import Facts, Published
from twotemp.models.transformer import Transformer

ORIGINAL_NAMES = {
    "model.embed_tokens": "model.word_embeddings",
    "model.layers.{}.self_attn.o_proj": "model.layers.{}.attention.dense",
    "model.layers.{}.self_attn.q_norm": "model.layers.{}.attention.query_layernorm",
    "model.layers.{}.self_attn.k_norm": "model.layers.{}.attention.key_layernorm",
}

FIXED: dict[str, tuple[Any, ...]] = {
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
ROLES = {"user": "HUMAN", "assistant": "ASSISTANT"}


class LLaDA2(Transformer):
    native = Glm4MoeForCausalLM
    facts = Facts(
        "llada2_moe",
        end_tokens=("<|endoftext|>", "<|role_end|>"),
        published=Published((157_184,), mask_id=156_895, eos_ids=(156_892,), block_size=32),
        blocks="always",
    )
    float32_weights = ("e_score_correction_bias",)  # rounding it changes which experts are chosen

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, FIXED)
        fields = common_fields(cls.facts.family, config)
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

    @property
    def has_chat(self) -> bool:
        return self.tokenizer is not None

    def chat(self, messages: Sequence[Message]) -> str:
        """The checkpoint's template, or where it ships none the format its authors' engine uses."""
        if super().has_chat:
            return super().chat(messages)
        said = [message["content"] + "\n" for message in messages if message["role"] == "system"]
        turns = [
            f"<role>{ROLES[message['role']]}</role>{message['content']}<|role_end|>"
            for message in messages
            if message["role"] != "system"
        ]
        system = f"<role>SYSTEM</role>{''.join(said)}detailed thinking off<|role_end|>"
        return f"{system}{''.join(turns)}<role>{ROLES['assistant']}</role>"
