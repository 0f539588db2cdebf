"""The race with a model: measuring is an ordinary evaluation, a round at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twotemp import metrics, tasks
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, Progress, TaskChoice
from twotemp.policies import spell
from twotemp.records import Policy
from twotemp.store import Cell
from twotemp.tuning.goal import Goal
from twotemp.tuning.neighbours import apart
from twotemp.tuning.race import Outcome, Round, Standing, race, standings

if TYPE_CHECKING:
    from twotemp.backends import Backend

# told(candidates, questions, progress of their evaluation)
Watch = Callable[[int, int, Progress], None]
_VALIDATION = "validation"


@dataclass(frozen=True)
class Tuned:
    """What a race found."""

    goal: Goal
    task: TaskChoice
    model: str
    spent: float  # NFE
    rounds: list[Round[Policy]]
    standings: list[Standing[Policy]]  # the recommended one first

    @property
    def held_out(self) -> bool:
        """Are there test problems that the race has not seen? Not every task has problems for validation."""
        usual = tasks.get(self.task.name).subsets[:1]
        return self.task.data is not None or self.task.subset not in (None, *usual)


def validation(plan: Plan) -> Plan:
    """The plan on validation problems of its one task, unless the user said which problems to tune on."""
    if len(plan.tasks) != 1:
        raise UserError("tune works on one task at a time; name one, e.g. --task countdown-3")
    (choice,) = plan.tasks
    if choice.subset is None and _VALIDATION in tasks.get(choice.name).subsets:
        choice = replace(choice, subset=_VALIDATION)
    return replace(plan, tasks=(choice,))


def tune(
    plan: Plan,
    goal: Goal,
    backend: Backend,
    out: Path | str,
    *,
    budget: float,
    watch: Watch | None = None,
) -> Tuned:
    """Race the plan's policies on its one task (`validation`). `plan.n` is the goal's affair; `plan.questions`: the
    most to use."""
    plan = validation(plan)
    (choice,) = plan.tasks
    ids = [problem.id for problem in choice.problems().problems[: plan.questions]]
    spent: dict[Policy, float] = {}

    def measure(some: Sequence[Policy], questions: int) -> list[Outcome]:
        told = None if watch is None else lambda state: watch(len(some), questions, state)
        found = _measure(replace(plan, questions=questions), goal, backend, out, some, ids[:questions], told)
        spent.update((one, outcome.spent) for one, outcome in zip(some, found))
        return found

    rounds = race(plan.policies, measure, budget, len(ids), apart=apart)
    return Tuned(goal, choice, backend.name, sum(spent.values()), rounds, standings(rounds, apart))


def _measure(
    plan: Plan,
    goal: Goal,
    backend: Backend,
    out: Path | str,
    policies: Sequence[Policy],
    ids: Sequence[str],
    watch: Callable[[Progress], None] | None,
) -> list[Outcome]:
    """Draw until each policy has the samples that the goal takes at its cost, which its samples say."""
    wanted = dict.fromkeys(policies, goal.k or 1)
    found: dict[Policy, Outcome] = {}
    while wanted:
        groups: dict[int, list[Policy]] = defaultdict(list)
        for policy, n in wanted.items():
            groups[n].append(policy)
        for n, some in groups.items():
            with Evaluation(replace(plan, policies=tuple(some), n=n), out) as evaluation:
                store = evaluation.run_with(backend, watch=watch)
                task, judge = plan.tasks[0].name, evaluation.judges[plan.tasks[0].name]
            for policy in some:
                outcome, needed = _read(store[f"{task}@{spell(policy)}"], judge, ids, n, goal)
                if needed > n:
                    wanted[policy] = needed
                else:
                    found[policy] = outcome
                    del wanted[policy]
    return [found[policy] for policy in policies]


def _read(cell: Cell, judge: str, ids: Sequence[str], n: int, goal: Goal) -> tuple[Outcome, int]:
    """A cell's first n samples of these questions, whatever else it holds; and how many the goal takes."""
    if judge not in cell.graders():
        run = cell.path.parent
        raise UserError(f"{cell.path} has no grades; run `twotemp regrade {run}`, then the same command")
    table = cell.table(judge)
    place = {question: row for row, question in enumerate(table.questions)}
    passed, costs = [], []
    nothing = np.zeros(0, dtype=bool)
    for question in ids:
        row = place.get(question)
        first = nothing if row is None else table.index[row] < n
        passed.append(nothing if row is None else table.passed[row][first])
        if row is not None and first.any():
            costs.append(table.nfe[row][first])
    # By the paper's accounting an empty answer of AR costs nothing; somebody has to find out that it is empty.
    cost = max(1.0, metrics.mean_cost(costs))
    spent = float(sum(c.sum() for c in costs))
    sooner = goal.half(cost).values(passed, cost)
    return Outcome(goal.values(passed, cost), goal.price(cost), spent, sooner), goal.samples(cost)
