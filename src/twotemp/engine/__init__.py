"""Denoiser and policy meet here, and only here."""

from twotemp.engine.engine import run
from twotemp.engine.trace import states

__all__ = ["run", "states"]
