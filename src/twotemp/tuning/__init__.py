"""Which policy, and which numbers? A race of candidates on validation problems, for a goal and a budget.

All candidates see the same questions and the same noise, so that they are compared question by question. Every sample
is kept in an ordinary run folder, and every decision follows from what is stored there: a race that was stopped is
continued by starting it again.
"""

from twotemp.tuning.candidates import expand
from twotemp.tuning.goal import Goal
from twotemp.tuning.neighbours import apart
from twotemp.tuning.race import Outcome, Round, Standing, promises, race, standings
from twotemp.tuning.tuner import Tuned, tune
from twotemp.tuning.words import recommendation, table, tuned_yaml

__all__ = [
    "Goal",
    "Outcome",
    "Round",
    "Standing",
    "Tuned",
    "apart",
    "expand",
    "promises",
    "race",
    "recommendation",
    "standings",
    "table",
    "tune",
    "tuned_yaml",
]
