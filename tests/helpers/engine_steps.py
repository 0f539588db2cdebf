"""Run a batch of the engine step by step, also on a device whose tensors hold no data."""

from __future__ import annotations

import copy

import torch

from twotemp.engine import Observer
from twotemp.engine.batch import Batch
from twotemp.engine.runner import runner_for
from twotemp.engine.scheduler import widths


def batch_of(model, wanted, cache=None) -> Batch:
    """Return a batch of these requests."""
    columns, block_width = widths(wanted, model)
    return Batch(model, wanted, columns, block_width, runner_for(model, len(wanted), columns, cache))


def step(batch: Batch) -> list[int]:
    """Run one step and return the rows that have finished."""
    return batch.commit(batch.run(Observer()))[0]


def blind(model):
    """Return the model on the meta device, where any code that needs the value of a tensor fails."""
    twin = copy.copy(model)
    twin.module = copy.deepcopy(model.module).to("meta")
    twin.device = torch.device("meta")
    return twin
