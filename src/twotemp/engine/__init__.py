"""The decoding engine, which runs policies on a denoiser: token ids in, samples out."""

from twotemp.engine.batch import Observer, RowStep, StepView
from twotemp.engine.engine import EngineOptions, LiveBatches, RowEvent, RowHandle, events, run
from twotemp.engine.observers import Ledger, Steps, states

__all__ = [
    "EngineOptions",
    "Ledger",
    "LiveBatches",
    "Observer",
    "RowEvent",
    "RowHandle",
    "RowStep",
    "StepView",
    "Steps",
    "events",
    "run",
    "states",
]
