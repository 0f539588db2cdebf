"""Metrics on plain arrays: pass@k, pass@NFE, Best@k, bootstrap intervals, diversity. numpy only.

The common form is a table [questions, ks] of per-question values, NaN where a question has fewer than k samples.
`bootstrap` returns the means of one with intervals, `paired_bootstrap` the difference of two.
"""

from twotemp.metrics.best import NO_ANSWER, auc, best_by_score, best_by_vote, best_by_weighted_vote
from twotemp.metrics.bootstrap import Estimate, align, bootstrap, paired_bootstrap
from twotemp.metrics.diversity import answer_entropy
from twotemp.metrics.passk import at_budget, cost_axis, mean_cost, pass_at_k, tokens_per_forward

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
    "mean_cost",
    "paired_bootstrap",
    "pass_at_k",
    "tokens_per_forward",
]
