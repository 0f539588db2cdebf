"""Fast-dLLM v2 (model_type `Fast_dLLM_Qwen`) on Qwen2.5: block-causal, with the shift of its origin.

The first position of a block is predicted by the last one before it, which sees only what is finished. The published
sampler always commits that one first; ours commits it like any other.
"""

from __future__ import annotations

from twotemp.models.native import OnQwen2
from twotemp.models.special import Facts, Published


class FastDLLM(OnQwen2):
    facts = Facts(
        "Fast_dLLM_Qwen",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published((151_936, 152_064), mask_id=151_665, eos_ids=(151_643, 151_645), tokens=151_666),
        blocks="always",
        block_field="bd_size",
    )
    lookback = 1
