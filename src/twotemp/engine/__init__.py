"""The decoding engine, which runs policies on a denoiser: token ids in, samples out."""

from twotemp.engine.batch import Observer, StepView, Written
from twotemp.engine.engine import EngineOptions, LiveBatches, RowEvent, RowHandle, events, run
from twotemp.engine.observers import Ledger, Steps, states

__all__ = [
    "EngineOptions",
    "Ledger",
    "LiveBatches",
    "Observer",
    "RowEvent",
    "RowHandle",
    "StepView",
    "Steps",
    "Written",
    "events",
    "run",
    "states",
]
