"""Efficient-DLM (architecture `EfficientDLM`, model_type `qwen3`) on Qwen3: block-causal, no shift.

From the model card and the report only; its modelling code was not at hand. Weights in another layout are refused.
"""

from __future__ import annotations

from twotemp.models.native import OnQwen3
from twotemp.models.special import Facts, Published


class EfficientDLM(OnQwen3):
    facts = Facts(
        "efficient-dlm",
        end_tokens=("<|endoftext|>", "<|im_end|>"),
        published=Published((151_936,), mask_id=151_662, eos_ids=(151_643, 151_645), block_size=32),
        blocks="always",
    )
