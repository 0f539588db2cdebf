"""Ladders and portfolios of policies on unseen test problems, against the policies they are made of.

    python -m experiments.paper --parts portfolios

Ladders and portfolios are chosen on validation problems. Every number follows from how many samples of each question
are right, which the stored result keeps, so that it can be analysed again without drawing. A run that was stopped
continues.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.blocks import listed, signed, table, with_interval
from experiments.command import evaluated
from experiments.embedded import points
from twotemp import metrics
from twotemp.policies import Portfolio, parse, parse_portfolio, spell
from twotemp.tuning import Goal, Tally
from twotemp.tuning.portfolio import best_single, greedy_order, rates

LC, TLC, CT, TCT, EB, TEMPERED_EB = POOL = (
    "lc",
    "tlc:t_pos=0.5",
    "ct:threshold=0.9",
    "tct:threshold=0.9",
    "eb",
    "eb:t_pos=0.2",
)
NAMES = dict(zip(POOL, ("LC", "TLC", "CT", "TCT", "EB", "tempered EB")))
TRIED = (*POOL, "tlc", "tct:threshold=0.9,t_pos=0.2")  # on validation problems
VALIDATION = {"questions": 60, "samples": 32}
SAMPLES = 64
TASKS = ("countdown-3", "countdown-4", "programs-1", "programs-2")  # whose validation problems decide
# Subset -> task -> questions. None of these problems was used before.
TESTS: dict[str, dict[str, int]] = {
    "test:31": {"countdown-3": 400, "countdown-4": 400, "programs-1": 200},
}
KS = (1, 2, 4, 8, 16, 32, 64)
NFE = (18, 36, 72, 144, 288)
MARGIN = -1.0  # points by which a ladder may be behind the better of its two policies
# Ladders that were compared on the validation problems: (plain, how many of its samples, tempered).
LADDERS = {
    "fixed": [(LC, count, second) for count in (1, 2) for second in (TLC, "tlc")],
    "adaptive": [
        (CT, count, second)
        for count in (1, 2)
        for second in (TCT, "tct:threshold=0.9,t_pos=0.2", EB, TEMPERED_EB)
    ],
}
# (first, second, k or 0 for equal NFE, source and claim)
EQUAL_NFE = 72
STATEMENTS = (
    (LC, TLC, 1, "the paper: LC is ahead of TLC with one sample"),
    (TLC, LC, 64, "the paper: TLC is ahead of LC with many samples"),
    (CT, TCT, 1, "the paper: CT is ahead of TCT with one sample"),
    (TCT, CT, 64, "the paper: TCT is ahead of CT with many samples"),
    (TCT, CT, 0, "the paper: TCT is ahead of CT at equal NFE"),
    (EB, TCT, 0, "observed here: EB is ahead of TCT at equal NFE"),
    (EB, TCT, 64, "observed here: EB is ahead of TCT with many samples"),
    (TEMPERED_EB, EB, 0, "not published: tempering helps EB at equal NFE"),
    (TEMPERED_EB, EB, 64, "not published: tempering helps EB with many samples"),
    (TEMPERED_EB, CT, 0, "not published: tempered EB is ahead of CT at equal NFE"),
)
Tallies = Mapping[str, Tally]  # policy -> its samples on one task


def run(out: Path, questions: int) -> dict[str, Any]:
    """Draw what is missing, of at most `questions` test problems per task; return counts and comparisons as JSON."""
    validation = {
        task: drawn(out / f"validation-{task}", task, "validation", TRIED, *VALIDATION.values())
        for task in TASKS
    }
    tests = {
        subset: {
            task: drawn(
                out / subset.replace(":", "-") / task, task, subset, POOL, min(count, questions), SAMPLES
            )
            for task, count in sizes.items()
        }
        for subset, sizes in TESTS.items()
    }
    return analysed(validation, tests)


def analysed(validation: Mapping[str, Tallies], tests: Mapping[str, Mapping[str, Tallies]]) -> dict[str, Any]:
    """Return counts, ladders, portfolios and statements as JSON."""
    ladders = {kind: chosen_ladder(validation, kind) for kind in LADDERS}
    measured = [(subset, task, tallies) for subset, each in tests.items() for task, tallies in each.items()]
    statements = [
        {"subset": subset, "task": task, **statement}
        for subset, task, tallies in measured
        for statement in compared(tallies)
    ]
    holm(statements)
    return {
        "ladders": {kind: spell(ladder(*entry)) for kind, entry in ladders.items()},
        "tried": {
            kind: [{"ladder": spell(ladder(*entry)), "mean": promise(validation, entry)} for entry in entries]
            for kind, entries in LADDERS.items()
        },
        "climbs": [
            {"subset": subset, "task": task, "kind": kind, **row}
            for subset, task, tallies in measured
            for kind, entry in ladders.items()
            for row in climb(tallies, *entry)
        ],
        "tuned": [
            {"subset": subset, "task": task, **row}
            for subset, task, tallies in measured
            for row in tuned(validation[task], tallies)
        ],
        "rates": [
            {"subset": subset, "task": task, "questions": len(tally.n), "policy": name, **curve(tally)}
            for subset, task, tallies in measured
            for name, tally in tallies.items()
        ],
        "statements": statements,
        "counts": {
            "validation": {task: counts(tallies) for task, tallies in validation.items()},
            **{
                subset: {task: counts(tallies) for task, tallies in each.items()}
                for subset, each in tests.items()
            },
        },
    }


def drawn(out: Path, task: str, subset: str, specs: Sequence[str], questions: int, samples: int) -> Tallies:
    """Return how many of the first `samples` samples of each question are right, by policy."""
    cells = evaluated(out, task, specs, n=samples, questions=questions, subset=subset)
    tallies = {}
    for cell in cells:
        first = [index < samples for index in cell.table.index]
        n = np.array([int(part.sum()) for part in first])
        correct = np.array([int(p[part].sum()) for p, part in zip(cell.table.passed, first)])
        tallies[spell(cell.policy)] = Tally(n, correct, cell.cost())
    return {spec: tallies[spell(parse(spec))] for spec in specs}


def counts(tallies: Tallies) -> dict[str, Any]:
    """Return the counts of right samples as JSON; all questions have the same number of samples."""
    (n,) = {int(n) for tally in tallies.values() for n in tally.n}
    return {
        "n": n,
        "policies": {
            name: {"nfe": round(tally.cost, 4), "right": " ".join(map(str, tally.correct.tolist()))}
            for name, tally in tallies.items()
        },
    }


# --- ladders --------------------------------------------------------------------------------------------------


def ladder(plain: str, count: int, tempered: str) -> Portfolio:
    """Return the portfolio whose first `count` samples are drawn by the plain policy."""
    portfolio = parse_portfolio(f"{count}*{plain} + {tempered}")
    assert isinstance(portfolio, Portfolio)
    return portfolio


def promise(validation: Mapping[str, Tallies], entry: tuple[str, int, str]) -> float:
    """Return a ladder's pass@k on validation problems in %, averaged over tasks and the k up to 32."""
    plain, count, tempered = entry
    values = []
    for tallies in validation.values():
        pair, order = [tallies[plain], tallies[tempered]], [0] * count + [1] * (VALIDATION["samples"] - count)
        values += [rates(pair, order, Goal(k=k)).mean() for k in KS if k <= VALIDATION["samples"]]
    return round(100 * float(np.mean(values)), 2)


