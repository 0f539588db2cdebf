"""Dream (model_type `Dream`) on `Qwen2ForCausalLM`: fully bidirectional, trained with a shift.

The network's row i predicts position i + 1. The shift is undone here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, Qwen2Config, Qwen2ForCausalLM

from twotemp.errors import UserError
from twotemp.models.special import Facts, Published
from twotemp.models.transformer import Transformer, bidirectional, check_fixed, qwen_fields

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_mrope": (False,),
    "use_sliding_window": (False,),
}


class Dream(Transformer):
    native = Qwen2ForCausalLM
    facts = Facts(
        "Dream",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published((152_064,), mask_id=151_666, eos_ids=(151_643, 151_645), tokens=151_667),
    )
    lookback = 1

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        check_fixed(cls.facts.family, config, FIXED)
        return bidirectional(Qwen2Config(**qwen_fields(cls.facts.family, config)))

    def chat(self, prompt: str) -> str:
        """ChatML, after the beginning-of-text token as in the authors' evaluation (`add_bos_token=true`)."""
        return (self.tokenizer.bos_token or "") + super().chat(prompt)

    def _sources(self, want: Tensor, positions: Tensor) -> Tensor:
        """Row i - 1 predicts position i, so the entry before a wanted one must hold the position before."""
        if want.dtype != torch.bool:  # the engine's, which has checked its requests
            return want - 1
        follows = torch.zeros_like(want)
        follows[:, 1:] = positions[:, 1:] == positions[:, :-1] + 1
        if bool((want & ~follows).any()):
            raise UserError(
                "Dream predicts a token from the one before it, so the first position of a row cannot be "
                "predicted; start the row with a given token (a window: one position earlier)"
            )
        return want.flatten().nonzero()[:, 0] - 1
