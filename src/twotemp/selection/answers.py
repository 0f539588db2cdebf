"""Which answers are the same one, and which of them wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twotemp.errors import UserError
from twotemp.metrics import NO_ANSWER

TIE = 1e-12  # relative: equal sums added in another order may differ in the last digits


def group(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> NDArray[np.int64]:
    """Number the answers by `same`, from 0 in the order of first appearance; None (no answer) is NO_ANSWER.

    A grader's equivalence need not be transitive. An answer joins the first group whose first member it equals,
    so the numbers depend on the order of the answers and on nothing else.
    """
    members: list[str] = []  # the first of each group
    number: dict[str, int] = {}
    for answer in answers:
        if answer is None or answer in number:
            continue
        number[answer] = next((at for at, first in enumerate(members) if same(first, answer)), len(members))
        if number[answer] == len(members):
            members.append(answer)
    return np.array([NO_ANSWER if a is None else number[a] for a in answers], dtype=np.int64)


def elect(answers: ArrayLike, weights: ArrayLike) -> int | None:
    """The sample that speaks for the answer with the largest sum of weights; None where no sample has an answer.

    Of answers that tie, the one given first wins, and its first sample speaks for it.
    """
    groups, weight = np.asarray(answers), np.asarray(weights, dtype=np.float64)
    if groups.shape != weight.shape or groups.ndim != 1:
        raise UserError(
            f"one answer and one weight a sample are needed, not {groups.shape} and {weight.shape}"
        )
    if not np.isfinite(weight).all():
        raise UserError("a weight is not finite; check the scores that the vote is weighted by")
    at = np.flatnonzero(groups != NO_ANSWER)
    if not len(at):
        return None
    _, first, place = np.unique(groups[at], return_index=True, return_inverse=True)
    total = np.bincount(place, weights=weight[at])
    tied = total >= total.max() - TIE * max(1.0, abs(total.max()))
    return int(at[first[tied].min()])
