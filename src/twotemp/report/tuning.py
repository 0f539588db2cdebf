"""Report a race: the recommendation, the table of candidates, the frontier, and the file for `twotemp eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.report import style
from twotemp.report.figures import save, styled
from twotemp.report.style import NAMES
from twotemp.tuning import Standing, Tuned, TunedPortfolio

STANDINGS = "standings.json"  # the race, beside tuned.yaml
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


def portfolio_recommendation(tuned: TunedPortfolio) -> str:
    """State which portfolio to use, which single policy it was compared with, and how certain the difference is."""
    comparison = tuned.compared
    gap, low, high = (
        float(end[0])
        for end in (comparison.difference.mean, comparison.difference.low, comparison.difference.high)
    )
    name = tuned.task.subset or tuned.task.name
    sample = f"{comparison.questions} {name} problems, each judged by a choice on the others"
    behind = f"the best single policy on {sample}"
    if tuned.portfolio == tuned.single:
        return (
            f"Use {spell(tuned.single)} for all samples: no portfolio of the {tuned.candidates} candidates is "
            f"ahead of it by more than a standard error in {tuned.goal}. The best portfolios are "
            f"{_signed_points(gap, low, high)} points from {behind}: {100 * comparison.portfolio:.1f} and "
            f"{100 * comparison.single:.1f} %."
        )
    verdict = (
        "The difference is beyond chance."
        if low > 0
        else "The difference could be chance: use the single policy if you prefer samples that are exchangeable."
    )
    return (
        f"Use {spell(tuned.portfolio)}: {tuned.goal} {100 * comparison.portfolio:.1f} %, against "
        f"{100 * comparison.single:.1f} % of the best single policy, {spell(tuned.single)}: "
        f"{_signed_points(gap, low, high)} points, on {sample}. {verdict} "
        "Its first samples are a good portfolio for every smaller number of samples."
    )


def portfolio_yaml(tuned: TunedPortfolio) -> str:
    """Return a file for `twotemp eval --policies @tuned.yaml`: the portfolio and its rival."""
    lines = [
        f"# {tuned.model}, {tuned.task.name}: {tuned.goal}",
        f"# {portfolio_recommendation(tuned)}",
        "policies:",
        *(f'  - "{spell(policy)}"' for policy in dict.fromkeys((tuned.portfolio, tuned.single))),
        f"spent: {tuned.spent:.0f}  # NFE",
    ]
    return "\n".join(lines) + "\n"


def portfolio_json(tuned: TunedPortfolio) -> dict[str, object]:
    """Return the result as JSON data; the ends of the interval are null if there are too few questions."""
    comparison = tuned.compared
    ends = {name: float(getattr(comparison.difference, name)[0]) for name in ("mean", "low", "high")}
    return {
        "portfolio": spell(tuned.portfolio),
        "single": spell(tuned.single),
        "goal": str(tuned.goal),
        "portfolio_rate": comparison.portfolio,
        "single_rate": comparison.single,
        "difference": {name: None if math.isnan(value) else value for name, value in ends.items()},
        "questions": comparison.questions,
        "spent": tuned.spent,
    }


COLUMNS = (
    "policy", "{goal} (%)", "95 %", "NFE per question", "questions", "behind the best", "chance to be best",
)  # fmt: skip


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
        f"# {tuned.model}, {tuned.task.name}: {tuned.goal}",
        f"# {recommendation(tuned)}",
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


def race_json(tuned: Tuned | TunedPortfolio) -> dict[str, object]:
    """Return the race as JSON data for the viewer."""
    if isinstance(tuned, TunedPortfolio):
        rates = {tuned.portfolio: tuned.compared.portfolio, tuned.single: tuned.compared.single}
        return {
            "goal": str(tuned.goal),
            "recommendation": portfolio_recommendation(tuned),
            "standings": [],
            "columns": ["policy", f"{tuned.goal} (%)"],
            "rows": [[spell(policy), round(100 * rate, 1)] for policy, rate in rates.items()],
        }
    return {
        "goal": str(tuned.goal),
        "recommendation": recommendation(tuned),
        "standings": as_json(tuned.standings),
        "columns": [column.format(goal=tuned.goal) for column in COLUMNS],
        "rows": [table_row(standing) for standing in tuned.standings],
    }


def _rate(standing: Standing[Policy]) -> str:
    interval = "" if math.isnan(standing.low) else f" [{100 * standing.low:.1f}, {100 * standing.high:.1f}]"
    return f"{100 * standing.mean:.1f} %{interval}"


def _signed_points(gap: float, low: float, high: float) -> str:
    """Return `-1.5 [-3.0, +0.1]`, in points; the mean alone if there are too few questions for an interval."""
    interval = "" if math.isnan(low) else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * gap:+.1f}{interval}"


def draw_frontier(points: Sequence[Standing[Policy]], goal: str, title: str, path: Path) -> None:
    """Draw finalists with intervals and a line through the frontier; eliminated candidates are small.

    Args:
        points: Where each candidate ended.
        goal: The label of the y axis.
        title: The title of the figure.
        path: Where to save it, without a suffix.
    """
    with styled():
        from matplotlib.figure import Figure
        from matplotlib.ticker import ScalarFormatter

        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axis = figure.subplots()
        ends = sorted((p for p in points if p.on_frontier), key=lambda p: p.cost)
        axis.plot(
            [p.cost for p in ends], [100 * p.mean for p in ends], color=style.INK, linewidth=0.8, zorder=2
        )
        named: set[str] = set()
        for point in points:
            line = style.line(point.candidate)
            name = NAMES.get(point.candidate.name, point.candidate.name)
            bars = None
            if point.finalist:
                bars = [[100 * (point.mean - point.low)], [100 * (point.high - point.mean)]]
            axis.errorbar(
                [point.cost],
                [100 * point.mean],
                bars,
                color=line["color"],
                marker=line["marker"],
                linestyle="none",
                markersize=4.5 if point.finalist else 2.2,
                alpha=1.0 if point.finalist else 0.45,
                elinewidth=0.8,
                label=name if name not in named else None,
                zorder=4 if point.finalist else 3,
            )
            named.add(name)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(ScalarFormatter())
        axis.set_xlabel("NFE per question")
        axis.set_ylabel(f"{goal} (%)")
        axis.set_title(title)
        figure.legend(loc="outside right upper")
        save(path.parent, path.name, figure)
