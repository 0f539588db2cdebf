"""SDAR (model_type `sdar`, TraDo among them) on Qwen3 and SDAR-MoE (`sdar_moe`) on Qwen3-MoE: block-causal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twotemp.models.base import Message
from twotemp.models.native import OnQwen3, OnQwen3Moe
from twotemp.models.special import Facts, Published


class SDAR(OnQwen3):
    # Neither mask id nor block size is in the published 1.7B config; the -b8 ... -b64 checkpoints differ
    # from this default only in their block size.
    facts = Facts(
        "sdar",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published(
            (151_936,), mask_id=151_669, eos_ids=(151_643, 151_645), tokens=151_670, block_size=4
        ),
        blocks="always",
    )

    def chat(self, messages: Sequence[Message]) -> str:
        """ChatML with the empty thinking section of a direct answer."""
        return self.render(messages, enable_thinking=False)


class SDARMoE(OnQwen3Moe):
    facts = replace(SDAR.facts, family="sdar_moe")
    chat = SDAR.chat
