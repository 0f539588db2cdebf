"""Denoiser and policy meet here, and only here."""

from twotemp.engine.engine import Event, Live, Ticket, events, run
from twotemp.engine.ledger import Ledger
from twotemp.engine.observer import Observer, Steps, StepView, Written
from twotemp.engine.trace import states

__all__ = [
    "Event",
    "Ledger",
    "Live",
    "Observer",
    "StepView",
    "Steps",
    "Ticket",
    "Written",
    "events",
    "run",
    "states",
]
