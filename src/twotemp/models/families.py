"""The model families, and which of them loads a checkpoint, by what its config.json names.

A family whose network is a native class with another attention mask is defined here; one whose names, sizes or
tensors have to be mapped has its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from twotemp.errors import UserError, unknown
from twotemp.models import masked_lm
from twotemp.models.diffusion_gemma import DiffusionGemma
from twotemp.models.llada import LLaDA, LLaDA2, LLaDAMoE, UniformLLaDA
from twotemp.models.masked_lm import MaskedLM
from twotemp.models.native import AllowedValues, OnLlama, OnQwen2, OnQwen3, OnQwen3Moe
from twotemp.models.token_ids import Facts, PublishedIds
from twotemp.models.transformer import Transformer

_QWEN_ENDS = ("<|endoftext|>", "<|im_end|>")


def _qwen_facts(family: str, sizes: tuple[int, ...], mask_id: int, **others: Any) -> Facts:
    """Return the facts of a family with Qwen's tokenizer and the mask as its last token; see `PublishedIds`."""
    published = PublishedIds(sizes, mask_id=mask_id, eos_ids=(151_643, 151_645), tokens=mask_id + 1)
    return Facts(family, end_tokens=_QWEN_ENDS, published=published, **others)


class Dream(OnQwen2):
    """Fully bidirectional, trained with a shift; also Dream-Coder and DiffuCoder."""

    facts = _qwen_facts("Dream", (152_064,), mask_id=151_666)
    lookback = 1

    @classmethod
    def native_config(cls, config: Mapping[str, Any]) -> PreTrainedConfig:
        if config.get("block_size"):
            raise UserError(
                "this is DreamReasoner, a Dream by model_type only: a Qwen3 network, block-causal and without the "
                "shift, which is not supported"
            )
        return super().native_config(config)


class FastDLLM(OnQwen2):
    """Fast-dLLM v2: block-causal, with the shift of the autoregressive model it was made from.

    The first position of a block is predicted by the last one before it, which sees only what is finished. The
    published sampler always commits that one first; ours commits it like any other.
    """

    facts = _qwen_facts(
        "Fast_dLLM_Qwen", (151_936, 152_064), mask_id=151_665, blocks="always", block_field="bd_size"
    )
    lookback = 1


class RND1(OnQwen3Moe):
    """Fully bidirectional, with the shift of the autoregressive model it was made from."""

    facts = _qwen_facts("rnd1", (151_936,), mask_id=151_669)
    lookback = 1


class SDAR(OnQwen3):
    """Block-causal; also TraDo. The published 1.7B config has neither mask id nor block size; the -b8 ... -b64
    checkpoints differ from this default only in their block size."""

    facts = Facts(
        "sdar",
        end_tokens=_QWEN_ENDS,
        published=replace(RND1.facts.published, block_size=4),
        blocks="always",
    )


class SDARMoE(OnQwen3Moe):
    facts = replace(SDAR.facts, family="sdar_moe")


class StableDiffCoder(OnLlama):
    """Block-causal; its model_type is `llama`, so it is recognized by its `architectures`."""

    facts = Facts(
        "stable-diffcoder",
        end_tokens=("<[end▁of▁sentence]>",),
        published=PublishedIds((155_136,), mask_id=5, eos_ids=(2,), block_size=4),
        blocks="always",
    )
    completes_blocks = False


class ILLaDA(OnLlama):
    """Fully bidirectional, and trained on answers of any length: a row ends with the block being written.

    The mask is in neither its config nor its tokenizer.
    """

    facts = Facts(
        "illada",
        end_tokens=StableDiffCoder.facts.end_tokens,
        published=replace(StableDiffCoder.facts.published, block_size=None),
    )
    fixed: ClassVar[AllowedValues] = {**OnLlama.fixed, "layer_norm_eps": (None,)}
    rope_types = ("default",)
    extends = True


class CoDA(OnQwen3):
    """Fully bidirectional, with the shift of the autoregressive model it was made from."""

    facts = _qwen_facts("CoDA", (151_936,), mask_id=151_669)
    lookback = 1


class DQwen3(OnQwen3):
    """As CoDA, but its code puts `<|vision_start|>` before every row, and `<|fim_middle|>` is the mask."""

    facts = Facts(
        "diffuqwen3",
        end_tokens=_QWEN_ENDS,
        published=PublishedIds(
            (151_936,), mask_id=151_660, eos_ids=(151_643, 151_645), tokens=151_669, first_id=151_652
        ),
    )
    lookback = 1


class A2DQwen3(OnQwen3):
    """dllm's A2D: an autoregressive model continued as a diffusion one, without a shift.

    MDLM (bidirectional) and BD3LM (block-causal) training write the same config.json. Which one it was has to be
    passed: `block_size=32` for BD3LM as published, `block_size=0` for MDLM.
    """

    facts = Facts("a2d-qwen3", end_tokens=_QWEN_ENDS, blocks="either")
    completes_blocks = False
    # Qwen3's template then starts the answer with an empty thinking section.
    template_options: Mapping[str, bool] = {"enable_thinking": False}


class A2DQwen2(OnQwen2):
    facts = replace(A2DQwen3.facts, family="a2d-qwen2")
    completes_blocks = False
    template_options = A2DQwen3.template_options


class A2DLlama(OnLlama):
    facts = replace(A2DQwen3.facts, family="a2d-llama", end_tokens=("<|end_of_text|>", "<|eot_id|>"))
    completes_blocks = False


# By one of the `architectures` of config.json, else by its `model_type`.
FAMILIES: dict[str, type[Transformer]] = {
    "llada": LLaDA,
    "llada-uniform": UniformLLaDA,
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
    "illada": ILLaDA,
    "CoDA": CoDA,
    "diffuqwen3": DQwen3,
    "diffusion_gemma": DiffusionGemma,
}
_CAUSAL = "its attention is causal and drafts are verified: it is not sampled by unmasking"
_UNSEEN = (
    "its authors' code was not available, so neither its config.json nor its attention could be compared; with its "
    "modeling_edlm.py and config.json it can become a family (docs/models.md)"
)
_SEEDED = (
    "what is final is read causally, and the first token of every block is written autoregressively and only the "
    "others by unmasking, which no policy here does"
)
# Models that look like masked diffusion LMs but are sampled differently, or were never compared with their code.
REFUSED = {
    "EfficientDLM": f"Efficient-DLM: {_UNSEEN}",
    "edlm": f"Efficient-DLM: {_UNSEEN}",
    "wedlm": f"WeDLM: {_CAUSAL}",
    "idlm": f"I-DLM: {_CAUSAL}",
    "nemotron_labs_diffusion": f"Nemotron-Labs-Diffusion: {_SEEDED}",
}


def family(config: Mapping[str, Any]) -> type[Transformer] | type[MaskedLM]:
    """Return the class that loads a checkpoint with this config.json; a UserError if there is none."""
    model_type, named = str(config.get("model_type")), config.get("architectures") or []
    for name in map(str, [*(named if isinstance(named, list) else [named]), model_type]):
        if name in FAMILIES:
            return FAMILIES[name]
        for other, reason in REFUSED.items():
            if name.lower().replace("_", "").startswith(other.lower().replace("_", "")):
                raise UserError(f"{name} cannot be loaded: {reason}")
    if model_type in masked_lm.TYPES:
        return MaskedLM
    raise unknown("model family (model_type in config.json)", model_type, [*FAMILIES, *masked_lm.TYPES])
