"""Denoiser and policy meet here, and only here."""

from twotemp.engine.engine import Live, RowHandle, run
from twotemp.engine.ledger import Ledger
from twotemp.engine.observer import Observer, Steps, StepView, Written
from twotemp.engine.service import Service, Stopped
from twotemp.engine.trace import states

__all__ = [
    "Ledger",
    "Live",
    "Observer",
    "RowHandle",
    "Service",
    "StepView",
    "Steps",
    "Stopped",
    "Written",
    "run",
    "states",
]
