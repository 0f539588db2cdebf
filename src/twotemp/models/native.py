"""The native `transformers` classes families run on: what of a config.json they take, and what they cannot represent.

A family on one of these is its facts, and what is peculiar about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from twotemp.errors import UserError
from twotemp.models.filling import Layout, Weights, split_experts
from twotemp.models.transformer import Transformer

Fixed = Mapping[str, tuple[Any, ...]]


class OnQwen2(Transformer):
    """Biases on queries, keys and values."""

    native = Qwen2ForCausalLM
    fixed: ClassVar[Fixed] = {
        "hidden_act": ("silu",),
        "use_mrope": (False,),
        "use_sliding_window": (False,),
    }

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, cls.fixed)
        return bidirectional(Qwen2Config(**common_fields(cls.facts.family, config)))


class OnQwen3(Transformer):
    """No biases; queries and keys are normalised, head by head."""

    native = Qwen3ForCausalLM
    fixed: ClassVar[Fixed] = {**OnQwen2.fixed, "attention_bias": (False,)}

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, cls.fixed)
        fields = common_fields(cls.facts.family, config)
        # Not hidden_size / heads in SDAR-4B, so it has to be said.
        return bidirectional(Qwen3Config(**fields, head_dim=positive(cls.facts.family, config, "head_dim")))


class OnQwen3Moe(Transformer):
    """The same with a mixture of experts in every layer: softmax over all, the best k, their weights as they are or
    normalised to sum to 1."""

    native = Qwen3MoeForCausalLM
    fixed: ClassVar[Fixed] = {**OnQwen3.fixed, "decoder_sparse_step": (1,), "mlp_only_layers": (None, [])}

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, cls.fixed)
        sizes = ("head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size")
        return bidirectional(
            Qwen3MoeConfig(
                **common_fields(cls.facts.family, config),
                **{size: positive(cls.facts.family, config, size) for size in sizes},
                norm_topk_prob=bool(config.get("norm_topk_prob", False)),
            )
        )

    @classmethod
    def layout(cls, native: Weights, config: PreTrainedConfig) -> Layout:
        return split_experts(super().layout(native, config))


class OnLlama(Transformer):
    native = LlamaForCausalLM
    fixed: ClassVar[Fixed] = {
        "attention_bias": (False,),
        "hidden_act": ("silu",),
        "mlp_bias": (False,),
        "pretraining_tp": (1,),
    }

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, cls.fixed)
        fields = common_fields(cls.facts.family, config, ("default", "llama3"))
        return bidirectional(LlamaConfig(**fields, head_dim=config.get("head_dim")))


def bidirectional(config: PreTrainedConfig) -> PreTrainedConfig:
    """Turn a native decoder's causal default off; every mask is then ours, passed explicitly.

    No family passes its `pad_token_id` on: it would freeze that row of the embedding in training, and pad = EOS.
    """
    config.is_causal = False
    config._attn_implementation = "sdpa"  # the one that takes boolean masks
    return config


def check_fixed(family: str, config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse config values that change the arithmetic in ways the native class does not have."""
    for field, values in allowed.items():
        if field in config and config[field] not in values:
            raise UserError(
                f"{family} config.json: {field}={config[field]!r} is not supported (only "
                f"{' or '.join(repr(value) for value in values)}); this is another architecture"
            )


def positive(family: str, config: Mapping[str, Any], field: str, kind: type = int) -> Any:
    """A number > 0 that must be in the config; `kind` float accepts integers too."""
    value = config.get(field)
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted) or not value > 0:
        found = "is missing" if field not in config else f"is {value!r}"
        raise UserError(
            f"{family} config.json: {field} {found}; it must be a positive {kind.__name__} "
            "(take config.json from the published checkpoint)"
        )
    return kind(value)


def common_fields(
    family: str, config: Mapping[str, Any], rope_types: tuple[str, ...] = ("default",)
) -> dict[str, Any]:
    """The fields that all these classes spell alike."""
    integers = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    )
    fields: dict[str, Any] = {field: positive(family, config, field) for field in integers}
    if fields["num_attention_heads"] % fields["num_key_value_heads"]:
        raise UserError(
            f"{family} config.json: num_attention_heads must be a multiple of num_key_value_heads"
        )
    # transformers 4 wrote two fields about rotary positions, 5 writes one.
    newer = config.get("rope_parameters") or {}
    theta = positive(family, newer if "rope_theta" in newer else config, "rope_theta", float)
    rope = {"rope_type": "default", **(config.get("rope_scaling") or {}), **newer, "rope_theta": theta}
    if rope.get("type", rope["rope_type"]) not in rope_types:
        raise UserError(f"{family} config.json: rope_scaling is of a kind that is not supported: {rope}")
    return fields | {
        "rms_norm_eps": positive(family, config, "rms_norm_eps", float),
        "rope_parameters": rope,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
    }
