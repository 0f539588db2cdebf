"""Denoiser and policy meet here, and only here."""

from twotemp.engine.engine import Live, RowEvent, RowHandle, events, run
from twotemp.engine.ledger import Ledger
from twotemp.engine.observer import Observer, Steps, StepView, Written
from twotemp.engine.trace import states

__all__ = [
    "Ledger",
    "Live",
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
