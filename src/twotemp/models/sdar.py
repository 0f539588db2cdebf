"""SDAR (model_type `sdar`) on `Qwen3ForCausalLM`: block-causal, logits at their own position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig, Qwen3Config, Qwen3ForCausalLM

from twotemp.models.special import Facts, Published
from twotemp.models.transformer import Transformer, bidirectional, check_fixed, positive, qwen_fields

FIXED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False,),
}


class SDAR(Transformer):
    native = Qwen3ForCausalLM
    # Neither mask id nor block size is in the published 1.7B config; the -b8 ... -b64 checkpoints differ
    # from this default only in their block size.
    facts = Facts(
        "sdar",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published(
            (151_936,), mask_id=151_669, eos_ids=(151_643, 151_645), tokens=151_670, block_size=4
        ),
        block_causal=True,
    )

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, FIXED)
        head_dim = positive(cls.facts.family, config, "head_dim")  # not hidden_size / heads in the 4B model
        return bidirectional(Qwen3Config(**qwen_fields(cls.facts.family, config), head_dim=head_dim))

    def chat(self, prompt: str) -> str:
        """ChatML with the empty thinking section of a direct answer."""
        return self.render(prompt, enable_thinking=False)
