"""Denoiser and policy meet here, and only here."""

from twotemp.engine.engine import Live, Ticket, run
from twotemp.engine.ledger import Ledger
from twotemp.engine.observer import Observer, Steps, StepView
from twotemp.engine.trace import states

__all__ = ["Ledger", "Live", "Observer", "StepView", "Steps", "Ticket", "run", "states"]
