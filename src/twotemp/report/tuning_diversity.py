"""Report `tune --at diversity`: the recommendation, the table of candidates, and the file for `twotemp eval`."""

from __future__ import annotations

from twotemp.errors import counted
from twotemp.policies import spell
from twotemp.tuning.diversity import DiversityStanding, Interval, TunedDiversity

COLUMNS = (
    *("policy", "overlap distance", "more than the start", "nats per token", "likelier than the start"),
    *("NFE", "within the margin"),
)  # fmt: skip


def recommendation(tuned: TunedDiversity) -> str:
    """State which policy to use, how much more diverse it is than the start, and what that costs."""
    best, start = tuned.chosen, spell(tuned.start)
    margin = f"{tuned.goal.margin:g} nats per token"
    on = f"on {counted(tuned.prompts, 'prompt')} with {tuned.goal.n} samples each"
    if best.candidate == tuned.start:
        others = counted(len(tuned.standings) - 1, "other candidate")
        return (
            f"Stay with {start}: of {others} none is more diverse without being less likely by more than {margin}, "
            f"{on}."
        )
    chance = "" if best.more_diverse[1] > 0 else " The difference in diversity could be chance."
    return (
        f"Use {spell(best.candidate)}: overlap distance {_interval(best.diversity)}, {_signed(best.more_diverse)} "
        f"against {start}, and {_signed(best.better)} nats per token (margin: {tuned.goal.margin:g}), "
        f"{on}.{chance} Likelihood is not correctness: read some of its texts."
    )


def table_row(standing: DiversityStanding) -> list[str]:
    """Return the `COLUMNS` of one candidate."""
    return [
        spell(standing.candidate),
        _interval(standing.diversity),
        _signed(standing.more_diverse),
        f"{standing.quality:.3f}",
        _signed(standing.better),
        f"{standing.cost:.1f}",
        "yes" if standing.qualifies else "no",
    ]


def markdown(tuned: TunedDiversity) -> str:
    """Return all candidates as a Markdown table, the chosen one first."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS), *map(table_row, tuned.standings)]
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in rows)
        + "\nOverlap distance: mean over pairs of samples of 1 − shared / all bigrams. Nats per token: mean "
        "log-probability of a token when it was written, by the model itself. The start is "
        f"{spell(tuned.start)}. Brackets: 95 % intervals over prompts.\n"
    )


def tuned_yaml(tuned: TunedDiversity) -> str:
    """Return a file whose `policies` `twotemp eval --policies @tuned.yaml` reads: the chosen policy and the start."""
    policies = dict.fromkeys((tuned.chosen.candidate, tuned.start))
    lines = [f"# {tuned.model}, {tuned.task.name}: {tuned.goal}", f"# {recommendation(tuned)}", "policies:"]
    lines += [f'  - "{spell(policy)}"' for policy in policies]
    return "\n".join([*lines, f"spent: {tuned.spent:.0f}  # NFE"]) + "\n"


def as_json(tuned: TunedDiversity) -> list[dict[str, object]]:
    """Return the standings as JSON data."""
    return [{**vars(row), "candidate": spell(row.candidate)} for row in tuned.standings]


def race_json(tuned: TunedDiversity) -> dict[str, object]:
    """Return the result as JSON data for the viewer."""
    return {
        "goal": str(tuned.goal),
        "recommendation": recommendation(tuned),
        "standings": [],
        "columns": list(COLUMNS),
        "rows": [table_row(standing) for standing in tuned.standings],
    }


def _interval(values: Interval) -> str:
    mean, low, high = values
    return f"{mean:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low == low else "")


def _signed(values: Interval) -> str:
    mean, low, high = values
    return f"{mean:+.3f}" + (f" [{low:+.3f}, {high:+.3f}]" if low == low else "")
