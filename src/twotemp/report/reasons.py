"""Count why samples are wrong: what graders said against them, by kind and by policy."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from twotemp.analysis import GradedCell
from twotemp.errors import counted
from twotemp.report.blocks import Part, table
from twotemp.report.run_data import policy_name

MOST_KINDS, LONGEST = 12, 100  # rows of the table and characters of a reason


def reason_table(
    name: str, cells: Sequence[GradedCell], reasons: Mapping[GradedCell, Counter[str]]
) -> list[Part]:
    """Return how often samples are wrong for which kind of reason, the most frequent first.

    Args:
        name: The name of the task.
        cells: The cells against whose samples graders gave reasons.
        reasons: What they said, by cell.
    """
    if not cells:
        return []
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    by_policy: Counter[tuple[int, str]] = Counter()
    for number, cell in enumerate(cells):
        for reason, times in reasons[cell].items():
            kinds[_kind(reason)][reason] += times
            by_policy[number, _kind(reason)] += times
    rows = []
    for kind in sorted(kinds, key=lambda kind: -kinds[kind].total())[:MOST_KINDS]:
        ((example, times),) = kinds[kind].most_common(1)
        shares = [by_policy[number, kind] / cell.drawn for number, cell in enumerate(cells)]
        entries = [{"text": f"{100 * share:.1f}", "value": share} for share in shares]
        rows.append([kind, *entries, f"{example[:LONGEST]} ({counted(times, 'time')})"])
    columns = ["kind of reason", *(policy_name(cell.policy) for cell in cells), "most frequent"]
    return [table(f"{name}: why samples are wrong, in % of graded samples", columns, rows)]


def _kind(reason: str) -> str:
    """Return a reason's first line without what differs from sample to sample: quoted text and numbers."""
    first = reason.strip().partition("\n")[0]
    return re.sub(r"\d+(\.\d+)?", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", first))[:LONGEST]
