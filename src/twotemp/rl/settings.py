"""A run as data: with the model, the problems and the code, it decides every weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twotemp.errors import UserError
from twotemp.plain import record
from twotemp.records import Policy
from twotemp.rl.likelihood import estimator


@dataclass(frozen=True)
class GrpoSettings:
    """Rollouts, likelihood, objective and optimizer. Defaults suit the embedded model."""

    policy: Policy
    length: int  # tokens of a completion
    block: int | None = None
    groups: int = 16  # problems per step, over all workers
    size: int = 8  # samples per problem
    batch_size: int = 128  # rows decoded together on a worker
    likelihood: str = "trajectory"
    draws: int = 1  # masks per row and inner iteration, for the random estimators
    iterations: int = 1  # mu: updates on the same rollouts, each with masks of its own
    # Partly masked rows in one training pass; gradients are summed over the passes of an update.
    micro_batch: int = 1024
    epsilon: float = 0.5
    beta: float = 0.0  # weight of the KL to the untrained model
    scale_advantage: bool = False  # divide by the group's std
    format_weight: float = 0.0  # reward for an answer the grader can find, right or wrong
    learning_rate: float = 5e-4
    max_grad_norm: float = 1.0
    lora_rank: int = 32  # 0: train all weights
    lora_alpha: int = 64
    bf16: bool = False  # training passes in bfloat16 (autocast)
    gradient_checkpointing: bool = False
    fsdp: bool = False  # shard the weights over workers
    tokens_per_forward: float | None = None  # move lambda to hold this
    seed: int = 0
    save_every: int = 20  # steps between checkpoints

    def __post_init__(self) -> None:
        estimator(self.likelihood)
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
        """As JSON data."""
        return {**vars(self), "policy": self.policy.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GrpoSettings:
        return record(cls, {**data, "policy": Policy.from_dict(data["policy"])}, "the settings")
