"""What a race found, for people and for `twotemp eval`."""

from __future__ import annotations

from collections.abc import Sequence

from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.tuning.race import Standing
from twotemp.tuning.tuner import Tuned

_SURE = 0.95


def recommendation(tuned: Tuned) -> str:
    """Which policy, how good, how sure, and what is as good for less."""
    finalists = [one for one in tuned.standings if one.finalist]
    best, others = finalists[0], finalists[1:]
    assert best.chance is not None
    close = [one for one in others if one.behind is not None and one.behind[2] >= 0]
    said = [
        f"Use {spell(best.candidate)}: {tuned.goal} {_points(best)} on {best.questions} {_problems(tuned)}, "
        f"{best.cost:.0f} NFE per question."
    ]
    if not others:
        said.append("Every other candidate was beaten on the way.")
    elif best.chance >= _SURE:
        said.append(f"It is the best of the {len(finalists)} finalists with chance {best.chance:.0%}.")
    else:
        said.append(
            f"This is not sure: it is the best of the {len(finalists)} finalists with chance {best.chance:.0%}, and "
            f"{len(close)} of the other {len(others)} cannot be told from it. A larger --budget would tell more."
        )
    cheaper = next((one for one in close if one.cost < best.cost), None)
    if cheaper is not None and cheaper.behind is not None:
        gap, low, high = (100 * x for x in cheaper.behind)
        said.append(
            f"For less: {spell(cheaper.candidate)} takes {cheaper.cost:.0f} NFE per question, {gap:+.1f} points "
            f"[{low:+.1f}, {high:+.1f}]."
        )
    said.append("It was chosen on these problems, so its rate here flatters it: measure it on test problems.")
    return " ".join(said)


def table(tuned: Tuned) -> str:
    """Everyone, as Markdown: the finalists by the goal, then those who left, the last ones first."""
    goal = str(tuned.goal)
    lines = [
        f"| policy | {goal} (%) | 95 % | NFE per question | questions | behind the best | chance to be best |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in tuned.standings:
        behind, chance = "left the race", ""
        if one.behind is not None and one.chance is not None:
            gap, low, high = (100 * x for x in one.behind)
            behind = f"{gap:+.1f} [{low:+.1f}, {high:+.1f}]"
            chance = f"{one.chance:.0%}"
        name = f"**{spell(one.candidate)}**" if one.on_frontier else spell(one.candidate)
        interval = f"{100 * one.low:.1f} to {100 * one.high:.1f}"
        lines.append(
            f"| {name} | {100 * one.mean:.1f} | {interval} | {one.cost:.1f} | {one.questions} | {behind} | {chance} |"
        )
    lines.append("")
    lines.append(
        "Bold: on the frontier, no finalist is as good for less. Those who left were seen on fewer questions."
    )
    return "\n".join(lines) + "\n"


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
    return "\n".join(lines) + "\n"


def rows(standings: Sequence[Standing[Policy]]) -> list[dict[str, object]]:
    """For programs."""
    return [{**vars(one), "candidate": spell(one.candidate)} for one in standings]


def _points(one: Standing[Policy]) -> str:
    return f"{100 * one.mean:.1f} % [{100 * one.low:.1f}, {100 * one.high:.1f}]"


def _problems(tuned: Tuned) -> str:
    return f"{tuned.task.subset or tuned.task.name} problems"
