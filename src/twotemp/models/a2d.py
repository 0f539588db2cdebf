"""dllm's A2D: an autoregressive model continued as a diffusion one, on its own native class, without a shift.

One config.json stands for two kinds of training, MDLM (bidirectional) and BD3LM (block-causal). Which one it was has
to be said: `block_size=32` for BD3LM as published, `block_size=0` for MDLM.
"""

from __future__ import annotations

from dataclasses import replace

from twotemp.models.native import OnLlama, OnQwen2, OnQwen3
from twotemp.models.special import Facts

_QWEN = Facts("a2d-qwen3", end_tokens=("<|endoftext|>", "<|im_end|>"), blocks="either")


class A2DQwen3(OnQwen3):
    facts = _QWEN


class A2DQwen2(OnQwen2):
    facts = replace(_QWEN, family="a2d-qwen2")


class A2DLlama(OnLlama):
    facts = replace(_QWEN, family="a2d-llama", end_tokens=("<|end_of_text|>", "<|eot_id|>"))
