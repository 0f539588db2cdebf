"""Metrics on plain arrays: pass@k, pass@NFE, Best@k, bootstrap intervals, diversity. numpy only.

The common form is a table [questions, ks] of per-question values, NaN where a question has fewer than k samples.
`bootstrap` returns the means of one with intervals, `paired_bootstrap` the difference of two.
"""

from twotemp.metrics.best import (
    NO_ANSWER,
    answer_entropy,
    auc,
    best_by_score,
    best_by_vote,
    best_by_weighted_vote,
)
from twotemp.metrics.diversity import distinct, overlap_distance, self_bleu, token_losses, words
from twotemp.metrics.estimates import (
    Estimate,
    align,
    at_budget,
    bootstrap,
    cost_axis,
    mean_cost,
    paired_bootstrap,
    pass_at_k,
    pass_of_allocations,
    tokens_per_forward,
)

__all__ = [
    "NO_ANSWER",
    "Estimate",
    "align",
    "answer_entropy",
    "at_budget",
    "auc",
    "best_by_score",
    "best_by_vote",
    "best_by_weighted_vote",
    "bootstrap",
    "cost_axis",
    "distinct",
    "mean_cost",
    "overlap_distance",
    "paired_bootstrap",
    "pass_at_k",
    "pass_of_allocations",
    "self_bleu",
    "token_losses",
    "tokens_per_forward",
    "words",
]
