"""Denoiser and policy meet here, and only here."""

from twotemp.engine.engine import run
from twotemp.engine.ledger import Ledger
from twotemp.engine.trace import states

__all__ = ["Ledger", "run", "states"]
