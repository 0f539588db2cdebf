"""The settings of a run: with the model, the problems and the code, they decide every weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from twotemp.errors import UserError
from twotemp.plain import record
from twotemp.records import Policy


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """Rollouts."""

    groups: Annotated[int, "Problems per step, over all workers."] = 16
    size: Annotated[int, "Samples per problem."] = 8
    block: Annotated[int | None, "Block width (default 32, or the model's)."] = None
    batch_size: Annotated[int, "Rows decoded together on a worker."] = 128
    format_weight: Annotated[float, "Reward for any answer the grader can find, right or wrong."] = 0.0
    tokens_per_forward: Annotated[float | None, "Hold this speed by moving lambda (ct, tct)."] = None


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """Learning from them."""

    likelihood: Annotated[str, "d1, trajectory, deferral, fork, ar, elbo, stratified, pll or thirds."] = (
        "trajectory"
    )
    draws: Annotated[int, "Masks per row and update, for d1, elbo and stratified."] = 1
    iterations: Annotated[int, "Updates on the same rollouts (mu), each with new masks."] = 1
    micro_batch: Annotated[int, "Partly masked rows in one training pass; gradients are summed."] = 1024
    epsilon: Annotated[float, "Clip of the probability ratio."] = 0.5
    beta: Annotated[float, "Weight of the KL to the untrained model."] = 0.0
    scale_advantage: Annotated[bool, "Divide advantages by the group's std."] = False
    learning_rate: Annotated[float, "Of AdamW; constant."] = 5e-4
    max_grad_norm: Annotated[float, "Clip of the gradient's norm."] = 1.0
    lora_rank: Annotated[int, "0 trains all weights."] = 32
    lora_alpha: Annotated[int, "Scale of the adapters times their rank."] = 64
    bf16: Annotated[bool, "Training passes in bfloat16 (autocast)."] = False
    gradient_checkpointing: Annotated[bool, "Less memory, more time."] = False
    fsdp: Annotated[bool, "Shard the weights over workers (FSDP2)."] = False
    save_every: Annotated[int, "Steps between checkpoints."] = 20


@dataclass(frozen=True)
class GrpoSettings(RolloutSettings, LearningSettings):
    """Rollouts, likelihood, objective and optimizer. The defaults suit the embedded model.

    The fields of the two parts are options of `twotemp grpo`; their annotations are its help.
    """

    policy: Policy
    length: int  # tokens of a completion
    seed: int = 0

    def __post_init__(self) -> None:
        from twotemp.likelihood import estimators

        estimators.get(self.likelihood).check(self.policy)
        if self.policy.repel:
            raise UserError(
                f"policy {self.policy.name} has repel={self.policy.repel:g}: its samples are not drawn from the "
                "model's own predictions, and GRPO's likelihoods are of these; set repel=0"
            )
        for name in ("length", "groups", "batch_size", "draws", "iterations", "micro_batch", "save_every"):
            self._whole(name, 1)
        if self.block is not None:
            self._whole("block", 1)
        self._whole("size", 2)
        self._whole("lora_rank", 0)
        self._whole("lora_alpha", 1)
        for name in ("epsilon", "learning_rate", "max_grad_norm"):
            self._number(name, 0, strict=True)
        self._number("beta", 0)
        self._number("format_weight", 0)
        if self.tokens_per_forward is not None:
            self._number("tokens_per_forward", 1)
            if self.policy.rule != "threshold":
                raise UserError(
                    f"tokens_per_forward is held by moving lambda, which policy {self.policy.name!r} does not "
                    "have; use ct or tct, or leave it out"
                )
        if self.policy.t_token == 0 and self.policy.t_pos == 0:
            raise UserError(
                f"policy {self.policy.name!r} with t_token=0 and t_pos=0 draws every sample of a group the same, "
                "so there is nothing to learn from; raise one of them"
            )

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name} must be an integer >= {least}, not {value!r}")

    def _number(self, name: str, least: float, strict: bool = False) -> None:
        value = getattr(self, name)
        if not (math.isfinite(value) and (value > least if strict else value >= least)):
            raise UserError(f"{name} must be a number {'>' if strict else '>='} {least:g}, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return {**vars(self), "policy": self.policy.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GrpoSettings:
        """Return the settings that `to_dict` wrote."""
        return record(cls, {**data, "policy": Policy.from_dict(data["policy"])}, "the settings")