def chosen_ladder(validation: Mapping[str, Tallies], kind: str) -> tuple[str, int, str]:
    """Return the ladder with the highest mean; the test problems lack policies that no ladder chose."""
    return max(LADDERS[kind], key=lambda entry: promise(validation, entry))


def climb(tallies: Tallies, plain: str, count: int, tempered: str) -> Iterator[dict[str, Any]]:
    """Yield a ladder's pass@k, those of its policies, and its difference to the better of the two."""
    pair = [tallies[plain], tallies[tempered]]
    for k in KS:
        goal = Goal(k=k)
        mixed, *alone = (
            rates(pair, order[:k], goal)
            for order in ([0] * min(count, k) + [1] * (k - count), [0] * k, [1] * k)
        )
        better = max(alone, key=lambda values: float(values.mean()))
        yield {
            "k": k,
            "rates": [round(100 * float(values.mean()), 2) for values in (mixed, *alone)],
            # Equal by construction as long as only the plain policy has drawn: no uncertainty.
            **(
                dict.fromkeys(("mean", "low", "high"), 0.0)
                if np.array_equal(mixed, better)
                else points(metrics.paired_bootstrap(mixed, better))
            ),
        }


# --- tuned portfolios -----------------------------------------------------------------------------------------


def tuned(validation: Tallies, test: Tallies) -> Iterator[dict[str, Any]]:
    """Yield the portfolio and the best single policy of every budget, chosen on validation, and their difference."""
    seen, unseen = ([tallies[name] for name in POOL] for tallies in (validation, test))
    for goal in (*(Goal(k=k) for k in KS), *(Goal(nfe=nfe) for nfe in NFE)):
        order, single = greedy_order(seen, goal), best_single(seen, goal)
        # The last policy goes on: samples may cost less on the test problems, so that the budget buys more of them.
        mixed = rates(unseen, order if goal.k else order + order[-1:] * SAMPLES, goal)
        alone = rates(unseen, [single] * SAMPLES, goal)
        if np.isnan(mixed).any() or np.isnan(alone).any():
            continue
        yield {
            "at": str(goal),
            "portfolio": {POOL[number]: order.count(number) for number in dict.fromkeys(order)},
            "single": POOL[single],
            "rates": [round(100 * float(values.mean()), 2) for values in (mixed, alone)],
            **points(metrics.paired_bootstrap(mixed, alone)),
        }


