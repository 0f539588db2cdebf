"""Stable-DiffCoder (model_type `llama`, known by its `architectures`) on Llama: block-causal."""

from __future__ import annotations

from twotemp.models.native import OnLlama
from twotemp.models.special import Facts, Published


class StableDiffCoder(OnLlama):
    facts = Facts(
        "stable-diffcoder",
        end_tokens=("<[end▁of▁sentence]>",),
        published=Published((155_136,), mask_id=5, eos_ids=(2,), block_size=4),
        blocks="always",
    )
