"""Run a batch of the engine step by step, also on a device whose tensors hold no data."""

from __future__ import annotations

import copy

import torch

from twotemp.engine import Observer
from twotemp.engine.batch import Batch
from twotemp.engine.rows import widths


def batch_of(model, wanted, cache=None) -> Batch:
    return Batch(model, wanted, *widths(wanted, model), cache)


def step(batch: Batch) -> list[int]:
    return batch.commit(batch.run(Observer()))[0]


def blind(model):
    """The model on the meta device, whose tensors hold nothing: whatever needs a value or a size from them fails."""
    twin = copy.copy(model)
    twin.module = copy.deepcopy(model.module).to("meta")
    twin.device = torch.device("meta")
    return twin
