"""Published checkpoints by their hub ids: which family loads them, and what of it was checked.

`table()` is the table in docs/models.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from twotemp.models.families import FAMILIES

# What of every family was compared with its published code: random weights, float32, on a CPU (tests/fixtures).
COMPARED = "logits, tokens"
# The copy of the modelling code that is published for this very model was run, too: the same logits.
OWN_CODE = "its own copy of the code"


@dataclass(frozen=True)
class Model:
    hub_id: str
    family: str  # as in `families.FAMILIES`
    block_size: int | None = None  # where it differs from the family's
    # Which of its own files were seen and agree (of the index: names and total size of the weights).
    files: str = ""

    @property
    def checked(self) -> str:
        return f"{COMPARED}; {self.files}" if self.files else COMPARED

    @property
    def kind(self) -> tuple[str, str, str, str]:
        """Family, mask id, is it shifted, attention; in words."""
        family = FAMILIES[self.family]
        known = family.facts.published
        block = self.block_size or known.block_size
        return (
            family.facts.family,
            "in its tokenizer" if known.mask_id is None else str(known.mask_id),
            "yes" if family.lookback else "no",
            f"blocks of {block}" if block else "bidirectional",
        )


MODELS = (
    Model("GSAI-ML/LLaDA-8B-Base", "llada"),
    Model("GSAI-ML/LLaDA-8B-Instruct", "llada", files="config.json, index, chat template"),
    Model("GSAI-ML/LLaDA-1.5", "llada"),
    Model("d3LLM/d3LLM_LLaDA", "llada", files=OWN_CODE),
    Model("inclusionAI/LLaDA-MoE-7B-A1B-Base", "LLaDAMoEModelLM"),
    Model("inclusionAI/LLaDA-MoE-7B-A1B-Instruct", "LLaDAMoEModelLM"),
    Model("inclusionAI/LLaDA2.0-mini", "llada2_moe"),
    Model("inclusionAI/LLaDA2.1-mini", "llada2_moe"),
    Model("Dream-org/Dream-v0-Base-7B", "Dream"),
    Model("Dream-org/Dream-v0-Instruct-7B", "Dream", files="config.json, index, tokenizer, chat template"),
    Model("Dream-org/Dream-Coder-v0-Instruct-7B", "Dream", files=OWN_CODE),
    Model("apple/DiffuCoder-7B-Instruct", "Dream"),
    Model("apple/DiffuCoder-7B-cpGRPO", "Dream"),
    Model("d3LLM/d3LLM_Dream", "Dream", files=OWN_CODE),
    Model("JetLM/SDAR-1.7B-Chat", "sdar"),
    Model("JetLM/SDAR-4B-Chat", "sdar", files="config.json, index, tokenizer, chat template"),
    Model("JetLM/SDAR-8B-Chat", "sdar", files="config.json, index, chat template"),
    Model("JetLM/SDAR-8B-Chat-b32", "sdar", block_size=32),
    Model("JetLM/SDAR-30B-A3B-Chat", "sdar_moe"),
    Model("JetLM/SDAR-30B-A3B-Chat-b32", "sdar_moe", block_size=32),
    Model("Gen-Verse/TraDo-4B-Instruct", "sdar", files=OWN_CODE),
    Model("Gen-Verse/TraDo-8B-Instruct", "sdar", files=OWN_CODE),
    Model("Gen-Verse/TraDo-8B-Thinking", "sdar", files=OWN_CODE),
    Model("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "Fast_dLLM_Qwen", block_size=32),
    Model(
        "Efficient-Large-Model/Fast_dLLM_v2_7B",
        "Fast_dLLM_Qwen",
        block_size=32,
        files="config.json, index, chat template",
    ),
    Model("ByteDance-Seed/Stable-DiffCoder-8B-Base", "StableDiffcoderForCausalLM"),
    Model("ByteDance-Seed/Stable-DiffCoder-8B-Instruct", "StableDiffcoderForCausalLM"),
    Model("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", "a2d-qwen3", block_size=0),
    Model("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1", "a2d-qwen3", block_size=32),
    Model("dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", "a2d-qwen2", block_size=0),
    Model("dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1", "a2d-qwen2", block_size=32),
    Model("radicalnumerics/RND1-Base-0910", "rnd1"),
)


def find(hub_id: str) -> Model | None:
    return next((model for model in MODELS if model.hub_id == hub_id), None)


def meant(name: str) -> str:
    """A question after the published checkpoint that is spelled nearly so, whoever published it."""
    ids = {key.lower(): m.hub_id for m in MODELS for key in (m.hub_id, m.hub_id.split("/")[1])}
    near = get_close_matches(name.lower(), ids, n=1, cutoff=0.8)
    return f"; did you mean {ids[near[0]]!r}?" if near and ids[near[0]] != name else ""


def table() -> str:
    """One Markdown row for each model."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield "| hub id | family | mask id | shift | attention | checked |"
    yield "|---|---|---|---|---|---|"
    for model in MODELS:
        yield f"| {' | '.join((f'`{model.hub_id}`', *model.kind, model.checked))} |"
