"""Which answers are the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from twotemp.metrics import NO_ANSWER


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