# --- policies -------------------------------------------------------------------------------------------------


def curve(tally: Tally) -> dict[str, Any]:
    """Return the rates of one policy with intervals, and its cost."""
    passes = metrics.pass_at_k(tally.n, tally.correct, range(1, SAMPLES + 1))
    at_nfe = metrics.at_budget(passes, tally.cost, NFE)
    bought = [round(100 * float(rate), 2) if rate == rate else None for rate in at_nfe.mean(axis=0)]
    shown = metrics.bootstrap(passes[:, [k - 1 for k in KS]])
    return {
        "nfe": round(tally.cost, 2),
        "pass": {str(k): points(shown, column) for column, k in enumerate(KS)},
        "bought": dict(zip(map(str, NFE), bought)),
    }


def compared(tallies: Tallies) -> Iterator[dict[str, Any]]:
    """Yield every statement as a paired difference with a p-value."""
    for first, second, k, claim in STATEMENTS:
        goal = Goal(k=k) if k else Goal(nfe=EQUAL_NFE)
        a, b = (rates([tallies[name]], [0] * SAMPLES, goal) for name in (first, second))
        gap = points(metrics.paired_bootstrap(a, b))
        spread = float((a - b).std(ddof=1)) / math.sqrt(len(a))
        chance = math.erfc(abs(float((a - b).mean())) / spread / math.sqrt(2)) if spread else 1.0
        yield {"claim": claim, "first": first, "second": second, "k": k, "p": chance, **gap}


def holm(statements: Sequence[dict[str, Any]], level: float = 0.05) -> None:
    """Mark the statements that hold, or whose opposite holds, after Holm's correction for all of them."""
    ordered = sorted(statements, key=lambda statement: statement["p"])
    rejected = True
    for number, statement in enumerate(ordered):
        rejected = rejected and statement["p"] <= level / (len(ordered) - number)
        statement["verdict"] = ("holds" if statement["mean"] > 0 else "opposite") if rejected else "open"


# --- blocks ---------------------------------------------------------------------------------------------------


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
