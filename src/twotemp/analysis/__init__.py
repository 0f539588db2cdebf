"""What a run says, as numbers and sentences, from the store alone: no figure, no page, no model.

`survey` reads runs into `Graded` cells and says what is missing; `findings` compares policies on the same questions;
`Choice` is Best@k under one selector, on cells whose answers `selection.count` has compared.
"""

from twotemp.analysis.cells import Ballot, Graded, check_grid, k_grid, shared, unique
from twotemp.analysis.choice import Choice, every_choice, selection_findings
from twotemp.analysis.compare import Finding, findings, representatives
from twotemp.analysis.runs import Survey, grader_of, problems_of, read, remember_data, survey, task_of
from twotemp.analysis.selectors import SELECTORS, best_at, best_for, choices, elect, named

__all__ = [
    "SELECTORS",
    "Ballot",
    "Choice",
    "Finding",
    "Graded",
    "Survey",
    "best_at",
    "best_for",
    "check_grid",
    "choices",
    "elect",
    "every_choice",
    "findings",
    "grader_of",
    "k_grid",
    "named",
    "problems_of",
    "read",
    "remember_data",
    "representatives",
    "selection_findings",
    "shared",
    "survey",
    "task_of",
    "unique",
]
