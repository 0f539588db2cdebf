"""Turn stored runs into numbers: graded cells, comparisons of policies and Best@k. No sentence, figure or model.

`survey` reads runs into `GradedCell`s and lists what is missing; `findings` compares policies on the same questions;
`Choice` is Best@k under one selector, on cells that `add_ballots` has given the answers of their samples.
"""

from twotemp.analysis.cells import (
    Ballot,
    GradedCell,
    RunSurvey,
    check_grid,
    grader_of,
    k_grid,
    read,
    shared,
    survey,
    unique,
)
from twotemp.analysis.compare import (
    Choice,
    Finding,
    every_choice,
    findings,
    representatives,
    selection_findings,
)
from twotemp.analysis.portfolios import PortfolioCell, stored_choices, with_portfolios
from twotemp.analysis.selectors import (
    SELECTORS,
    add_ballots,
    best_at,
    best_for,
    check_selectors,
    choices,
    common_reward_model,
    elect,
    group_answers,
)

__all__ = [
    "SELECTORS",
    "Ballot",
    "Choice",
    "Finding",
    "GradedCell",
    "PortfolioCell",
    "RunSurvey",
    "add_ballots",
    "best_at",
    "best_for",
    "check_grid",
    "check_selectors",
    "choices",
    "common_reward_model",
    "elect",
    "every_choice",
    "findings",
    "grader_of",
    "group_answers",
    "k_grid",
    "read",
    "representatives",
    "selection_findings",
    "shared",
    "stored_choices",
    "survey",
    "unique",
    "with_portfolios",
]
