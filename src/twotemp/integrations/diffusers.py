"""Every policy as a scheduler of diffusers' `LLaDA2Pipeline`.

The pipeline computes logits and writes tokens; `PolicyBatch` decides which. Noise is addressed by row, so that a row
does not depend on the others of its batch; rows of `TwoTempScheduler.input_ids` are the samples of `twotemp.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from inspect import signature
from types import SimpleNamespace
from typing import Any, Self

import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementSchedulerOutput
from torch import Tensor, nn

from twotemp.engine.rows import compact
from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError
from twotemp.experimental.editing import BlockText
from twotemp.models.base import LanguageModel
from twotemp.policies import parse, spell
from twotemp.policies.process import Memory
from twotemp.policies.step import PolicyBatch
from twotemp.records import Policy
from twotemp.rng import Noise, row_key
from twotemp.sampling.text import prompt_names

# `from_pretrained` looks for the base class of a component in the component's module.
__all__ = ["PipelineModel", "SchedulerMixin", "TwoTempScheduler"]

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
    memory: Memory | None = None

    def next_block(self, width: int) -> None:
        """Start the next block."""
        self.position += width
        self.block_steps, self.edits = torch.zeros_like(self.steps), torch.zeros_like(self.edits)
        self.final = torch.zeros_like(self.final)


class TwoTempScheduler(BlockRefinementScheduler):  # type: ignore[misc]
    """Decodes blocks by a policy.

    The pipeline's options about sampling (temperature, threshold, ...) belong to the policy and are refused, and
    `num_inference_steps` is not a limit: a block ends when the policy has written it.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        policy: str = "tct",
        seed: int = 0,
        block_length: int = 32,
        eos_ids: Sequence[int] = (),
        forbidden_ids: Sequence[int] = (),
    ) -> None:
        """Check the policy and the installed diffusers.

        Args:
            policy: A spelling such as "tct:t_pos=0.1".
            seed: Addresses the noise; a call's `generator` takes precedence by its initial seed.
            block_length: Width of a block, which must be the model's.
            eos_ids: End tokens, for policies that treat them specially.
            forbidden_ids: Tokens that are never written, besides the mask.
        """
        _check_conventions()
        self._policy = parse(policy)
        refuse_groups(self._policy, "a diffusers pipeline")
        self._calls = 0
        self._prompts: list[tuple[str, int, int]] = []  # id, index and length of the next call's rows
        self.set_timesteps(block_length)

    @classmethod
    def for_model(cls, model: LanguageModel, policy: Policy | str = "tct", seed: int = 0) -> Self:
        """Return a scheduler with the block length and the special tokens of a model that `twotemp.load` returned."""
        if model.block_size is None:
            raise UserError(f"{model.name!r} has no blocks, which LLaDA2Pipeline needs; use twotemp.sample")
        spelling = spell(policy) if isinstance(policy, Policy) else policy
        scheduler: Self = cls(
            spelling, seed, model.block_size, list(model.eos_ids), list(model.forbidden_ids)
        )
        return scheduler

    def input_ids(
        self, prompts: Sequence[Sequence[int]], n: int = 1, ids: Sequence[str] | None = None
    ) -> Tensor:
        """Return the `input_ids` for n samples per prompt, and give the next call the noise of `twotemp.sample`.

        Args:
            prompts: Token ids, of the same length in all prompts, because the pipeline does not align its blocks.
            n: Samples per prompt.
            ids: One per prompt; by default a hash of its tokens.
        """
        if len({len(prompt) for prompt in prompts}) != 1:
            raise UserError("give prompts of one length; call the pipeline once for each length")
        names = prompt_names(prompts) if ids is None else ids
        self._prompts = [
            (name, index, len(prompt)) for name, prompt in zip(names, prompts) for index in range(n)
        ]
        return torch.tensor([list(prompt) for prompt in prompts]).repeat_interleave(n, 0)

    def set_timesteps(
        self,
        num_inference_steps: int,
        device: str | torch.device | None = None,
        block_length: int | None = None,
    ) -> None:
        """Start a call of the pipeline."""
        super().set_timesteps(num_inference_steps, device=device, block_length=block_length)
        self._call: PipelineCall | None = None

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        mask_token_id: int | None = None,
        prompt_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
        **sampling: Any,
    ) -> Any:
        """Take a step of the policy in each row.

        Args:
            model_output: Logits [B, W, V].
            timestep: 0 starts a block.
            sample: The block's tokens, [B, W].
            mask_token_id: The mask.
            prompt_mask: [W] bool, which of its columns belong to the prompt.
            generator: Its initial seed addresses the noise.
            return_dict: False returns a tuple.
            **sampling: The pipeline's options about sampling, which must have their defaults.

        Returns:
            diffusers' `BlockRefinementSchedulerOutput`.
        """
        _refuse_sampling(sampling)
        if mask_token_id is None:
            raise UserError(
                "TwoTempScheduler fills masks; DiffusionGemmaPipeline, which has none, is not supported"
            )
        if self._call is None:
            self._call = self._start(sample, mask_token_id, generator)
        elif int(timestep) == 0:
            self._call.next_block(sample.shape[1])
        rows, policies = self._call, self._call.policies
        masked = sample == mask_token_id
        rows.pending, text = masked, None
        if policies.edit is not None:
            prompt = torch.zeros_like(masked[0]) if prompt_mask is None else prompt_mask
            rows.pending = ~prompt & ~rows.final[:, None]
        predicted, count = policies.candidates(rows.pending, rows.pending.sum(1).cpu())
        if policies.edit is not None:
            text = BlockText(sample, predicted, rows.edits)
        index = compact(predicted, int(count.sum()))
        positions = rows.position + torch.arange(sample.shape[1], device=sample.device)
        noise = Noise(rows.keys, rows.steps, positions.expand_as(sample))
        logits, taken = model_output.flatten(0, 1)[index], rows.block_steps
        drawn = policies.draw(noise, logits, predicted, index, block_step=taken, text=text)
        decision, rows.memory = policies.choose(
            noise, drawn, masked & predicted, memory=rows.memory, block_step=taken, text=text
        )
        if not bool(torch.isfinite(decision.log_norm).all()):
            raise UserError("the model returned NaN or infinite logits; check the weights and the dtype")
        running = rows.pending.any(1)
        rows.steps, rows.block_steps = rows.steps + running, rows.block_steps + running
        written = torch.where(decision.commit, decision.tokens, sample)
        if decision.edit is None:
            rows.pending = written == mask_token_id
        else:
            rows.edits = rows.edits + decision.edit
            rows.final = rows.final | ~decision.commit.any(1)
            rows.pending = rows.pending & ~rows.final[:, None]
        output = BlockRefinementSchedulerOutput(
            prev_sample=written,
            transfer_index=decision.commit & masked,
            editing_transfer_index=decision.commit & ~masked,
            sampled_tokens=drawn.tokens,
            sampled_probs=drawn.confidence,
            pred_logits=model_output,
        )
        return output if return_dict else output.to_tuple()

    def _start(self, sample: Tensor, mask_id: int, generator: torch.Generator | None) -> PipelineCall:
        """Return the state of new rows; rows without a known prompt are named by the call and their number."""
        prompts, self._prompts = self._prompts, []
        count, width = sample.shape
        if not prompts:
            prompts = [(f"call {self._calls}", row, 0) for row in range(count)]
            self._calls += 1
        if len(prompts) != count:
            raise UserError(f"input_ids() made {len(prompts)} rows, but the pipeline was called with {count}")
        seed = self.config.seed if generator is None else generator.initial_seed()
        keys = [row_key(seed, name, index) for name, index, _ in prompts]
        none = torch.zeros(count, dtype=torch.int64, device=sample.device)
        policies = PolicyBatch(
            [self._policy] * count,
            sample.device,
            eos_ids=self.config.eos_ids,
            forbidden_ids=sorted({*self.config.forbidden_ids, mask_id}),
            mask_id=mask_id,
        )
        return PipelineCall(
            policies=policies,
            keys=torch.tensor(keys, device=sample.device),
            position=prompts[0][2] // width * width,
            steps=none,
            block_steps=none,
            edits=torch.zeros_like(sample),
            final=none.bool(),
            pending=torch.zeros_like(sample, dtype=torch.bool),
        )

    def check_eos_finished(
        self,
        cur_x: Tensor,
        finished: Tensor,
        eos_token_id: int,
        mask_token_id: int,
        prompt_length: int,
        **_: Any,
    ) -> Tensor:
        """Return which rows have ended, [B]: everything up to their first EOS is written and cannot change."""
        answer = cur_x[:, prompt_length:]
        ended, masked = answer == eos_token_id, answer == mask_token_id
        complete = ~(masked & (ended.cumsum(1) == 0)).any(1) & ended.any(1)
        if self._policy.edit != "never" and self._call is not None:
            complete = complete & ~self._call.pending.any(1)
        return finished | complete

    def check_block_should_continue(self, finished: Tensor, **_: Any) -> bool:
        """Return whether the policy has something left to write in the block, in rows that have not ended."""
        return self._call is None or bool((self._call.pending.any(1) & ~finished).any())


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


def _refuse_sampling(given: dict[str, Any]) -> None:
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


def _check_conventions() -> None:
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
