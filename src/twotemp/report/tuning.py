"""Report a race: the recommendation, the table of candidates, and the file for `twotemp eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.tuning import Standing, Tuned

_SURE = 0.95
_CHEAPER = 0.95  # of the winner's cost; a smaller saving is not mentioned


def recommendation(tuned: Tuned) -> str:
    """State which policy to use, how good it is, how certain that is, and what is as good for less."""
    finalists = [standing for standing in tuned.standings if standing.finalist]
    best, others = finalists[0], finalists[1:]
    assert best.chance is not None
    close = [standing for standing in others if standing.behind is not None and not standing.behind[2] < 0]
    sentences = [
        f"Use {spell(best.candidate)}: {tuned.goal} {_rate(best)} on {best.questions} "
        f"{tuned.task.subset or tuned.task.name} problems, {best.cost:.0f} NFE per question."
    ]
    if len(tuned.standings) == 1:
        sentences.append("There was no other candidate.")
    elif not others:
        sentences.append("No other candidate reached the last round.")
    elif best.chance >= _SURE:
        sentences.append(
            f"It is the best of the {len(finalists)} finalists with probability {best.chance:.0%}."
        )
    else:
        sentences.append(
            f"This is uncertain: it is the best of the {len(finalists)} finalists with probability "
            f"{best.chance:.0%}, and {len(close)} of the other {len(others)} cannot be told from it. A larger "
            "--budget would tell more."
        )
    cheaper = next((standing for standing in close if standing.cost < _CHEAPER * best.cost), None)
    if cheaper is not None and cheaper.behind is not None:
        sentences.append(
            f"For less: {spell(cheaper.candidate)} takes {cheaper.cost:.0f} NFE per question, "
            f"{_signed_points(*cheaper.behind)} points."
        )
    sentences.append(
        "It was chosen on these problems, so its rate here is optimistic: measure it on test problems."
        if tuned.held_out
        else "It was chosen on test problems, so every rate on them is optimistic: to measure it, tune on others "
        "(--subset, --data)."
    )
    return " ".join(sentences)


COLUMNS = (
    "policy",
    "{goal} (%)",
    "95 %",
    "NFE per question",
    "questions",
    "behind the best",
    "chance to be best",
)


def table_row(standing: Standing[Policy]) -> list[str]:
    """Return the `COLUMNS` of one candidate."""
    behind, chance = "eliminated", ""
    if standing.behind is not None and standing.chance is not None:
        behind, chance = _signed_points(*standing.behind), f"{standing.chance:.0%}"
    interval = "" if math.isnan(standing.low) else f"{100 * standing.low:.1f} to {100 * standing.high:.1f}"
    rate, cost = f"{100 * standing.mean:.1f}", f"{standing.cost:.1f}"
    return [spell(standing.candidate), rate, interval, cost, str(standing.questions), behind, chance]


def markdown(tuned: Tuned) -> str:
    """Return all candidates as a Markdown table: finalists first, then the last eliminated."""
    rows = [[column.format(goal=tuned.goal) for column in COLUMNS], ["---"] * len(COLUMNS)]
    for standing in tuned.standings:
        name, *numbers = table_row(standing)
        rows.append([f"**{name}**" if standing.on_frontier else name, *numbers])
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in rows)
        + "\nBold: on the frontier, no finalist is as good for less. Eliminated candidates were measured on fewer "
        "questions.\n"
    )


def tuned_yaml(tuned: Tuned) -> str:
    """Return a file whose `policies` `twotemp eval --policies @tuned.yaml` reads; the rest records their origin."""
    ends = [standing for standing in tuned.standings if standing.on_frontier]
    lines = [
        f"# {line}" for line in (f"{tuned.model}, {tuned.task.name}: {tuned.goal}", recommendation(tuned))
    ]
    lines += [
        "policies:",
        f'  - "{spell(tuned.standings[0].candidate)}"',
        "frontier:  # from the cheapest to the best",
    ]
    lines += [f'  - "{spell(end.candidate)}"' for end in sorted(ends, key=lambda end: end.cost)]
    lines.append(f"spent: {tuned.spent:.0f}  # NFE of the race")
    return "\n".join(lines) + "\n"


def as_json(standings: Sequence[Standing[Policy]]) -> list[dict[str, object]]:
    """Return the standings as JSON data."""
    return [{**vars(standing), "candidate": spell(standing.candidate)} for standing in standings]


def _rate(standing: Standing[Policy]) -> str:
    interval = "" if math.isnan(standing.low) else f" [{100 * standing.low:.1f}, {100 * standing.high:.1f}]"
    return f"{100 * standing.mean:.1f} %{interval}"


def _signed_points(gap: float, low: float, high: float) -> str:
    """Return `-1.5 [-3.0, +0.1]`, in points; the mean alone if there are too few questions for an interval."""
    interval = "" if math.isnan(low) else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * gap:+.1f}{interval}"
