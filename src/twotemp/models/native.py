"""The native `transformers` classes that families run on: how a config.json maps to them, and what they cannot
represent.

A family on one of these consists of its `Facts` and its differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    LlamaForCausalLM,
    PreTrainedConfig,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)

from twotemp.errors import UserError
from twotemp.models.transformer import Transformer
from twotemp.models.weight_loading import Layout, Weights, split_experts
from twotemp.records import LARGEST_INTEGER

TAKE_PUBLISHED = "take config.json from the published checkpoint"
AllowedValues = Mapping[str, tuple[Any, ...]]
# Fields that all these classes spell alike.
SIZES = tuple(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "max_position_embeddings".split()
)


class Native(Transformer):
    """A family whose config.json uses the native class's names."""

    fixed: ClassVar[AllowedValues]  # fields whose other values would be another architecture
    sizes: ClassVar[tuple[str, ...]] = ()  # besides the common ones
    optional: ClassVar[Mapping[str, Any]] = {}  # fields that may be left out, and their defaults
    rope_types: ClassVar[tuple[str, ...]] = ("default",)

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        family = cls.facts.family
        check_fixed(family, config, cls.fixed)
        own = {size: positive(family, config, size) for size in cls.sizes}
        own |= {field: config.get(field, default) for field, default in cls.optional.items()}
        return bidirectional_config(cls, **common_fields(family, config, cls.rope_types), **own)


class OnQwen2(Native):
    """Biases on queries, keys and values."""

    native = Qwen2ForCausalLM
    fixed: ClassVar[AllowedValues] = {
        "hidden_act": ("silu",),
        "use_mrope": (False,),
        "use_sliding_window": (False,),
    }


class OnQwen3(Native):
    """No biases; queries and keys are normalized, head by head."""

    native = Qwen3ForCausalLM
    fixed: ClassVar[AllowedValues] = {**OnQwen2.fixed, "attention_bias": (False,)}
    sizes = ("head_dim",)  # differs from hidden_size / heads in SDAR-4B


class OnQwen3Moe(Native):
    """Qwen3 with a mixture of experts in every layer: softmax over all, then the best k, normalized or not."""

    native = Qwen3MoeForCausalLM
    fixed: ClassVar[AllowedValues] = {
        **OnQwen3.fixed,
        "decoder_sparse_step": (1,),
        "mlp_only_layers": (None, []),
    }
    sizes = ("head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    optional: ClassVar[Mapping[str, Any]] = {"norm_topk_prob": False}

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        native = super().native_config(config)
        check_experts(cls.facts.family, native.num_experts, native.num_experts_per_tok)
        return native

    @classmethod
    def layout(cls, native: Weights, config: PreTrainedConfig) -> Layout:
        return split_experts(super().layout(native, config))


class OnLlama(Native):
    native = LlamaForCausalLM
    fixed: ClassVar[AllowedValues] = {
        "attention_bias": (False,),
        "hidden_act": ("silu",),
        "mlp_bias": (False,),
        "pretraining_tp": (1,),
    }
    optional: ClassVar[Mapping[str, Any]] = {"head_dim": None}
    rope_types: ClassVar[tuple[str, ...]] = ("default", "llama3")


def bidirectional_config(cls: type[Transformer], **fields: Any) -> PreTrainedConfig:
    """Return the native class's config without its causal default: every mask is passed explicitly.

    No family passes its `pad_token_id` on: it would freeze that row of the embedding in training, and pad = EOS.
    """
    kind: Any = cls.native.config_class
    try:
        config: PreTrainedConfig = kind(**fields)
    except (StrictDataclassError, KeyError, TypeError, ValueError) as error:  # its own checks
        raise UserError(
            f"{cls.facts.family} config.json: {' '.join(str(error).split())}; {TAKE_PUBLISHED}"
        ) from error
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotated = int(width * config.rope_parameters.get("partial_rotary_factor", 1))
    if rotated < 2 or rotated % 2:
        raise UserError(
            f"{cls.facts.family} config.json: {rotated} of a head's {width} dimensions would be rotated, which must "
            f"be an even number; {TAKE_PUBLISHED}"
        )
    config.is_causal = False
    config._attn_implementation = "sdpa"  # the one that takes boolean masks
    return config


def check_experts(family: str, experts: int, chosen: int, groups: int = 1, kept: int = 1) -> None:
    """Raise a UserError unless a router can choose this many experts from this many kept groups."""
    if experts % groups or kept > groups or chosen > kept * (experts // groups):
        raise UserError(
            f"{family} config.json: {chosen} of {experts} experts (in {kept} of {groups} groups) cannot be chosen; "
            f"{TAKE_PUBLISHED}"
        )


def check_fixed(family: str, config: Mapping[str, Any], allowed: AllowedValues) -> None:
    """Raise a UserError for config values that the native class cannot represent."""
    for field, values in allowed.items():
        if field in config and config[field] not in values:
            raise UserError(
                f"{family} config.json: {field}={config[field]!r} is not supported (only "
                f"{' or '.join(repr(value) for value in values)}); this is another architecture"
            )


def positive(family: str, config: Mapping[str, Any], field: str, kind: type = int) -> Any:
    """Return a required number > 0 of the config, of a size that tensors can have; `kind` float accepts integers."""
    value = config.get(field)
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted) or not 0 < value <= LARGEST_INTEGER:
        problem = "is missing" if field not in config else f"is {value!r:.40}"
        raise UserError(
            f"{family} config.json: {field} {problem}; it must be a positive {kind.__name__} ({TAKE_PUBLISHED})"
        )
    return kind(value)


def common_fields(
    family: str, config: Mapping[str, Any], rope_types: tuple[str, ...] = ("default",)
) -> dict[str, Any]:
    """Return the fields that all these classes spell alike."""
    if "num_key_value_heads" in config and config["num_key_value_heads"] is None:  # as many as heads
        config = {**config, "num_key_value_heads": config.get("num_attention_heads")}
    fields: dict[str, Any] = {field: positive(family, config, field) for field in SIZES}
    if fields["num_attention_heads"] % fields["num_key_value_heads"]:
        raise UserError(
            f"{family} config.json: num_attention_heads must be a multiple of num_key_value_heads"
        )
    return fields | {
        "rms_norm_eps": positive(family, config, "rms_norm_eps", float),
        "rope_parameters": rope_fields(family, config, rope_types),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
    }


def rope_fields(
    family: str, config: Mapping[str, Any], types: tuple[str, ...] = ("default",)
) -> dict[str, Any]:
    """Return the parameters of rotary positions, of which transformers 4 wrote two fields and 5 writes one."""
    older, newer = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    if isinstance(older, Mapping) and isinstance(newer, Mapping):
        theta = positive(family, newer if "rope_theta" in newer else config, "rope_theta", float)
        rope = {"rope_type": "default", **older, **newer, "rope_theta": theta}
        if rope.get("type", rope["rope_type"]) in types:
            return rope
    raise UserError(
        f"{family} config.json: rope_scaling is of a kind that is not supported: {older or newer!r} (only "
        f"{' or '.join(types)}); {TAKE_PUBLISHED}"
    )
