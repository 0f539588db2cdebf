"""The blocks of docs/frontier.md that show ladders and portfolios."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.blocks import listed, signed, table, with_interval
from experiments.portfolios import (
    EQUAL_NFE,
    KS,
    LADDERS,
    MARGIN,
    NAMES,
    NFE,
    SAMPLES,
    STATEMENTS,
    TESTS,
    VALIDATION,
)


def answer(result: dict[str, Any]) -> str:
    """Return five sentences: which sampler to use."""
    fixed, adaptive = result["ladders"]["fixed"], result["ladders"]["adaptive"]
    worst = {
        kind: min((row for row in result["climbs"] if row["kind"] == kind), key=lambda row: row["low"])
        for kind in LADDERS
    }
    held = {kind: worst[kind]["low"] > MARGIN for kind in LADDERS}
    ahead = [row for row in result["tuned"] if row["low"] > 0]
    behind = [row for row in result["tuned"] if row["high"] < MARGIN]
    gains = [row["mean"] for row in result["tuned"]]
    return " ".join(
        [
            f"**For N diverse answers, one token per step, use `{fixed}`"
            + ("**: " if held["fixed"] else "**, with a reservation: ")
            + "its first answer is LC's, and its pass rate minus that of the better of the two is, in the worst case "
            f"over tasks and up to 64 samples, {with_interval(worst['fixed'])} points.",
            f"**For N diverse answers, fast, use `{adaptive}`"
            + ("**: " if held["adaptive"] else "**, with a reservation: ")
            + f"in the worst case {with_interval(worst['adaptive'])} points.",
            "For a single answer use the plain policy, `lc` or `ct:threshold=0.9`: it is the first of each ladder.",
            "A portfolio tuned on validation problems (`twotemp tune --portfolio`) is ahead of the best single "
            f"policy, chosen on the same problems, at {len(ahead)} of {len(result['tuned'])} budgets beyond the "
            f"interval (median {signed(float(np.median(gains)))} points), and more than a point behind at "
            f"{len(behind)}.",
            "All of this was measured on an embedded model with short answers: measure it again on yours.",
        ]
    )


def ladders(result: dict[str, Any]) -> str:
    """Return how the ladders were chosen, and their table: a row per subset, task and k."""
    parts = []
    for kind, spec in result["ladders"].items():
        tried = ", ".join(f"`{entry['ladder']}` {entry['mean']:.1f}" for entry in result["tried"][kind])
        rows = [row for row in result["climbs"] if row["kind"] == kind]
        groups = list(dict.fromkeys((row["subset"], row["task"]) for row in rows))
        lines = [
            [
                f"{task} ({subset})",
                *(
                    f"{row['rates'][0]:.1f}: {with_interval(row)}{'' if row['low'] > MARGIN else ' ·'}"
                    for row in rows
                    if (row["subset"], row["task"]) == (subset, task)
                ),
            ]
            for subset, task in groups
        ]
        short = [row for row in rows if row["low"] <= MARGIN]
        verdict = (
            f"The lower end is above {signed(MARGIN)} everywhere."
            if not short
            else f"The lower end is not above {signed(MARGIN)} in {len(short)} of {len(rows)} cases (marked ·)."
        )
        parts.append(
            f"### `{spec}`\n\nChosen by the mean of pass@k over tasks and k on validation problems: {tried}. Entries "
            f"are pass@k of the ladder in %, and its difference to the better of its two policies. {verdict}\n\n"
            + table(["", *(f"k = {k}" for k in KS)], lines)
        )
    return "\n\n".join(parts)


def portfolios(result: dict[str, Any]) -> str:
    """Return the table of tuned portfolios against the best single policy."""
    rows = [
        [
            f"{row['task']} ({row['subset']})",
            row["at"],
            " + ".join(f"{count} {NAMES[name]}" for name, count in row["portfolio"].items()),
            NAMES[row["single"]],
            f"{row['rates'][0]:.1f}",
            f"{row['rates'][1]:.1f}",
            f"**{with_interval(row)}**" if row["low"] > 0 or row["high"] < 0 else with_interval(row),
        ]
        for row in result["tuned"]
    ]
    ahead = sum(row["low"] > 0 for row in result["tuned"])
    behind = sum(row["high"] < MARGIN for row in result["tuned"])
    note = (
        f"Both are chosen on {VALIDATION['questions']} validation problems with {VALIDATION['samples']} samples of "
        f"each policy. The portfolio is ahead beyond the interval at {ahead} of {len(rows)} budgets, and more than a "
        f"point behind at {behind}. Budgets that need more than {SAMPLES} samples of a policy are left out."
    )
    heads = ["task", "goal", "portfolio", "single policy", "%", "%", "difference"]
    return f"{note}\n\n{table(heads, rows, 3)}"


def powered(result: dict[str, Any]) -> str:
    """Return the pass rates of the policies with intervals, a table per task and subset."""
    parts = []
    for subset, task in dict.fromkeys((row["subset"], row["task"]) for row in result["rates"]):
        rows = [row for row in result["rates"] if (row["subset"], row["task"]) == (subset, task)]
        lines = [
            [
                NAMES[row["policy"]],
                f"`{row['policy']}`",
                f"{row['nfe']:.1f}",
                *(f"{p['mean']:.1f} ± {(p['high'] - p['low']) / 2:.1f}" for p in row["pass"].values()),
                *("–" if rate is None else f"{rate:.1f}" for rate in row["bought"].values()),
            ]
            for row in rows
        ]
        heads = ["", "policy", "NFE", *(f"pass@{k}" for k in KS), *(f"{nfe} NFE" for nfe in NFE)]
        parts.append(
            f"### {task}, {subset} ({rows[0]['questions']} questions)\n\n{table(heads, lines, len(heads) - 2)}"
        )
    return "\n\n".join(parts)


def statements(result: dict[str, Any]) -> str:
    """Return the table of statements with Holm's correction, and in words which hold."""
    groups = list(dict.fromkeys((row["subset"], row["task"]) for row in result["statements"]))
    rows = []
    for first, second, k, claim in STATEMENTS:
        cells = [row for row in result["statements"] if row["claim"] == claim]
        marks = {"holds": "**{}**", "opposite": "*{}*", "open": "{}"}
        held = sum(cell["verdict"] == "holds" for cell in cells)
        opposite = sum(cell["verdict"] == "opposite" for cell in cells)
        rows.append(
            [
                claim,
                f"{NAMES[first]} − {NAMES[second]}, " + (f"k = {k}" if k else f"{EQUAL_NFE} NFE"),
                *(marks[cell["verdict"]].format(with_interval(cell)) for cell in cells),
                f"{held} / {opposite} of {len(cells)}",
            ]
        )
    note = (
        "Differences in percentage points with paired 95 % intervals. Bold: the claim holds; italics: the opposite "
        f"holds, both after Holm's correction for all {len(result['statements'])} comparisons at 5 %."
    )
    heads = ["claim", "difference", *(f"{task} ({subset})" for subset, task in groups), "holds / opposite"]
    return f"{note}\n\n{table(heads, rows, len(heads) - 2)}"


def holding(result: dict[str, Any]) -> str:
    """Return in words which statements hold on which tasks."""
    lines = []
    for claim in dict.fromkeys(row["claim"] for row in result["statements"]):
        rows = [row for row in result["statements"] if row["claim"] == claim]
        words = []
        for verdict, text in (
            ("holds", "holds on"),
            ("opposite", "the opposite holds on"),
            ("open", "open on"),
        ):
            if names := [
                f"{row['task']}" + ("" if row["subset"] == next(iter(TESTS)) else f" ({row['subset']})")
                for row in rows
                if row["verdict"] == verdict
            ]:
                words.append(f"{text} {listed(names)}")
        lines.append(f"- {claim[0].upper()}{claim[1:]}: {'; '.join(words)}.")
    return "\n".join(lines)
