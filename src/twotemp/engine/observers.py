"""Observers of a run (a callback, a profile, the drift of an approximation), and the replay of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from twotemp.engine.batch import Observer, StepView
from twotemp.engine.engine import run
from twotemp.engine.scheduler import fit_batch
from twotemp.errors import UserError
from twotemp.models.base import Denoiser, LanguageModel, refuse_without_mask
from twotemp.records import Request, Sample

PARTS = ("forward", "head", "draw", "select", "bookkeeping")


class StepCallback(Observer):
    """Calls a function after every step."""

    def __init__(self, on_step: Callable[[StepView], None]) -> None:
        self._on_step = on_step

    def step(self, view: StepView) -> None:
        self._on_step(view)


class Profiler(Observer):
    """The profile that `--profile` prints: the seconds spent in each part of the loop, and the steps they cover.

    forward: the network's body; head: its last projection; draw: tokens, confidences and entropies;
    select: which positions to commit; bookkeeping: everything else the engine does.
    """

    def __init__(self, model: Denoiser | None = None) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = self.row_steps = 0
        self._last = perf_counter()
        self._device = None if model is None or model.device.type != "cuda" else model.device
        # None: body and head are timed together.
        self._parts = model.body_and_head if isinstance(model, LanguageModel) else None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Time body and head by hooks, as they lie inside the model's call."""
        hooks = []
        if self._parts is not None:
            body, head = self._parts
            hooks = [
                body.register_forward_pre_hook(lambda *_: self._book("bookkeeping")),
                head.register_forward_pre_hook(lambda *_: self._book("forward")),
                head.register_forward_hook(lambda *_: self._book("head")),
            ]
        self._last = self._now()  # the time since the last turn belongs to the caller
        try:
            yield
            self._book("bookkeeping")
        finally:
            for hook in hooks:
                hook.remove()

    def lap(self, part: str) -> None:
        # With hooks, the forward pass is measured up to the head; what the model does after that is overhead.
        self._book("bookkeeping" if self._parts is not None and part == "forward" else part)

    def step(self, view: StepView) -> None:
        self.steps += 1
        self.row_steps += len(view.requests)

    def _book(self, part: str) -> None:
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device is not None:  # else this would time the kernel launches, not the work
            torch.cuda.synchronize(self._device)
        return perf_counter()

    def report(self) -> str:
        """Return the measurements as a small table."""
        total = sum(self.seconds.values()) or 1.0
        lines = [f"{part:12}{s:9.3f} s {100 * s / total:6.1f} %" for part, s in self.seconds.items()]
        lines.append(
            f"{self.steps} steps, {self.row_steps} row-steps, {1e3 * total / max(self.steps, 1):.2f} ms per step"
        )
        return "\n".join(lines)


@dataclass(frozen=True)
class Drift:
    """KL(exact || ours) over the predictions that are approximate, and the decisions it changed in the whole run."""

    predictions: int  # with a cache, only those that read it; the first step of a block fills it
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
        batch_size: None takes half of what would fit without the comparison, which needs memory for both.
        on_sample: Called with every sample.
    """
    if not requests:
        raise UserError("nothing to compare: give at least one request")
    if cache is None and against is None:
        raise UserError("nothing to compare with: name a cache, or another model")
    refuse_without_mask(model, "the comparison of predictions")
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


def states(sample: Sample, mask_id: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield for every step the row of token ids before it, and the positions it wrote.

    A step of an editing policy may write nothing; steps after the last write are in no trace.
    """
    if sample.trace is None:
        raise UserError(f"sample {sample.index}, {sample.text[:40]!r}, has no trace; sample with trace=True")
    row = list(sample.prompt) + [mask_id] * (max(sample.positions) + 1 - len(sample.prompt))
    by_step: dict[int, dict[int, int]] = {}
    final = zip(sample.trace.steps, sample.positions, sample.tokens)
    lost = ((step, sample.positions[n], token) for step, n, token in sample.trace.edits)
    for step, at, token in (*final, *lost):
        by_step.setdefault(step, {})[at] = token
    for step in range(max(by_step) + 1):
        written = by_step.get(step, {})
        yield list(row), sorted(written)
        for at, token in written.items():
            row[at] = token
