"""LLaDA (model_type `llada`) on `LlamaForCausalLM`: fully bidirectional, logits at their own position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedConfig

from twotemp.errors import UserError
from twotemp.models.native import bidirectional_config, check_fixed, positive
from twotemp.models.token_ids import Facts, PublishedIds, resolve
from twotemp.models.transformer import Transformer
from twotemp.models.weight_loading import Layout, Weights, rename

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
    token_ids = resolve(kind.facts, native.vocab_size, config, tokenizer)
    return kind(module, config, token_ids, tokenizer, name)
