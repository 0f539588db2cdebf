"""How far an approximation strays: at every state a run visits, its logits against the exact ones.

An approximation is a cache, or a quantized or lower-precision copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twotemp.engine.engine import run
from twotemp.engine.memory import fit_batch
from twotemp.engine.observer import Observer, StepView
from twotemp.errors import UserError
from twotemp.models.base import Denoiser
from twotemp.records import Request, Sample


@dataclass(frozen=True)
class Drift:
    """KL(exact || ours) over the predictions that are approximate, and the decisions it changed in the whole run."""

    predictions: int  # with a cache only those that read it: the first step of a block computes it
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    steps: int  # row-steps
    changed_steps: float  # share of row-steps that commit something else (other positions or other tokens)
    changed_tokens: float  # share of committed tokens that the exact logits would have drawn otherwise


def drift(
    model: Denoiser,
    requests: Sequence[Request],
    cache: str | None = None,
    *,
    against: Denoiser | None = None,
    batch_size: int | None = None,
    on_sample: Callable[[Sample], None] | None = None,
) -> Drift:
    """Sample, and compare the logits of every step with the exact ones.

    Args:
        model: The model to sample from.
        requests: What to sample.
        cache: The approximate cache to sample with.
        against: The model whose logits, computed without a cache, are exact (None: the same model).
        batch_size: Unset, it is half of what would fit without the comparison, which needs memory for both.
        on_sample: Called with every sample.
    """
    if not requests:
        raise UserError("nothing to compare: give at least one request")
    if cache is None and against is None:
        raise UserError("nothing to compare with: name a cache, or another model")
    if batch_size is None:
        batch_size = max(1, fit_batch(model, requests, cache)[0] // 2)
    comparison = _Comparison(against)
    for sample in run(model, requests, batch_size=batch_size, cache=cache, observer=comparison):
        if on_sample is not None:
            on_sample(sample)
    return comparison.result()


class _Comparison(Observer):
    """Records at every step what the exact logits would have decided; the samples are unchanged."""

    def __init__(self, against: Denoiser | None) -> None:
        self.against = against
        self.kl: list[Tensor] = []
        self.row_steps = self.changed_steps = self.committed = self.changed_tokens = 0

    def step(self, view: StepView) -> None:
        rows, window, model = view.rows, view.window, view.rows.model
        width = rows.width
        real = torch.arange(width, device=model.device) < rows.state.length[:, None]
        exact = self.against or model
        truth = exact.logits(view.before[:, :width], real, window.row * width + window.column)
        ours, theirs = view.decision, view.decide(truth)[0]

        read = (view.block_step > (-1 if self.against else 0)).to(model.device)[window.row]
        forbidden = torch.tensor([*model.forbidden_ids, model.mask_id], device=model.device)
        p, q = (z[read].index_fill(1, forbidden, -torch.inf).log_softmax(-1) for z in (truth, view.logits))
        self.kl.append((p.exp() * (p - q)).nan_to_num(0.0).sum(-1).cpu())  # forbidden ids: 0 * nan
        other = ours.tokens != theirs.tokens
        changed = (ours.commit != theirs.commit) | (ours.commit & other)
        self.row_steps += len(changed)
        self.changed_steps += int(changed.any(1).sum())
        self.committed += int(ours.commit.sum())
        self.changed_tokens += int((ours.commit & other).sum())

    def result(self) -> Drift:
        read = torch.cat(self.kl)
        kl = read if len(read) else torch.zeros(1)  # a cache that is never read changes nothing
        return Drift(
            predictions=len(read),
            kl_mean=float(kl.mean()),
            kl_median=float(kl.median()),
            kl_p99=float(kl.kthvalue(max(1, round(0.99 * len(kl)))).values),
            kl_max=float(kl.max()),
            steps=self.row_steps,
            changed_steps=self.changed_steps / self.row_steps,
            changed_tokens=self.changed_tokens / self.committed,
        )
