"""Which class loads a checkpoint, by what its config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twotemp.errors import UserError, unknown
from twotemp.models import masked_lm
from twotemp.models.a2d import A2DLlama, A2DQwen2, A2DQwen3
from twotemp.models.dream import Dream
from twotemp.models.efficient_dlm import EfficientDLM
from twotemp.models.fast_dllm import FastDLLM
from twotemp.models.llada import LLaDA
from twotemp.models.llada2 import LLaDA2
from twotemp.models.llada_moe import LLaDAMoE
from twotemp.models.masked_lm import MaskedLM
from twotemp.models.rnd1 import RND1
from twotemp.models.sdar import SDAR, SDARMoE
from twotemp.models.stable_diffcoder import StableDiffCoder
from twotemp.models.transformer import Transformer

# By what config.json names: one of its `architectures` where that is here, else its `model_type`.
FAMILIES: dict[str, type[Transformer]] = {
    "llada": LLaDA,
    "LLaDAMoEModel": LLaDAMoE,
    "LLaDAMoEModelLM": LLaDAMoE,
    "lladamoe": LLaDAMoE,
    "Dream": Dream,
    "sdar": SDAR,
    "sdar_moe": SDARMoE,
    "llada2_moe": LLaDA2,
    "Fast_dLLM_Qwen": FastDLLM,
    "StableDiffcoderForCausalLM": StableDiffCoder,
    "a2d-qwen3": A2DQwen3,
    "a2d-qwen2": A2DQwen2,
    "a2d-llama": A2DLlama,
    "rnd1": RND1,
    "EfficientDLM": EfficientDLM,
}
_CAUSAL = (
    "its positions see only what lies before them, and drafts are verified: it is not sampled by unmasking"
)
# What looks like a masked diffusion LM and is sampled by another process.
REFUSED = {
    "diffusion_gemma": "DiffusionGemma's noise is uniform (tokens are replaced by others): there is no mask to fill",
    "wedlm": f"WeDLM: {_CAUSAL}",
    "idlm": f"I-DLM: {_CAUSAL}",
}


def family(config: Mapping[str, Any]) -> type[Transformer] | type[MaskedLM]:
    """The class that loads a checkpoint with this config.json; a UserError where there is none."""
    model_type = str(config.get("model_type"))
    for name in (*(config.get("architectures") or ()), model_type):
        if name in FAMILIES:
            return FAMILIES[name]
        for other, reason in REFUSED.items():
            if name.lower().replace("_", "").startswith(other.replace("_", "")):
                raise UserError(f"{name} cannot be loaded: {reason}")
    if model_type in masked_lm.TYPES:
        return MaskedLM
    raise unknown("model family (model_type in config.json)", model_type, [*FAMILIES, *masked_lm.TYPES])
