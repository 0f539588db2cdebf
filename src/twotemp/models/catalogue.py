"""Published checkpoints by their hub ids: which family loads them, and what of it was checked.

`table()` is the table in docs/models.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twotemp.models.families import FAMILIES

# How much of a family was compared with its published code (tests/fixtures): random weights, float32, on a CPU.
TOKENS = "logits, tokens"
CHECKED = {
    "llada": TOKENS,
    "Dream": TOKENS,
    "sdar": TOKENS,
    "llada2_moe": TOKENS,
    "LLaDAMoEModelLM": TOKENS,
    "Fast_dLLM_Qwen": TOKENS,
    "StableDiffcoderForCausalLM": TOKENS,
    "a2d-qwen3": TOKENS,
    "a2d-qwen2": TOKENS,
    "a2d-llama": TOKENS,
    "rnd1": TOKENS,
    # Their own code was not to be found.
    "sdar_moe": "against Qwen3-MoE under the block mask",
    "EfficientDLM": "nothing",
}


@dataclass(frozen=True)
class Model:
    hub_id: str
    family: str  # as in `families.FAMILIES`
    block_size: int | None = None  # where it differs from the family's
    files: str = ""  # which of its own were seen: names and sizes of all weights agree with the index

    @property
    def mask_id(self) -> int | None:
        return FAMILIES[self.family].facts.published.mask_id

    @property
    def block(self) -> int | None:
        return self.block_size or FAMILIES[self.family].facts.published.block_size

    @property
    def shift(self) -> bool:
        return bool(FAMILIES[self.family].lookback)


MODELS = (
    Model("GSAI-ML/LLaDA-8B-Base", "llada"),
    Model("GSAI-ML/LLaDA-8B-Instruct", "llada", files="config.json, index"),
    Model("GSAI-ML/LLaDA-1.5", "llada"),
    Model("d3LLM/d3LLM_LLaDA", "llada"),
    Model("inclusionAI/LLaDA-MoE-7B-A1B-Base", "LLaDAMoEModelLM"),
    Model("inclusionAI/LLaDA-MoE-7B-A1B-Instruct", "LLaDAMoEModelLM"),
    Model("inclusionAI/LLaDA2.0-mini", "llada2_moe"),
    Model("inclusionAI/LLaDA2.1-mini", "llada2_moe"),
    Model("Dream-org/Dream-v0-Base-7B", "Dream"),
    Model("Dream-org/Dream-v0-Instruct-7B", "Dream", files="config.json, index"),
    Model("Dream-org/Dream-Coder-v0-Instruct-7B", "Dream"),
    Model("apple/DiffuCoder-7B-Instruct", "Dream"),
    Model("apple/DiffuCoder-7B-cpGRPO", "Dream"),
    Model("d3LLM/d3LLM_Dream", "Dream"),
    Model("JetLM/SDAR-1.7B-Chat", "sdar"),
    Model("JetLM/SDAR-4B-Chat", "sdar", files="config.json, index"),
    Model("JetLM/SDAR-8B-Chat", "sdar", files="config.json, index"),
    Model("JetLM/SDAR-8B-Chat-b32", "sdar", block_size=32),
    Model("JetLM/SDAR-30B-A3B-Chat", "sdar_moe"),
    Model("JetLM/SDAR-30B-A3B-Chat-b32", "sdar_moe", block_size=32),
    Model("Gen-Verse/TraDo-4B-Instruct", "sdar"),
    Model("Gen-Verse/TraDo-8B-Instruct", "sdar"),
    Model("Gen-Verse/TraDo-8B-Thinking", "sdar"),
    Model("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "Fast_dLLM_Qwen", block_size=32),
    Model(
        "Efficient-Large-Model/Fast_dLLM_v2_7B", "Fast_dLLM_Qwen", block_size=32, files="config.json, index"
    ),
    Model("ByteDance-Seed/Stable-DiffCoder-8B-Base", "StableDiffcoderForCausalLM"),
    Model("ByteDance-Seed/Stable-DiffCoder-8B-Instruct", "StableDiffcoderForCausalLM"),
    Model("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", "a2d-qwen3", block_size=0),
    Model("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1", "a2d-qwen3", block_size=32),
    Model("dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", "a2d-qwen2", block_size=0),
    Model("dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1", "a2d-qwen2", block_size=32),
    Model("radicalnumerics/RND1-Base-0910", "rnd1"),
    Model("nvidia/Efficient-DLM-4B", "EfficientDLM"),
    Model("nvidia/Efficient-DLM-8B", "EfficientDLM"),
)


def find(hub_id: str) -> Model | None:
    return next((model for model in MODELS if model.hub_id == hub_id), None)


def table() -> str:
    """One Markdown row for each model."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield "| hub id | family | mask id | shift | attention | family's code compared | own files seen |"
    yield "|---|---|---|---|---|---|---|"
    for model in MODELS:
        mask = "in its tokenizer" if model.mask_id is None else str(model.mask_id)
        attention = f"blocks of {model.block}" if model.block else "bidirectional"
        shift = "yes" if model.shift else "no"
        family, checked = FAMILIES[model.family].facts.family, CHECKED[model.family]
        yield f"| `{model.hub_id}` | {family} | {mask} | {shift} | {attention} | {checked} | {model.files} |"
