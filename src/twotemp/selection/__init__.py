"""Test-time compute (section 4.2): what choosing needs beyond the grades, that is, whose answer equals whose by the
grader's own equivalence, and the rewards of a model. How to choose is `analysis.selectors`."""

from twotemp.selection.votes import count, group, scored_by

__all__ = ["count", "group", "scored_by"]
