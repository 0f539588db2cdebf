"""Published checkpoints by their hub ids: which family loads them, and what was checked.

`table()` is the table in docs/models.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from twotemp.errors import UserError
from twotemp.models.families import FAMILIES
from twotemp.models.families import REFUSED as REFUSED_TYPES

# What was compared with the published code of every family: random weights, float32, on a CPU (tests/fixtures).
COMPARED = "logits, tokens"
# The modeling code published with this very model was run as well: the same logits.
OWN_CODE = "its own copy of the code"


@dataclass(frozen=True)
class PublishedModel:
    hub_id: str
    family: str  # as in `families.FAMILIES`
    block_size: int | None = None  # where it differs from the family's
    # Which of its own files were checked (of the index: names and total size of the weights).
    files: str = ""

    @property
    def checked(self) -> str:
        return f"{COMPARED}; {self.files}" if self.files else COMPARED

    @property
    def kind(self) -> tuple[str, str, str, str]:
        """Family, mask id, whether it is shifted, and attention; in words."""
        family = FAMILIES[self.family]
        known = family.facts.published
        block = self.block_size or known.block_size
        return (
            family.facts.family,
            "none" if not family.facts.masks else str(known.mask_id or "in its tokenizer"),
            "yes" if family.lookback else "no",
            f"{'canvases' if family.canvases else 'blocks'} of {block}" if block else "bidirectional",
        )


MODELS = (
    PublishedModel("GSAI-ML/LLaDA-8B-Base", "llada"),
    PublishedModel("GSAI-ML/LLaDA-8B-Instruct", "llada", files="config.json, index, chat template"),
    PublishedModel("GSAI-ML/LLaDA-1.5", "llada"),
    PublishedModel("d3LLM/d3LLM_LLaDA", "llada", files=OWN_CODE),
    PublishedModel("GSAI-ML/iLLaDA-8B-Base", "illada"),
    PublishedModel("GSAI-ML/iLLaDA-8B-Instruct", "illada"),
    PublishedModel("inclusionAI/LLaDA-MoE-7B-A1B-Base", "LLaDAMoEModelLM"),
    PublishedModel("inclusionAI/LLaDA-MoE-7B-A1B-Instruct", "LLaDAMoEModelLM"),
    PublishedModel("inclusionAI/LLaDA2.0-mini", "llada2_moe", files="config.json, index, chat template"),
    PublishedModel("inclusionAI/LLaDA2.1-mini", "llada2_moe", files="config.json, index, chat template"),
    PublishedModel("inclusionAI/LLaDA2.0-mini-CAP", "llada2_moe"),
    PublishedModel("inclusionAI/LLaDA2.0-flash", "llada2_moe"),
    PublishedModel("inclusionAI/LLaDA2.0-flash-CAP", "llada2_moe"),
    PublishedModel("inclusionAI/LLaDA2.1-flash", "llada2_moe"),
    PublishedModel("Dream-org/Dream-v0-Base-7B", "Dream"),
    PublishedModel(
        "Dream-org/Dream-v0-Instruct-7B", "Dream", files="config.json, index, tokenizer, chat template"
    ),
    PublishedModel("Dream-org/Dream-Coder-v0-Base-7B", "Dream"),
    PublishedModel("Dream-org/Dream-Coder-v0-Instruct-7B", "Dream", files=OWN_CODE),
    PublishedModel("apple/DiffuCoder-7B-Instruct", "Dream"),
    PublishedModel("apple/DiffuCoder-7B-cpGRPO", "Dream"),
    PublishedModel("d3LLM/d3LLM_Dream", "Dream", files=OWN_CODE),
    PublishedModel("JetLM/SDAR-1.7B-Chat", "sdar"),
    PublishedModel("JetLM/SDAR-4B-Chat", "sdar", files="config.json, index, tokenizer, chat template"),
    PublishedModel("JetLM/SDAR-8B-Chat", "sdar", files="config.json, index, chat template"),
    PublishedModel("JetLM/SDAR-8B-Chat-b32", "sdar", block_size=32),
    PublishedModel("JetLM/SDAR-30B-A3B-Chat", "sdar_moe", files="config.json, index, chat template"),
    PublishedModel("JetLM/SDAR-30B-A3B-Chat-b32", "sdar_moe", block_size=32),
    PublishedModel("Gen-Verse/TraDo-4B-Instruct", "sdar", files=OWN_CODE),
    PublishedModel("Gen-Verse/TraDo-8B-Instruct", "sdar", files=OWN_CODE),
    PublishedModel("Gen-Verse/TraDo-8B-Thinking", "sdar", files=OWN_CODE),
    PublishedModel("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "Fast_dLLM_Qwen", block_size=32),
    PublishedModel(
        "Efficient-Large-Model/Fast_dLLM_v2_7B",
        "Fast_dLLM_Qwen",
        block_size=32,
        files="config.json, index, chat template",
    ),
    PublishedModel("ByteDance-Seed/Stable-DiffCoder-8B-Base", "StableDiffcoderForCausalLM"),
    PublishedModel("ByteDance-Seed/Stable-DiffCoder-8B-Instruct", "StableDiffcoderForCausalLM"),
    PublishedModel("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", "a2d-qwen3", block_size=0),
    PublishedModel("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1", "a2d-qwen3", block_size=32),
    PublishedModel("dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", "a2d-qwen2", block_size=0),
    PublishedModel("dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1", "a2d-qwen2", block_size=32),
    PublishedModel("radicalnumerics/RND1-Base-0910", "rnd1"),
    PublishedModel("Salesforce/CoDA-v0-Base", "CoDA", files="config.json, chat template"),
    PublishedModel("Salesforce/CoDA-v0-Instruct", "CoDA", files="config.json, chat template"),
    PublishedModel("UT-IFML/dQwen3-1.7B-Base", "diffuqwen3"),
    PublishedModel("google/diffusiongemma-26B-A4B-it", "diffusion_gemma"),
)

# Published models that other families' configs or names resemble, by the beginning of their hub ids.
REFUSED = {
    "inclusionAI/LLaDA2.2": "it routes whole blocks to experts and edits with tokens that insert and delete, which "
    "LLaDA 2.0 and 2.1 do not",
    "GSAI-ML/LLaDA-MoE-v2": "neither its config.json nor its code was available, so its router could not be compared",
    "nvidia/Nemotron-Labs-Diffusion": REFUSED_TYPES["nemotron_labs_diffusion"],
    "UT-IFML/dQwen3.5": "its linear attention (gated DeltaNet) has no implementation here for masked rows",
}


def refuse(hub_id: str) -> None:
    """Raise a UserError for a published model that cannot be sampled correctly here."""
    for start, reason in REFUSED.items():
        if hub_id.lower().startswith(start.lower()):
            raise UserError(f"{hub_id} cannot be loaded: {reason}")


def find(hub_id: str) -> PublishedModel | None:
    """Return the published model of this hub id, if it is listed."""
    return next((model for model in MODELS if model.hub_id == hub_id), None)


def suggestion(name: str) -> str:
    """Return "did you mean ...?" if a published checkpoint has a similar name, whatever its organization."""
    ids = {key.lower(): m.hub_id for m in MODELS for key in (m.hub_id, m.hub_id.split("/")[1])}
    near = get_close_matches(name.lower(), ids, n=1, cutoff=0.8)
    return f"; did you mean {ids[near[0]]!r}?" if near and ids[near[0]] != name else ""


def table() -> str:
    """Return a Markdown table of all models."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield "| hub id | family | mask id | shift | attention | checked |"
    yield "|---|---|---|---|---|---|"
    for model in MODELS:
        yield f"| {' | '.join((f'`{model.hub_id}`', *model.kind, model.checked))} |"
