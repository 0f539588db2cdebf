"""What a race found, for people and for `twotemp eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.tuning.race import Standing
from twotemp.tuning.tuner import Tuned

_SURE = 0.95
_LESS = 0.95  # of the winner's cost, or it is not worth a sentence


def recommendation(tuned: Tuned) -> str:
    """Which policy, how good, how sure, and what is as good for less."""
    finalists = [one for one in tuned.standings if one.finalist]
    best, others = finalists[0], finalists[1:]
    assert best.chance is not None
    close = [one for one in others if one.behind is not None and not one.behind[2] < 0]
    said = [
        f"Use {spell(best.candidate)}: {tuned.goal} {_points(best)} on {best.questions} {_problems(tuned)}, "
        f"{best.cost:.0f} NFE per question."
    ]
    if len(tuned.standings) == 1:
        said.append("There was no other candidate.")
    elif not others:
        said.append("No other candidate reached the last round.")
    elif best.chance >= _SURE:
        said.append(f"It is the best of the {len(finalists)} finalists with chance {best.chance:.0%}.")
    else:
        said.append(
            f"This is not sure: it is the best of the {len(finalists)} finalists with chance {best.chance:.0%}, and "
            f"{len(close)} of the other {len(others)} cannot be told from it. A larger --budget would tell more."
        )
    cheaper = next((one for one in close if one.cost < _LESS * best.cost), None)
    if cheaper is not None and cheaper.behind is not None:
        said.append(
            f"For less: {spell(cheaper.candidate)} takes {cheaper.cost:.0f} NFE per question, "
            f"{_signed(*cheaper.behind)} points."
        )
    said.append(
        "It was chosen on these problems, so its rate here flatters it: measure it on test problems."
        if tuned.held_out
        else "It was chosen on test problems, where every rate flatters it now: to measure it, tune on others "
        "(--subset, --data)."
    )
    return " ".join(said)


COLUMNS = (
    "policy",
    "{goal} (%)",
    "95 %",
    "NFE per question",
    "questions",
    "behind the best",
    "chance to be best",
)


def cells(one: Standing[Policy]) -> list[str]:
    """`COLUMNS` of one candidate."""
    behind, chance = "left the race", ""
    if one.behind is not None and one.chance is not None:
        behind, chance = _signed(*one.behind), f"{one.chance:.0%}"
    interval = "" if math.isnan(one.low) else f"{100 * one.low:.1f} to {100 * one.high:.1f}"
    rate, cost = f"{100 * one.mean:.1f}", f"{one.cost:.1f}"
    return [spell(one.candidate), rate, interval, cost, str(one.questions), behind, chance]


def table(tuned: Tuned) -> str:
    """Everyone, as Markdown: the finalists by the goal, then those who left, the last ones first."""
    rows = [[column.format(goal=tuned.goal) for column in COLUMNS], ["---"] * len(COLUMNS)]
    for one in tuned.standings:
        name, *numbers = cells(one)
        rows.append([f"**{name}**" if one.on_frontier else name, *numbers])
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in rows)
        + "\nBold: on the frontier, no finalist is as good for less. Those who left were seen on fewer questions.\n"
    )


def tuned_yaml(tuned: Tuned) -> str:
    """`twotemp eval --policies @tuned.yaml` takes `policies`; the rest says where they come from."""
    ahead = [one for one in tuned.standings if one.on_frontier]
    lines = [
        f"# {line}" for line in (f"{tuned.model}, {tuned.task.name}: {tuned.goal}", recommendation(tuned))
    ]
    lines += [
        "policies:",
        f'  - "{spell(tuned.standings[0].candidate)}"',
        "frontier:  # from the cheapest to the best",
    ]
    lines += [f'  - "{spell(one.candidate)}"' for one in sorted(ahead, key=lambda one: one.cost)]
    lines.append(f"spent: {tuned.spent:.0f}  # NFE of the race")
    return "\n".join(lines) + "\n"


def rows(standings: Sequence[Standing[Policy]]) -> list[dict[str, object]]:
    """For programs."""
    return [{**vars(one), "candidate": spell(one.candidate)} for one in standings]


def _points(one: Standing[Policy]) -> str:
    span = "" if math.isnan(one.low) else f" [{100 * one.low:.1f}, {100 * one.high:.1f}]"
    return f"{100 * one.mean:.1f} %{span}"


def _signed(gap: float, low: float, high: float) -> str:
    """`-1.5 [-3.0, +0.1]`, in points; the mean alone where questions are too few for an interval."""
    span = "" if math.isnan(low) else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * gap:+.1f}{span}"


def _problems(tuned: Tuned) -> str:
    return f"{tuned.task.subset or tuned.task.name} problems"
