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

    step: int  # of the row's own, from 0
    commits: list[tuple[int, int, float]]  # position, token (the mask: it was remasked), confidence


@dataclass(frozen=True)
class StepView:
    """A step that was just taken, row by row. Look at it during the call: the next step overwrites the rows.

    Tensors are the engine's own, on the model's device. Nothing is copied unless somebody looks.
    """

    rows: Rows
    window: Window
    logits: Tensor  # [N, V]: at the candidates, as the model gave them
    decision: Decision
    memory: Memory | None  # what the policies carry into the next step
    step: Tensor  # [B]: which step of its own each row took, from 0
    since: Tensor  # [B], on the host: how many it had taken in the same block
    decide: Callable[[Tensor], tuple[Decision, Memory | None]]  # again, by other logits

    @property
    def requests(self) -> Sequence[Request]:
        """Whose rows these are."""
        return self.rows.requests

    @property
    def canvas(self) -> Tensor:
        """[B, C]: token ids after the step, the mask where nothing is written yet; shorter rows are padded."""
        return self.rows.ids

    @property
    def before(self) -> Tensor:
        """[B, C]: the canvas before the step."""
        ids, window = self.rows.ids.clone(), self.window
        text = self.rows.model.mask_id if window.text is None else window.text.tokens.flatten()[window.index]
        ids[window.row, window.at] = text
        return ids

    def committed(self, row: int) -> list[tuple[int, int, float]]:
        """(position, token, confidence) of what the step wrote into this row."""
        return self.written([row])[0].commits

    def written(self, rows: Sequence[int]) -> list[Written]:
        """What the step wrote into these rows; one transfer for all of them."""
        made = self.decision
        # A confidence travels as its bits, so that integers and floats share the transfer.
        bits = made.confidence.float().view(torch.int32).long()
        step = self.step[:, None].expand_as(bits)
        parts = torch.stack([made.commit.long(), self.window.positions, made.tokens, bits, step])
        commit, at, tokens, bits, step = parts[:, torch.tensor(rows, device=parts.device)].cpu()
        surely = bits.int().view(torch.float32)
        return [
            Written(int(step[i, 0]), list(zip(*(v[i][chosen].tolist() for v in (at, tokens, surely)))))
            for i, chosen in enumerate(commit.bool())
        ]


class Observer:
    """Does nothing; override what you want to know."""

    def turn(self) -> AbstractContextManager[None]:
        """Around every turn of the loop; what lies between two turns is the caller's time."""
        return nullcontext()

    def lap(self, part: str) -> None:
        """A part of the turn is over: bookkeeping, forward, draw or select."""

    def step(self, view: StepView) -> None:
        """A step was taken."""


class Steps(Observer):
    """Calls a function after every step."""

    def __init__(self, on_step: Callable[[StepView], None]) -> None:
        self._on_step = on_step

    def step(self, view: StepView) -> None:
        self._on_step(view)
