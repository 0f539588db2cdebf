"""Dream (model_type `Dream`) on Qwen2: fully bidirectional, trained with a shift. Dream-Coder and DiffuCoder too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedConfig

from twotemp.errors import UserError
from twotemp.models.base import Message
from twotemp.models.native import OnQwen2
from twotemp.models.special import Facts, Published


class Dream(OnQwen2):
    facts = Facts(
        "Dream",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published((152_064,), mask_id=151_666, eos_ids=(151_643, 151_645), tokens=151_667),
    )
    lookback = 1

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        if config.get("block_size"):
            raise UserError(
                "this is DreamReasoner, a Dream by model_type only: a Qwen3 network, block-causal and without the "
                "shift, which is not supported"
            )
        return super().native_config(config)

    def chat(self, messages: Sequence[Message]) -> str:
        """ChatML, after the beginning-of-text token as in the authors' evaluation (`add_bos_token=true`)."""
        return (self._tokenizer("render a chat").bos_token or "") + super().chat(messages)
