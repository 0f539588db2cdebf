"""Evaluate policies on tasks: draw samples, grade them, and keep both.

Raw samples are stored before they are graded, and everything is addressed by (cell, question, sample index): a run
that was stopped in any way is continued by starting it again, and a larger n draws only what is missing.
"""

from twotemp.evaluation.plan import Plan, TaskChoice
from twotemp.evaluation.progress import Progress
from twotemp.evaluation.runner import Evaluation
from twotemp.evaluation.stored import regrade

__all__ = [
    "Evaluation",
    "Plan",
    "Progress",
    "TaskChoice",
    "regrade",
]
