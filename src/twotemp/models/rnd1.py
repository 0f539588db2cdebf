"""RND1 (model_type `rnd1`) on Qwen3-MoE: fully bidirectional, with the shift of the model it was made of."""

from __future__ import annotations

from twotemp.models.native import OnQwen3Moe
from twotemp.models.special import Facts, Published


class RND1(OnQwen3Moe):
    facts = Facts(
        "rnd1",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published((151_936,), mask_id=151_669, eos_ids=(151_643, 151_645), tokens=151_670),
    )
    lookback = 1
