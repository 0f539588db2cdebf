"""The decoding engine, which runs policies on a denoiser: token ids in, samples out."""

from twotemp.engine.batch import Observer, RowStep, StepView
from twotemp.engine.engine import EngineOptions, LiveBatches, RowEvent, RowHandle, events, run
from twotemp.engine.observers import Profiler, StepCallback, states

__all__ = [
    "EngineOptions",
    "LiveBatches",
    "Observer",
    "Profiler",
    "RowEvent",
    "RowHandle",
    "RowStep",
    "StepCallback",
    "StepView",
    "events",
    "run",
    "states",
]
