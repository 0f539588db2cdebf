"""LLaDA-MoE (architectures `LLaDAMoEModel...`, model_type `llada` like the dense one) on Qwen3-MoE: bidirectional.

The router takes a softmax over all experts and leaves the weights of the chosen ones as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from twotemp.errors import UserError
from twotemp.models.native import AllowedValues, OnQwen3Moe, positive
from twotemp.models.token_ids import Facts, PublishedIds


class LLaDAMoE(OnQwen3Moe):
    facts = Facts(
        "llada-moe",
        end_tokens=("<|endoftext|>", "<|role_end|>"),
        published=PublishedIds((157_184,), mask_id=156_895, eos_ids=(156_892,)),
    )
    fixed: ClassVar[AllowedValues] = {
        **OnQwen3Moe.fixed,
        "clip_qkv": (None,),
        "moe_router_enable_expert_bias": (False, None),
        "moe_router_score_function": ("softmax", None),
        "partial_rotary_factor": (1,),
        "qk_layernorm": (True,),
        "shared_expert_intermediate_size": (None,),
    }

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        family = cls.facts.family
        if 0 in (config.get("moe_layer_freq") or ()):
            raise UserError(f"{family} config.json: moe_layer_freq has dense layers, which is not supported")
        width, heads, experts = (
            positive(family, config, field)
            for field in ("hidden_size", "num_attention_heads", "expert_intermediate_size")
        )
        names = {
            "head_dim": width // heads,
            "num_key_value_heads": config.get("num_key_value_heads"),
            "moe_intermediate_size": experts,
            "intermediate_size": config.get("dense_intermediate_size") or experts,
            "norm_topk_prob": False,  # as in the reference, whatever the config says
        }
        return super().native_config({**config, **names})
