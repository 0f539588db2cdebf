"""Test-time compute: one answer from many samples, by their answers, a reward model, or both (section 4.2)."""

from twotemp.selection.answers import elect, group
from twotemp.selection.ballots import Ballots, read
from twotemp.selection.selectors import SELECTORS, Selector, best_at, best_for, choices, named

__all__ = [
    "SELECTORS",
    "Ballots",
    "Selector",
    "best_at",
    "best_for",
    "choices",
    "elect",
    "group",
    "named",
    "read",
]
