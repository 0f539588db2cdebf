"""Evaluate policies on tasks: draw samples, grade them, and store both.

Raw samples are stored before they are graded, and everything is addressed by (cell, question, sample index): a run
that was interrupted continues when it is started again, and a larger n draws only what is missing.
"""

from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.evaluation.runner import Evaluation, Progress
from twotemp.evaluation.work import regrade

__all__ = [
    "Evaluation",
    "Plan",
    "Progress",
    "TaskChoice",
    "regrade",
]
