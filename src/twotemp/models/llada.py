"""LLaDA on `LlamaForCausalLM`, LLaDA-MoE on Qwen3-MoE and LLaDA 2 on `Glm4MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from transformers import Glm4MoeForCausalLM, LlamaForCausalLM, PreTrainedConfig

from twotemp.errors import UserError
from twotemp.models.native import (
    AllowedValues,
    Native,
    OnQwen3Moe,
    bidirectional_config,
    check_experts,
    check_fixed,
    positive,
    rope_fields,
)
from twotemp.models.token_ids import Facts, PublishedIds, resolve_token_ids
from twotemp.models.transformer import Transformer
from twotemp.models.weight_loading import Layout, Weights, rename, split_experts

# Two different `ff_out`: the block's is the down projection, the top level's is the head.
# `ff_proj` is the gate (the side that goes through silu). Rotary halves need no permutation.
ORIGINAL_NAMES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "model.layers.{}.input_layernorm": "model.transformer.blocks.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "model.transformer.blocks.{}.q_proj",
    "model.layers.{}.self_attn.k_proj": "model.transformer.blocks.{}.k_proj",
    "model.layers.{}.self_attn.v_proj": "model.transformer.blocks.{}.v_proj",
    "model.layers.{}.self_attn.o_proj": "model.transformer.blocks.{}.attn_out",
    "model.layers.{}.post_attention_layernorm": "model.transformer.blocks.{}.ff_norm",
    "model.layers.{}.mlp.gate_proj": "model.transformer.blocks.{}.ff_proj",
    "model.layers.{}.mlp.up_proj": "model.transformer.blocks.{}.up_proj",
    "model.layers.{}.mlp.down_proj": "model.transformer.blocks.{}.ff_out",
}

FIXED: dict[str, tuple[Any, ...]] = {
    "activation_type": ("silu",),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "block_type": ("llama",),
    "include_bias": (False,),
    "input_emb_norm": (False,),
    "layer_norm_type": ("rms",),
    "multi_query_attention": (None, False),
    "rope": (True,),
    "scale_logits": (False,),
}


class Llama(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """Llama whose biases, if any, are on queries, keys and values only; the native class also has an output bias."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        for layer in self.model.layers:
            layer.self_attn.o_proj.bias = None


class LLaDA(Transformer):
    """LLaDA (model_type `llada`): fully bidirectional, logits at their own position."""

    native = Llama
    head = "model.transformer.ff_out.weight"
    facts = Facts(
        "llada",
        end_tokens=("<|endoftext|>", "<|eot_id|>"),
        published=PublishedIds((126_464,), mask_id=126_336, eos_ids=(126_081, 126_348), tokens=126_349),
    )

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        family = cls.facts.family
        check_fixed(family, config, FIXED)
        heads, width = (positive(family, config, field) for field in ("n_heads", "d_model"))
        present = {field: value for field, value in config.items() if value is not None}
        config = {"n_kv_heads": heads, "embedding_size": config.get("vocab_size"), **present}
        if "mlp_hidden_size" not in config:
            config["mlp_hidden_size"] = width * positive(family, config, "mlp_ratio")
        kv_heads = positive(family, config, "n_kv_heads")
        if width % heads or heads % kv_heads:
            raise UserError(
                f"llada config.json: d_model={width} must be a multiple of n_heads={heads}, "
                f"and n_heads of n_kv_heads={kv_heads}"
            )
        return bidirectional_config(
            cls,
            vocab_size=positive(family, config, "embedding_size"),
            hidden_size=width,
            intermediate_size=positive(family, config, "mlp_hidden_size"),
            num_hidden_layers=positive(family, config, "n_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=positive(family, config, "max_sequence_length"),
            rms_norm_eps=positive(family, config, "rms_norm_eps", float),
            rope_parameters={
                "rope_type": "default",
                "rope_theta": positive(family, config, "rope_theta", float),
            },
            attention_bias=bool(config.get("include_qkv_bias", False)),
            initializer_range=positive(family, {"init_std": 0.02, **config}, "init_std", float),
            tie_word_embeddings=bool(config.get("weight_tying", False)),
        )

    @classmethod
    def layout(cls, native: Weights, config: PreTrainedConfig) -> Layout:
        return rename(super().layout(native, config), ORIGINAL_NAMES)


class UniformLLaDA(LLaDA):
    """The same network for tokens that are replaced by random ones instead of masked, as in `tiny-uniform`."""

    facts = Facts("llada-uniform", end_tokens=LLaDA.facts.end_tokens, masks=False)


class LLaDAMoE(OnQwen3Moe):
    """LLaDA-MoE (architectures `LLaDAMoEModel...`, model_type `llada` like the dense one): bidirectional.

    The router takes a softmax over all experts and leaves the weights of the chosen ones as they are.
    """

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


LLADA2_NAMES = {
    "model.embed_tokens": "model.word_embeddings",
    "model.layers.{}.self_attn.o_proj": "model.layers.{}.attention.dense",
    "model.layers.{}.self_attn.q_norm": "model.layers.{}.attention.query_layernorm",
    "model.layers.{}.self_attn.k_norm": "model.layers.{}.attention.key_layernorm",
}


class LLaDA2(Native):
    """LLaDA 2 (model_type `llada2_moe`): block-causal, a mixture of experts.

    The router is the native one: sigmoid scores, groups ranked by the sum of their two best biased scores, the bias
    used for selection only, weights normalized and scaled.
    """

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
    sizes = tuple(
        "head_dim moe_intermediate_size n_routed_experts n_shared_experts num_experts_per_tok n_group "
        "topk_group".split()
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
        layout = rename(split_experts(super().layout(native, config)), LLADA2_NAMES)
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            projections = (layout.pop(f"{prefix}self_attn.{name}_proj.weight") for name in "qkv")
            layout[f"{prefix}attention.query_key_value.weight"] = sum(projections, ())
            if layer >= config.first_k_dense_replace:
                bias = layout.pop(f"{prefix}mlp.gate.e_score_correction_bias")
                layout[f"{prefix}mlp.gate.expert_bias"] = bias
        return layout


def new(
    config: Mapping[str, Any],
    tokenizer: Any = None,
    *,
    seed: int = 0,
    name: str = "new",
    masks: bool = True,
) -> LLaDA:
    """Return a newly initialized model of a LLaDA config, to be trained; the global generator is not used.

    Args:
        config: LLaDA's fields.
        tokenizer: Its tokenizer.
        seed: Of the weights.
        name: What the model is called.
        masks: False: its open positions hold random tokens.
    """
    kind = LLaDA if masks else UniformLLaDA
    config = {"model_type": kind.facts.family, "architectures": ["LLaDAModelLM"], **config}
    native = kind.native_config(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Llama(native)
    token_ids = resolve_token_ids(kind.facts, native.vocab_size, config, tokenizer)
    return kind(module, config, token_ids, tokenizer, name)
