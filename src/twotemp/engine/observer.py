"""Watching a run: one protocol for profiles, drift, streaming and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from twotemp.engine.rows import Rows, Window
from twotemp.policies.step import Decision, Memory
from twotemp.records import Request


class Written(NamedTuple):
    """What one step wrote into a row."""

    step: int  # of this row, from 0
    commits: list[tuple[int, int, float]]  # position, token (the mask if it was remasked), confidence


@dataclass(frozen=True)
class StepView:
    """A step that was just taken, row by row. Read it during the call: the next step overwrites the rows.

    Tensors are the engine's own, on the model's device; nothing is copied before a property or method is used.
    """

    rows: Rows
    window: Window
    logits: Tensor  # [N, V]: at the candidates, as the model gave them
    decision: Decision
    memory: Memory | None  # what the policies carry into the next step
    step: Tensor  # [B]: the index of the step in its row, from 0
    block_step: Tensor  # [B], on the host: its index in the active block
    decide: Callable[[Tensor], tuple[Decision, Memory | None]]  # decides again, by other logits

    @property
    def requests(self) -> Sequence[Request]:
        """The requests of the rows."""
        return self.rows.requests

    @property
    def canvas(self) -> Tensor:
        """[B, C]: token ids after the step, the mask where nothing is written yet; shorter rows are padded."""
        return self.rows.state.ids

    @property
    def before(self) -> Tensor:
        """[B, C]: the canvas before the step."""
        ids, window = self.rows.state.ids.clone(), self.window
        text = self.rows.model.mask_id if window.text is None else window.text.tokens.flatten()[window.index]
        ids[window.row, window.column] = text
        return ids

    def committed(self, row: int) -> list[tuple[int, int, float]]:
        """Return (position, token, confidence) of what the step wrote into this row."""
        return self.written([row])[0].commits

    def written(self, rows: Sequence[int]) -> list[Written]:
        """Return what the step wrote into these rows, with one transfer for all of them."""
        decision = self.decision
        # Confidences are sent as their bits, so that integers and floats share the transfer.
        bits = decision.confidence.float().view(torch.int32).long()
        step = self.step[:, None].expand_as(bits)
        parts = torch.stack([decision.commit.long(), self.window.positions, decision.tokens, bits, step])
        commit, positions, tokens, bits, step = parts[:, torch.tensor(rows, device=parts.device)].cpu()
        confidence = bits.int().view(torch.float32)
        return [
            Written(
                int(step[i, 0]), list(zip(*(v[i][chosen].tolist() for v in (positions, tokens, confidence))))
            )
            for i, chosen in enumerate(commit.bool())
        ]


class Observer:
    """Observes a run. Does nothing by default; override the methods you need."""

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that surrounds every turn of the loop; the time between two turns is the caller's."""
        return nullcontext()

    def lap(self, part: str) -> None:
        """Note the end of a part of the turn: bookkeeping, forward, draw or select."""

    def step(self, view: StepView) -> None:
        """Note a step that was taken."""


class Steps(Observer):
    """Calls a function after every step."""

    def __init__(self, on_step: Callable[[StepView], None]) -> None:
        self._on_step = on_step

    def step(self, view: StepView) -> None:
        self._on_step(view)
