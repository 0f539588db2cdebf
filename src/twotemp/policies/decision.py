"""What a step decides and remembers, and how the rows of a model without a mask are decoded.

With a mask, open positions hold it. What a step commits stays, the rest stays masked, and a block ends with its last
mask. Without one (`Renoising`), a block starts as random tokens, a *canvas*. Every step predicts all of it; what the
policy chooses becomes the drawn token, everything else a fresh random token. A canvas ends once its likeliest tokens
have stayed the same and are nearly certain, or after its last step, and these tokens are its text (DiffusionGemma).

Both take the same policies. A rule that finds positions ready (threshold, entropy bound, stability) chooses among all
of a canvas at every step. A budget grows: where it fills K masks, it keeps K more positions than at the step before.

Shapes: B rows, W positions of the active block, N predicted positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from twotemp.policies.positions import DrawnTokens, StackedParameters, required
from twotemp.policies.tokens import Need
from twotemp.rng import Noise


@dataclass(frozen=True)
class Memory:
    """What is carried from step to step, [B, W, ...]; None where neither rule nor process needs it."""

    positions: Tensor  # the positions that the other fields describe
    # Of KL stability:
    weights: Tensor | None = None  # [B, W, V] float32: the previous prediction, normalized
    stable: Tensor | None = None  # int64: for how many steps in a row the prediction has been stable
    # Of a canvas:
    likeliest: Tensor | None = None  # int64: the likeliest tokens
    unchanged: Tensor | None = None  # int64: for how many steps in a row these have stayed the same
    accepted: Tensor | None = None  # bool: the positions that the policy chose

    def take(self, index: Tensor) -> Memory:
        """Return the memory of these rows."""
        return self.each(lambda tensor: tensor[index])

    def grow(self, rows: int, width: int) -> Memory:
        """Return the memory with room for `rows` rows and blocks of `width`; the new entries are empty."""
        more, wider = rows - len(self.positions), width - self.positions.shape[1]

        def larger(tensor: Tensor, value: int = 0) -> Tensor:
            inner = (0, 0) * (tensor.dim() - 2)
            return torch.nn.functional.pad(tensor, (*inner, 0, wider, 0, more), value=value)

        return replace(self.each(larger), positions=larger(self.positions, value=-1))

    def each(self, change: Callable[[Tensor], Tensor]) -> Memory:
        """Return the memory with every tensor changed."""
        held = ((field.name, getattr(self, field.name)) for field in fields(self))
        return Memory(**{name: change(tensor) for name, tensor in held if tensor is not None})


@dataclass(frozen=True)
class Canvas:
    """What a step of `Renoising` leaves, [B, W]."""

    tokens: Tensor  # what the canvas holds now; its text if it ends
    likeliest: Tensor  # the likeliest tokens, which will be its text
    confidence: Tensor  # their probability
    changed: Tensor  # bool: where they differ from those of the step before
    ends: Tensor  # [B] bool: whether the canvas is final


@dataclass(frozen=True)
class Decision:
    """The outcome of a step, [B, W]; meaningful where `masked` was True, or a token was edited."""

    tokens: Tensor
    commit: Tensor  # bool: the positions to write
    confidence: Tensor  # of the drawn token
    entropy: Tensor | None
    log_norm: Tensor  # [N] of the predicted positions; not finite where the logits were not
    edit: Tensor | None = None  # bool: which of them overwrite a token; None: the policies do not edit
    canvas: Canvas | None = None  # None: the model has a mask
    soft: Tensor | None = None  # [B, W, D]: what the model is conditioned on at the next step


@dataclass(frozen=True)
class Renoising:
    """Replaces random tokens, in the rows of a model without a mask."""

    vocab_size: int
    needs: ClassVar[frozenset[Need]] = frozenset({"entropy", "likeliest", "top"})

    def begin(self, ids: Tensor, generated: Tensor, keys: Tensor) -> Tensor:
        """Return rows before their first step, [B, C].

        Args:
            ids: [B, C].
            generated: [B, C] bool: where something is to be generated.
            keys: [B], addresses of the rows' noise.
        """
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        # The noise left by step -1; that of step s is addressed by s.
        before = Noise(keys, torch.full_like(keys, -1), positions)
        return torch.where(generated, before.tokens(self.vocab_size), ids)

    def kept(self, memory: Memory | None, positions: Tensor) -> Tensor | None:
        """Return how many of a block's open positions a budget has already kept, [B]; None if it has kept none."""
        if memory is None:
            return None
        return (required(memory.accepted) & (memory.positions == positions)).sum(1)

    def complete(
        self,
        decision: Decision,
        noise: Noise,
        drawn: DrawnTokens,
        masked: Tensor,
        parameters: StackedParameters,
        block_step: Tensor | None,
        before: Memory | None,
        after: Memory | None,
    ) -> tuple[Decision, Memory]:
        """Complete the decision: renew the positions that were not chosen, and say which canvases end.

        Args:
            decision: What the policies chose.
            noise: The step's noise.
            drawn: What was drawn.
            masked: [B, W] bool, the open positions.
            parameters: The policies' numbers.
            block_step: [B], steps taken in the active block so far.
            before: The memory of the step before.
            after: What the policies' rule carries into the next step.

        Returns:
            The decision, and what to carry into the next step.
        """
        at, likeliest = drawn.positions, required(drawn.likeliest)
        unchanged = torch.zeros_like(at)
        if before is not None:
            same = (before.positions == at) & (required(before.likeliest) == likeliest)
            unchanged = torch.where(same, required(before.unchanged) + 1, 0)
        settled = ((unchanged >= parameters.stop_steps[:, None]) | ~masked).all(1)
        count = masked.sum(1)
        mean = required(drawn.entropy).masked_fill(~masked, 0).sum(1) / count.clamp_min(1)
        # As many steps as masking takes at most, unless the policy says how many.
        least = (count + parameters.k - 1) // parameters.k
        most = torch.where(parameters.steps > 0, parameters.steps, least)
        taken = torch.zeros_like(most) if block_step is None else block_step
        ends = settled & (mean < parameters.stop_entropy) | (taken + 1 >= most)
        tokens = torch.where(decision.commit, decision.tokens, noise.tokens(self.vocab_size))
        canvas = Canvas(
            tokens=torch.where(ends[:, None], likeliest, tokens),
            likeliest=likeliest,
            confidence=required(drawn.log_top).exp(),
            changed=masked & (unchanged == 0),
            ends=ends,
        )
        memory = replace(
            after or Memory(at), likeliest=likeliest, unchanged=unchanged, accepted=decision.commit
        )
        return replace(decision, canvas=canvas), memory
