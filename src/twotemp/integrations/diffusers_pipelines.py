"""diffusers' pipelines: the interface of their schedulers, the state of a call's rows, and models for them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.metadata import version
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementSchedulerOutput
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.models.base import LanguageModel
from twotemp.policies.decision import Decision, Memory
from twotemp.policies.step import PolicyBatch

if TYPE_CHECKING:
    from twotemp.integrations.diffusers import TwoTempScheduler

VERSIONS = ">=0.39,<0.43"  # of diffusers: those that the tests ran with
# What the pipeline passes to `step` about sampling, which here belongs to the policy.
SAMPLING = "temperature top_p top_k sampling_method threshold editing_threshold minimal_topk"
# The interface that this file implements: methods and their parameters, and the fields of the output of a step.
INTERFACE = {
    "step": f"self model_output timestep sample mask_token_id prompt_mask generator return_dict {SAMPLING}",
    "check_block_should_continue": "self step_idx masks_remaining editing_enabled editing_transfer_index post_steps "
    "max_post_steps finished",
    "check_eos_finished": "cur_x sampled_tokens final_transfer finished eos_token_id mask_token_id prompt_length",
}
OUTPUT = "prev_sample transfer_index editing_transfer_index sampled_tokens sampled_probs pred_logits"


@dataclass
class PipelineCall:
    """Where the rows of one call of the pipeline stand; [B] or [B, W]."""

    policies: PolicyBatch
    keys: Tensor  # address the noise
    position: int  # of the active block's first column
    steps: Tensor  # of each row
    block_steps: Tensor  # of each row, in the active block
    edits: Tensor  # how often each position of the block was rewritten
    final: Tensor  # rows whose block an editing policy has left unchanged
    pending: Tensor  # what may still change
    tokens: Tensor  # of canvases that have ended
    memory: Memory | None = None

    def next_block(self, width: int) -> None:
        """Start the next block."""
        self.position += width
        self.block_steps, self.edits = torch.zeros_like(self.steps), torch.zeros_like(self.edits)
        self.final = torch.zeros_like(self.final)


class PipelineModel(nn.Module):
    """A model of `twotemp.load` as the pipeline's `model`, so that no code of the checkpoint has to be trusted.

    As in the authors' sampler, the masks that complete the last block are visible.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        if model.module is None or model.block_size is None:
            raise UserError(f"{model.name!r} is not a block-causal model that twotemp.load loaded")
        self.model, self.module = model, model.module
        self.device, self.dtype = model.device, next(model.module.parameters()).dtype

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> SimpleNamespace:
        """Return the logits of the last block as `.logits`, [B, W, V]; the pipeline reads no others."""
        width = self.model.block_size
        assert width is not None
        if not bool(attention_mask[:, 0].all()) or bool((attention_mask.diff(dim=1) > 0).any()):
            raise UserError("these prompts are padded; call the pipeline once for each length of prompts")
        want = torch.zeros_like(input_ids, dtype=torch.bool)
        want[:, -width:] = True
        logits = self.model.logits(input_ids, None, want)
        return SimpleNamespace(logits=logits.view(len(input_ids), width, -1))


class CanvasModel(nn.Module):
    """A model of `twotemp.load` as the `model` of `DiffusionGemmaPipeline`; its scheduler draws the first canvases.

    The pipeline draws them from one generator for the whole batch, and shows them to the model before the scheduler.
    """

    def __init__(self, model: LanguageModel, scheduler: TwoTempScheduler) -> None:
        super().__init__()
        if model.module is None or not model.canvases:
            raise UserError(f"{model.name!r} writes no canvases; LLaDA2Pipeline takes PipelineModel(model)")
        module: Any = model.module
        self.module, self.model, self.config = module, module.model, module.config
        self.device, self.dtype = module.device, module.dtype
        self._scheduler = scheduler

    def forward(
        self, decoder_input_ids: Tensor, self_conditioning_logits: Tensor | None = None, **inputs: Any
    ) -> Any:
        """Return what the module does, for the scheduler's canvas at the first step."""
        ids = decoder_input_ids
        if self_conditioning_logits is None:
            ids = self._scheduler.first_canvas(ids, self.config.text_config.vocab_size)
        return self.module(decoder_input_ids=ids, self_conditioning_logits=self_conditioning_logits, **inputs)


def log(probabilities: Tensor) -> Tensor:
    """Return logits whose softmax these are."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def write_canvas(rows: PipelineCall, decision: Decision, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Return the canvases after a step, [B, W], and what their next step is conditioned on, [B, W, V].

    The pipeline ends a canvas once its predictions are certain and unchanged, so ended canvases get such predictions.
    """
    assert decision.canvas is not None
    assert decision.soft is not None
    rows.tokens = torch.where(rows.final[:, None], rows.tokens, decision.canvas.tokens)
    rows.final = rows.final | decision.canvas.ends
    certain = log(torch.nn.functional.one_hot(rows.tokens, vocab_size).to(decision.soft.dtype))
    return rows.tokens, torch.where(rows.final[:, None, None], certain, decision.soft)


def refuse_sampling(given: dict[str, Any]) -> None:
    """Raise a UserError for options that the pipeline was given and that belong to the policy."""
    defaults = signature(LLaDA2Pipeline.__call__).parameters
    for name, value in given.items():
        if name not in SAMPLING.split():
            raise TypeError(f"step() got an unexpected keyword argument {name!r}")
        if value != defaults[name].default:
            raise UserError(
                f"{name}={value!r}: the policy decides; write its parameters into its spelling, such as "
                "TwoTempScheduler(policy='tct:t_token=0.8,threshold=0.6'), and leave the option out"
            )


def check_conventions() -> None:
    """Raise a UserError if schedulers of the installed diffusers have another interface."""
    installed = {name: signature(getattr(BlockRefinementScheduler, name)).parameters for name in INTERFACE}
    changed = {field.name for field in fields(BlockRefinementSchedulerOutput)} ^ set(OUTPUT.split())
    changed |= {
        name for method, known in INTERFACE.items() for name in set(known.split()) ^ set(installed[method])
    }
    if changed:
        raise UserError(
            f"diffusers {version('diffusers')} has another interface of schedulers ({', '.join(sorted(changed))}); "
            f"install a version that works: pip install 'diffusers{VERSIONS}'"
        )
