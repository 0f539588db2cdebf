"""Ladders and portfolios of policies on unseen test problems, against the policies they are made of.

    python -m experiments.paper --parts portfolios

Ladders and portfolios are chosen on validation problems. Every number follows from how many samples of each question
are right. The stored result keeps these counts: samples of a task, subset and policy that it holds are never drawn
again, and each task is stored as soon as it is complete. Results of several machines are joined with

    python -m experiments.paper --parts portfolios --merge OTHER/portfolios.json
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.command import evaluated
from experiments.embedded import points
from twotemp import metrics
from twotemp.metrics.estimates import Floats
from twotemp.policies import Portfolio, parse, parse_portfolio, spell
from twotemp.tuning import Goal, Tally
from twotemp.tuning.portfolio import choose, rates

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
    "test:31": {**dict.fromkeys(TASKS, 400), "words-2": 150, "words-3": 150},
    "test:32": dict.fromkeys(TASKS, 400),
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


def run(
    out: Path,
    questions: int,
    earlier: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
    draw: bool = True,
) -> dict[str, Any]:
    """Draw what is missing; return counts and comparisons as JSON.

    Args:
        out: Where samples are kept while a task is being drawn.
        questions: The largest number of test problems per task.
        earlier: Results for the same weights, whose counts are used instead of drawing.
        keep: Called with the result so far whenever a task is complete.
        draw: Draw what no earlier result has; otherwise leave it out.
    """
    found: dict[str, dict[str, Tallies]] = {subset: {} for subset in ("validation", *TESTS)}
    missing = []
    for cells in wanted(questions):
        known = {spec: stored(earlier, cells, spec) for spec in cells.policies}
        if common := min(cells.questions, *(len(tally.n) for tally in known.values())):
            found[cells.subset][cells.task] = {spec: first(tally, common) for spec, tally in known.items()}
        complete = {s: first(t, cells.questions) for s, t in known.items() if len(t.n) >= cells.questions}
        if len(complete) < len(known):
            missing.append((cells, complete))
    for number, (cells, complete) in enumerate(missing if draw else (), 1):
        lacking = [spec for spec in cells.policies if spec not in complete]
        tallies = complete | drawn(out / cells.subset.replace(":", "-") / cells.task, cells, lacking)
        found[cells.subset][cells.task] = {spec: tallies[spec] for spec in cells.policies}
        if number < len(missing):
            keep({"complete": False, **analysed(found)})
    return {"complete": draw or not missing, **analysed(found)}


class Wanted(NamedTuple):
    """The samples of some policies on one task."""

    subset: str
    task: str
    policies: Sequence[str]
    questions: int
    samples: int  # per question


def wanted(questions: int) -> Iterator[Wanted]:
    """Yield all samples in the order in which they are drawn: the tasks that decide, then the others.

    Args:
        questions: The largest number of test problems per task.
    """
    for task in TASKS:
        yield Wanted("validation", task, TRIED, **VALIDATION)
    for deciding in (True, False):
        for subset, sizes in TESTS.items():
            for task, size in sizes.items():
                if (task in TASKS) == deciding:
                    if not deciding:
                        yield Wanted("validation", task, POOL, **VALIDATION)
                    yield Wanted(subset, task, POOL, min(size, questions), SAMPLES)


def stored(earlier: Sequence[dict[str, Any]], cells: Wanted, spec: str) -> Tally:
    """Return the counts of a policy with the most questions among results for the same weights; without, none."""
    tallies = [Tally(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0)]
    for result in earlier:
        entry = result["counts"].get(cells.subset, {}).get(cells.task, {"n": 0})
        if entry["n"] == cells.samples and (counted := entry["policies"].get(spec)):
            right = np.array(list(map(int, counted["right"].split())))
            tallies.append(Tally(np.full(len(right), cells.samples), right, counted["nfe"]))
    return max(tallies, key=lambda tally: len(tally.n))


def first(tally: Tally, questions: int) -> Tally:
    """Return the tally of the first questions."""
    return tally.only(np.arange(questions))


def analysed(found: Mapping[str, Mapping[str, Tallies]]) -> dict[str, Any]:
    """Return counts, ladders, portfolios and statements as JSON.

    Args:
        found: The samples of the validation and test problems, by subset and task.
    """
    validation = found["validation"]
    ladders = {kind: chosen_ladder(validation, kind) for kind in LADDERS}
    measured = [
        (subset, task, found[subset][task])
        for subset, sizes in TESTS.items()
        for task in sizes
        if task in found[subset]
    ]
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
            {"task": task, "subsets": [subset for subset, *_ in same], "policy": name, **curve(joined)}
            for task, same in by_task(measured).items()
            for name in POOL
            for joined in [pooled([tallies[name] for _, _, tallies in same])]
        ],
        "statements": statements,
        "counts": {
            subset: {task: counts(tallies) for task, tallies in each.items()}
            for subset, each in found.items()
        },
    }


def drawn(out: Path, wanted: Wanted, specs: Sequence[str]) -> dict[str, Tally]:
    """Return how many of the first samples of each question are right, by policy."""
    cells = evaluated(
        out, wanted.task, specs, n=wanted.samples, questions=wanted.questions, subset=wanted.subset
    )
    tallies = {}
    for cell in cells:
        inside = [index < wanted.samples for index in cell.table.index]
        n = np.array([int(part.sum()) for part in inside])
        correct = np.array([int(p[part].sum()) for p, part in zip(cell.table.passed, inside)])
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
    for tallies in (validation[task] for task in TASKS if task in validation):
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
            **difference(mixed, better),  # none as long as only the plain policy has drawn
        }


def difference(first: Floats, second: Floats) -> dict[str, float]:
    """Return the mean paired difference in points with its interval; the same samples do not differ at all."""
    if np.array_equal(first, second):
        return dict.fromkeys(("mean", "low", "high"), 0.0)
    return points(metrics.paired_bootstrap(first, second))


# --- tuned portfolios -----------------------------------------------------------------------------------------


def tuned(validation: Tallies, test: Tallies) -> Iterator[dict[str, Any]]:
    """Yield the portfolio and the best single policy of every budget, chosen on validation, and their difference."""
    seen, unseen = ([tallies[name] for name in POOL] for tallies in (validation, test))
    for goal in (*(Goal(k=k) for k in KS), *(Goal(nfe=nfe) for nfe in NFE)):
        if any(goal.samples(tally.cost) > tally.n.min() for tally in seen):
            continue
        choice = choose(seen, goal)
        order, single = choice.order, choice.single
        # The last policy goes on: samples may cost less on the test problems, so that the budget buys more of them.
        mixed = rates(unseen, order if goal.k else order + order[-1:] * SAMPLES, goal)
        alone = rates(unseen, [single] * SAMPLES, goal)
        if np.isnan(mixed).any() or np.isnan(alone).any():
            continue
        yield {
            "at": str(goal),
            "portfolio": {POOL[number]: order.count(number) for number in dict.fromkeys(order)},
            "validation": points(choice.compared.difference),
            "single": POOL[single],
            "rates": [round(100 * float(values.mean()), 2) for values in (mixed, alone)],
            **difference(mixed, alone),
        }


# --- policies -------------------------------------------------------------------------------------------------


Measured = tuple[str, str, Tallies]  # subset, task, samples


def by_task(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Return what was measured on each task."""
    return {task: [entry for entry in measured if entry[1] == task] for _, task, _ in measured}


def pooled(tallies: Sequence[Tally]) -> Tally:
    """Return the samples of one policy on several sets of questions as one tally."""
    n, correct = (np.concatenate([getattr(tally, name) for tally in tallies]) for name in ("n", "correct"))
    return Tally(
        n, correct, float(np.average([t.cost for t in tallies], weights=[len(t.n) for t in tallies]))
    )


def curve(tally: Tally) -> dict[str, Any]:
    """Return the rates of one policy with intervals, and its cost."""
    passes = metrics.pass_at_k(tally.n, tally.correct, range(1, SAMPLES + 1))
    at_nfe = metrics.at_budget(passes, tally.cost, NFE)
    bought = [round(100 * float(rate), 2) if rate == rate else None for rate in at_nfe.mean(axis=0)]
    shown = metrics.bootstrap(passes[:, [k - 1 for k in KS]])
    return {
        "questions": len(tally.n),
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
