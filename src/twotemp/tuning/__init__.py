"""Choose a policy and its parameters: a race of candidates on validation problems, for a goal and a budget.

All candidates answer the same questions with the same noise, so they are compared question by question. Every sample
is stored in an ordinary run directory, and every decision follows from what is stored there: a race that was
interrupted continues when it is started again.
"""

from twotemp.tuning.goal import Goal, Tally, expand
from twotemp.tuning.race import (
    Measurement,
    Round,
    Standing,
    expected_scores,
    policy_distances,
    race,
    standings,
)
from twotemp.tuning.tuner import Tuned, TunedPortfolio, Tuner

__all__ = [
    "Goal",
    "Measurement",
    "Round",
    "Standing",
    "Tally",
    "Tuned",
    "TunedPortfolio",
    "Tuner",
    "expand",
    "expected_scores",
    "policy_distances",
    "race",
    "standings",
]
