"""Every policy as a scheduler of diffusers' `LLaDA2Pipeline` and `DiffusionGemmaPipeline`.

The pipeline computes logits and writes tokens; `PolicyBatch` decides which. Noise is addressed by row, so that a row
does not depend on the others of its batch; rows of `TwoTempScheduler.input_ids` are the samples of `twotemp.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from diffusers import BlockRefinementScheduler, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementSchedulerOutput
from torch import Tensor

from twotemp.engine.rows import compact
from twotemp.engine.scheduler import refuse_groups
from twotemp.errors import UserError
from twotemp.experimental.editing import BlockText
from twotemp.integrations.diffusers_pipelines import (
    CanvasModel,
    PipelineCall,
    PipelineModel,
    check_conventions,
    log,
    refuse_sampling,
    write_canvas,
)
from twotemp.models.base import LanguageModel
from twotemp.policies import parse, spell
from twotemp.policies.decision import Renoising
from twotemp.policies.step import PolicyBatch
from twotemp.records import NO_MASK, Policy
from twotemp.rng import Noise, row_key
from twotemp.sampling.requests import prompt_names

# `from_pretrained` looks for the base class of a component in the component's module.
__all__ = ["CanvasModel", "PipelineModel", "SchedulerMixin", "TwoTempScheduler"]


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
        check_conventions()
        self._policy = parse(policy)
        refuse_groups(self._policy, "a diffusers pipeline")
        self._calls = 0
        self._prompts: list[tuple[str, int, int]] = []  # id, index and length of the next call's rows
        self.set_timesteps(block_length)

    @classmethod
    def for_model(cls, model: LanguageModel, policy: Policy | str = "tct", seed: int = 0) -> Self:
        """Return a scheduler with the block length and the special tokens of a model that `twotemp.load` returned."""
        if model.block_size is None:
            raise UserError(f"{model.name!r} has no blocks, which the pipelines need; use twotemp.sample")
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
        self._steps = num_inference_steps

    def first_canvas(self, canvas: Tensor, vocab_size: int) -> Tensor:
        """Return the noise that the rows of `DiffusionGemmaPipeline` start the next canvas with, [B, W]."""
        rows = self._block(canvas, NO_MASK, 0, vocab_size)
        positions = rows.position + torch.arange(canvas.shape[1], device=canvas.device)
        return Noise(rows.keys, torch.full_like(rows.keys, -1), positions.expand_as(canvas)).tokens(
            vocab_size
        )

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        mask_token_id: int | None = None,
        prompt_mask: Tensor | None = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
        **sampling: Any,
    ) -> Any:
        """Take a step of the policy in each row.

        Args:
            model_output: Logits [B, W, V].
            timestep: 0 starts a block.
            sample: The block's tokens, [B, W].
            mask_token_id: The mask; None in `DiffusionGemmaPipeline`, whose canvases hold random tokens.
            prompt_mask: [W] bool, which of its columns belong to the prompt.
            temperature: Belongs to the policy; it must have its default, as the other options about sampling.
            generator: Its initial seed addresses the noise, where there is a mask.
            return_dict: False returns a tuple.
            **sampling: The pipeline's further options about sampling.

        Returns:
            diffusers' `BlockRefinementSchedulerOutput`.
        """
        refuse_sampling({"temperature": temperature, **sampling})
        mask_id = NO_MASK if mask_token_id is None else mask_token_id
        if mask_id == NO_MASK and generator is not None:
            raise UserError("leave the generator out: the canvases are drawn with the scheduler's seed")
        rows = self._block(sample, mask_id, int(timestep), model_output.shape[-1], generator)
        policies, masked, text = rows.policies, sample == mask_id, None
        if mask_id == NO_MASK:
            masked = ~rows.final[:, None].expand_as(sample)
        rows.pending = masked
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
        written, predictions = torch.where(decision.commit, decision.tokens, sample), model_output
        if decision.canvas is not None:
            written, predictions = write_canvas(rows, decision, model_output.shape[-1])
        elif decision.edit is None:
            rows.pending = written == mask_id
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
            pred_logits=predictions,
        )
        return output if return_dict else output.to_tuple()

    def _block(
        self,
        sample: Tensor,
        mask_id: int,
        timestep: int,
        vocab_size: int,
        generator: torch.Generator | None = None,
    ) -> PipelineCall:
        """Return where the rows stand, after starting them or their next block if it is time."""
        if self._call is None:
            self._call = self._start(sample, mask_id, vocab_size, generator)
        elif timestep == 0 and bool((self._call.block_steps > 0).any()):
            if mask_id == NO_MASK and not bool(self._call.final.all()):
                raise UserError(
                    "the pipeline ended a canvas before the policy did; pass confidence_threshold=None, or set the "
                    "policy's stop_steps and stop_entropy to the pipeline's"
                )
            self._call.next_block(sample.shape[1])
        return self._call

    def _start(
        self, sample: Tensor, mask_id: int, vocab_size: int, generator: torch.Generator | None
    ) -> PipelineCall:
        """Return the state of new rows; rows without a known prompt are named by the call and their number."""
        prompts, self._prompts = self._prompts, []
        (count, width), policy = sample.shape, self._policy
        if not prompts:
            prompts = [(f"call {self._calls}", row, 0) for row in range(count)]
            self._calls += 1
        if len(prompts) != count:
            raise UserError(f"input_ids() made {len(prompts)} rows, but the pipeline was called with {count}")
        if mask_id == NO_MASK and policy.edit != "never":
            raise UserError(f"policy {policy.name} edits, which needs masks; DiffusionGemma has none")
        if mask_id == NO_MASK and self._steps < (most := policy.steps or -(-width // policy.k)):
            raise UserError(
                f"pass num_inference_steps={most}, the most steps that the policy takes on a canvas"
            )
        seed = self.config.seed if generator is None else generator.initial_seed()
        keys = [row_key(seed, name, index) for name, index, _ in prompts]
        none = torch.zeros(count, dtype=torch.int64, device=sample.device)
        policies = PolicyBatch(
            [policy] * count,
            sample.device,
            eos_ids=self.config.eos_ids,
            forbidden_ids=sorted({*self.config.forbidden_ids, mask_id} - {NO_MASK}),
            mask_id=mask_id,
            renoising=Renoising(vocab_size) if mask_id == NO_MASK else None,
            embed=log if mask_id == NO_MASK else None,
        )
        first = prompts[0][2]  # a canvas starts where the prompt ends, a block on the grid of its row
        return PipelineCall(
            policies=policies,
            keys=torch.tensor(keys, device=sample.device),
            position=first if mask_id == NO_MASK else first // width * width,
            steps=none,
            block_steps=none,
            edits=torch.zeros_like(sample),
            final=none.bool(),
            pending=torch.zeros_like(sample, dtype=torch.bool),
            tokens=sample,
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
