"""The blocks of docs/frontier.md that show ladders and portfolios."""

from __future__ import annotations

from typing import Any

from experiments.blocks import listed, signed, table, with_interval
from experiments.portfolios import (
    EQUAL_NFE,
    KS,
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
    fixed, adaptive = (rule(result, kind) for kind in ("fixed", "adaptive"))
    mixed = mixtures(result)
    ahead = sum(row["low"] > 0 for row in mixed)
    loss = max([0.0, *(-row["mean"] for row in mixed)])
    return "\n".join(
        [
            "- **For one answer**, use the plain policy: `lc`, or `ct:threshold=0.9` to save forward passes.",
            f"- **For several different answers, one token per step**, use {fixed}",
            f"- **For several different answers with fewer forward passes**, use {adaptive}",
            "- **For a fixed budget**, `twotemp tune --portfolio` chooses between one policy and a mixture: it "
            f"chose a mixture at {len(mixed)} of {len(result['tuned'])} budgets, which is ahead of the best single "
            f"policy beyond the interval at {ahead}, and loses {loss:.1f} points at most.",
            "- **All of this was measured on a small embedded model with short answers.** Measure it again on yours.",
        ]
    )


def mixtures(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tuned portfolios of several policies."""
    return [row for row in result["tuned"] if len(row["portfolio"]) > 1]


def rule(result: dict[str, Any], kind: str) -> str:
    """Return a ladder and what it costs at worst, as the end of a sentence."""
    rows = [row for row in result["climbs"] if row["kind"] == kind]
    worst = min(rows, key=lambda row: row["mean"])
    short = sum(row["low"] <= MARGIN for row in rows)
    text = (
        f"the ladder `{result['ladders'][kind]}`: with up to {max(KS)} samples, its pass rate is at most "
        f"{abs(worst['mean']):.1f} points below that of the better of its two policies "
        f"({worst['task']} at k = {worst['k']}: {with_interval(worst)})"
    )
    if short:
        bound = f"less than {abs(MARGIN):.1f} with 95 % confidence"
        text += f"; our bound, {bound}, is missed in {short} of {len(rows)} cases"
    return text + "."


def missing(result: dict[str, Any]) -> str:
    """Say how much has been drawn, and what has not."""
    done, left = [], []
    for subset, sizes in TESTS.items():
        for task, size in sizes.items():
            entry = result["counts"][subset].get(task)
            drawn = len(next(iter(entry["policies"].values()))["right"].split()) if entry else 0
            if drawn:
                done.append(f"{drawn} of {task} ({subset})")
            if drawn < size:
                left.append(f"{size - drawn} of {task} ({subset})")
    text = f"Drawn so far, {SAMPLES} samples per problem and policy: {listed(done)}."
    return text + (f" Not yet: {listed(left)}." if left else "")


def ladders(result: dict[str, Any]) -> str:
    """Return how the ladders were chosen, and their table: a row per subset and task."""
    parts = []
    for kind, spec in result["ladders"].items():
        tried = "\n".join(f"- `{entry['ladder']}`: {entry['mean']:.1f} %" for entry in result["tried"][kind])
        rows = [row for row in result["climbs"] if row["kind"] == kind]
        groups = list(dict.fromkeys((row["subset"], row["task"]) for row in rows))
        lines = [
            [
                f"{task}, {subset}",
                *(rung(row) for row in rows if (row["subset"], row["task"]) == (subset, task)),
            ]
            for subset, task in groups
        ]
        short = sum(row["low"] <= MARGIN for row in rows)
        parts.append(
            f"### `{spec}`\n\n"
            + table(["", *(f"k = {k}" for k in KS)], lines)
            + "\n\nAn entry is pass@k of the ladder in %, and behind it the difference to the better of its two "
            "policies with half the width of its 95 % interval; without a second number they are equal. "
            + (
                f"Marked with ·: the lower end is not above {signed(MARGIN)} ({short} of {len(rows)} cases)."
                if short
                else f"The lower end is above {signed(MARGIN)} everywhere."
            )
            + "\n\nLadders that were compared, with the mean of pass@k over tasks and k on validation problems:\n\n"
            + tried
        )
    return "\n\n".join(parts)


def rung(row: dict[str, Any]) -> str:
    """Return an entry of a ladder's table."""
    text = f"{row['rates'][0]:.1f}"
    if row["low"] < row["high"]:
        text += f" {plus_minus(row)}"
    return text if row["low"] > MARGIN else f"{text} ·"


def plus_minus(row: dict[str, Any]) -> str:
    """Format a difference with half the width of its interval: `+1.0 ± 0.4`."""
    return f"{signed(row['mean'])} ± {(row['high'] - row['low']) / 2:.1f}"


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
        for row in mixtures(result)
    ]
    single = len(result["tuned"]) - len(rows)
    note = (
        "A portfolio and the best single policy are chosen on the same "
        f"{VALIDATION['questions']} validation problems with {VALIDATION['samples']} samples of each policy; budgets "
        "that need more of them are left out. Unless the portfolio is ahead in cross-validation, by more than a "
        f"standard error, the single policy draws all samples: so it is at {single} of {len(result['tuned'])} "
        "budgets. The table has the others. Bold: the interval excludes 0."
    )
    heads = ["task", "goal", "portfolio", "single policy", "%", "%", "difference"]
    return f"{note}\n\n{table(heads, rows, 3)}"


def powered(result: dict[str, Any]) -> str:
    """Return the pass rates of the policies, a table per task with the questions of all its subsets."""
    parts = []
    for task in dict.fromkeys(row["task"] for row in result["rates"]):
        rows = [row for row in result["rates"] if row["task"] == task]
        lines = [
            [
                NAMES[row["policy"]],
                f"{row['nfe']:.1f}",
                *(f"{p['mean']:.1f}" for p in row["pass"].values()),
                *("–" if rate is None else f"{rate:.1f}" for rate in row["bought"].values()),
            ]
            for row in rows
        ]
        widest = max((p["high"] - p["low"]) / 2 for row in rows for p in row["pass"].values())
        heads = ["", "NFE", *(f"pass@{k}" for k in KS), *(f"{nfe} NFE" for nfe in NFE)]
        parts.append(
            f"### {task} ({rows[0]['questions']} questions of {listed(rows[0]['subsets'])})\n\n"
            f"{table(heads, lines)}\n\nThe 95 % intervals of these rates are at most ± {widest:.1f} wide."
        )
    names = ", ".join(f"{name} is `{spec}`" for spec, name in NAMES.items())
    return (
        f"{names}. The last columns give the pass rate that a number of forward passes buys.\n\n"
        + "\n\n".join(parts)
    )


def statements(result: dict[str, Any]) -> str:
    """Return the tables of statements with Holm's correction, one per subset."""
    marks = {"holds": "**{}**", "opposite": "*{}*", "open": "{}"}
    parts = [
        "Differences in percentage points, ± half the width of the paired 95 % interval. Bold: the claim holds; "
        f"italics: the opposite holds, both after Holm's correction for all {len(result['statements'])} comparisons "
        "at 5 %."
    ]
    for subset in dict.fromkeys(row["subset"] for row in result["statements"]):
        here = [row for row in result["statements"] if row["subset"] == subset]
        rows = [
            [
                f"{NAMES[first]} − {NAMES[second]}, " + (f"k = {k}" if k else f"{EQUAL_NFE} NFE"),
                *(marks[row["verdict"]].format(plus_minus(row)) for row in here if row["claim"] == claim),
            ]
            for first, second, k, claim in STATEMENTS
        ]
        parts.append(table([subset, *dict.fromkeys(row["task"] for row in here)], rows))
    return "\n\n".join(parts)


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
