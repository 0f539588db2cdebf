"""Muon (Jordan et al., 2024) for the matrices of the blocks, AdamW for everything else, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from twotemp.errors import UserError

MOMENTUM = 0.95
BETAS = (0.9, 0.98)
EPSILON = 1e-8
# Coefficients of the quintic iteration, which moves singular values from (0, 1] to about 1 in few steps.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
CLIP = 1.0  # the largest norm of the gradient


class Muon(torch.optim.Optimizer):
    """W <- (1 - lr · decay) W - lr · 0.2 sqrt(max(m, n)) · orthogonal(momentum), for each matrix of m x n.

    The factor makes the step as large as AdamW's (an orthogonal matrix has entries of about 1 / sqrt(max(m, n))), so
    that one learning rate serves both (Liu et al., 2025). It computes in float32; torch's own Muon uses bfloat16,
    which is slow on a CPU without bfloat16 units.
    """

    def __init__(self, module: torch.nn.Module, weight_decay: float) -> None:
        self._module = module
        named = list(module.named_parameters())
        matrices = [p for name, p in named if ".layers." in name and p.ndim == 2]
        others = [p for name, p in named if not (".layers." in name and p.ndim == 2)]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others}]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})
        for p in matrices:
            self.state[p]["momentum"] = torch.zeros_like(p)
        for p in others:
            self.state[p] = {
                "step": torch.zeros(()),
                "first": torch.zeros_like(p),
                "second": torch.zeros_like(p),
            }

    def descend(self, loss: Tensor, rate: float) -> None:
        """Take one step along the clipped gradient of a loss at this learning rate."""
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss is {loss.item()}; start again with a smaller learning_rate (the last checkpoint is kept)"
            )
        self.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), CLIP)
        for group in self.param_groups:
            group["lr"] = rate
        self.step()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters from their gradients; `closure` is not used."""
        matrices, others = self.param_groups
        self._orthogonal(matrices)
        state = [self.state[p] for p in others["params"]]
        adamw(
            others["params"],
            [p.grad for p in others["params"]],
            [s["first"] for s in state],
            [s["second"] for s in state],
            [],
            [s["step"] for s in state],
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=others["lr"],
            weight_decay=others["weight_decay"],
            eps=EPSILON,
            maximize=False,
        )

    def _orthogonal(self, group: dict[str, Any]) -> None:
        """Update the matrices; those of one shape (or its transpose) are batched, because small products are slow."""
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for p in group["params"]:
            momentum = self.state[p]["momentum"].lerp_(p.grad, 1 - MOMENTUM)
            ahead = p.grad.lerp(momentum, MOMENTUM)  # Nesterov momentum
            shapes.setdefault(tuple(sorted(p.shape)), []).append((p, ahead))
        for shape, pairs in shapes.items():
            wide = torch.stack([ahead if p.shape == shape else ahead.mT for p, ahead in pairs])
            rate = group["lr"] * 0.2 * math.sqrt(max(shape))
            for (p, _), update in zip(pairs, orthogonal(wide)):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update if p.shape == shape else update.mT, alpha=-rate)


def orthogonal(wide: Tensor) -> Tensor:
    """Return roughly the nearest [..., m, n] matrices with orthonormal rows (singular values 0.7 to 1.2)."""
    a, b, c = NEWTON_SCHULZ
    x: Tensor = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x
