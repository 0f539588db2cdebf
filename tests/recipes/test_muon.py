"""Muon against torch's."""

from __future__ import annotations

import torch

from recipes import loop, tokenizer
from recipes.muon import Muon, orthogonal
from tests.helpers.micro_recipe import MICRO

torch.set_num_threads(1)
WORDS = tokenizer.build()


def test_muon_agrees_with_torchs_muon_and_adamw() -> None:
    torch.manual_seed(0)
    network, twin = (loop.llada.new(loop.config(MICRO, WORDS), WORDS, seed=3).module for _ in range(2))
    ours = Muon(network, weight_decay=0.1)
    matrices = [p for name, p in twin.named_parameters() if ".layers." in name and p.ndim == 2]
    others = [p for name, p in twin.named_parameters() if not any(p is m for m in matrices)]
    assert len(matrices) == 7
    theirs = [
        torch.optim.Muon(
            matrices,
            lr=0.01,
            weight_decay=0.1,
            momentum=0.95,
            nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1),
    ]
    for group in ours.param_groups:
        group["lr"] = 0.01
    for _ in range(3):
        for p, q in zip(network.parameters(), twin.parameters()):
            p.grad = q.grad = torch.randn(p.shape)
        for optimizer in (ours, *theirs):
            optimizer.step()
    for (name, p), q in zip(network.named_parameters(), twin.parameters()):
        # torch's iteration is in bfloat16: about two digits of an update, of which there were three.
        close = 3e-3 if any(q is m for m in matrices) else 1e-6
        assert float((p - q).detach().abs().max()) < close, name


def test_orthogonal_moves_all_singular_values_near_one() -> None:
    wide = torch.randn(3, 6, 20, generator=torch.Generator().manual_seed(0)) * 50
    values = torch.linalg.svdvals(orthogonal(wide))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
