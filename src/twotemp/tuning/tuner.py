"""Race policies with a model: each measurement is an ordinary evaluation."""

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
from twotemp.policies import AnyPolicy, spell
from twotemp.policies.spelling import from_order
from twotemp.records import Policy
from twotemp.store import Cell
from twotemp.tuning.goal import Goal, Tally
from twotemp.tuning.portfolio import Comparison, choose, useful
from twotemp.tuning.race import Measurement, Round, Standing, policy_distances, race, standings

if TYPE_CHECKING:
    from twotemp.backends import Backend

# Called with (number of candidates, number of questions, progress of their evaluation).
RoundCallback = Callable[[int, int, Progress], None]
_VALIDATION = "validation"
FEW = 16  # questions of the first round of `tune_portfolio`


@dataclass(frozen=True)
class Tuned:
    """The result of a race."""

    goal: Goal
    task: TaskChoice
    model: str
    spent: float  # NFE
    rounds: list[Round[Policy]]
    standings: list[Standing[Policy]]  # the recommended policy first

    @property
    def held_out(self) -> bool:
        """Whether there are test problems that the race has not seen. Not every task has validation problems."""
        default = tasks.get(self.task.name).subsets[:1]
        return self.task.data is not None or self.task.subset not in (None, *default)


def validation(plan: Plan) -> Plan:
    """Return the plan on the validation problems of its one task, unless it names the problems to tune on."""
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
    on_progress: RoundCallback | None = None,
) -> Tuned:
    """Race the policies of a plan on its one task.

    Args:
        plan: Policies, the task (see `validation`) and at most how many questions to use; `n` follows from the goal.
        goal: What to optimize.
        backend: Draws the samples.
        out: The run directory.
        budget: NFE of all samples.
        on_progress: Called with the progress of each round.
    """
    plan = validation(plan)
    (choice,) = plan.tasks
    ids = [problem.id for problem in choice.problems().problems[: plan.questions]]
    spent: dict[Policy, float] = {}

    def measure(policies: Sequence[Policy], questions: int) -> list[Measurement]:
        report = None if on_progress is None else lambda state: on_progress(len(policies), questions, state)
        part = replace(plan, questions=questions)
        tallies = _draw(part, goal, backend, out, policies, ids[:questions], report)
        measurements = [
            Measurement(
                goal.values(tally),
                goal.price(tally.cost),
                tally.spent,
                goal.half(tally.cost).values(tally),
            )
            for tally in tallies
        ]
        spent.update((policy, measurement.spent) for policy, measurement in zip(policies, measurements))
        return measurements

    candidates = [component for policy in plan.policies for component in policy.components]
    rounds = race(candidates, measure, policy_distances, budget=budget, questions=len(ids))
    ranked = standings(rounds, policy_distances)
    return Tuned(goal, choice, backend.name, sum(spent.values()), rounds, ranked)


@dataclass(frozen=True)
class TunedPortfolio:
    """A portfolio, the best single policy, and their rates on questions that they were not chosen on."""

    goal: Goal
    task: TaskChoice
    model: str
    spent: float  # NFE
    candidates: int
    portfolio: AnyPolicy
    single: Policy
    compared: Comparison


def tune_portfolio(
    plan: Plan,
    goal: Goal,
    backend: Backend,
    out: Path | str,
    *,
    budget: float,
    on_progress: RoundCallback | None = None,
) -> TunedPortfolio:
    """Choose the policies that draw a set of samples, from those of a plan.

    All candidates start on a few questions. Portfolios are chosen on these questions and on resamples of them;
    candidates that none of them uses drop out. The others go on to twice as many questions, until the questions or
    the budget are used up. The arguments are
    those of `tune`.
    """
    plan = validation(plan)
    (choice,) = plan.tasks
    ids = [problem.id for problem in choice.problems().problems[: plan.questions]]
    candidates = list(dict.fromkeys(component for policy in plan.policies for component in policy.components))
    alive, spent, questions = candidates, dict.fromkeys(candidates, 0.0), min(FEW, len(ids))
    while True:
        count, seen = len(alive), questions
        report = None if on_progress is None else lambda state, a=count, q=seen: on_progress(a, q, state)
        part = replace(plan, questions=questions)
        tallies = _draw(part, goal, backend, out, alive, ids[:questions], report)
        spent.update((policy, tally.spent) for policy, tally in zip(alive, tallies))
        kept = useful(tallies, goal)
        price = sum(goal.price(tallies[number].cost) for number in kept)
        affordable = questions + int((budget - sum(spent.values())) / price)
        more = min(2 * questions, len(ids), affordable)
        if more <= questions:
            break
        alive, questions = [alive[number] for number in kept], more
    best = choose(tallies, goal)
    return TunedPortfolio(
        goal,
        choice,
        backend.name,
        sum(spent.values()),
        len(candidates),
        from_order([alive[number] for number in best.order]),
        alive[best.single],
        best.compared,
    )


def _draw(
    plan: Plan,
    goal: Goal,
    backend: Backend,
    out: Path | str,
    policies: Sequence[Policy],
    ids: Sequence[str],
    on_progress: Callable[[Progress], None] | None,
) -> list[Tally]:
    """Draw until each policy has as many samples as the goal needs at the cost of the policy's samples."""
    samples = dict.fromkeys(policies, goal.k or 1)
    result: dict[Policy, Tally] = {}
    while samples:
        groups: dict[int, list[Policy]] = defaultdict(list)
        for policy, n in samples.items():
            groups[n].append(policy)
        for n, group in groups.items():
            with Evaluation(replace(plan, policies=tuple(group), n=n), out) as evaluation:
                store = evaluation.run_with(backend, on_progress=on_progress)
                ((task, grader),) = evaluation.grader_names.items()
            for policy in group:
                tally = _read(store[f"{task}@{spell(policy)}"], grader, ids, n)
                if (needed := goal.samples(tally.cost)) > n:
                    samples[policy] = needed
                else:
                    result[policy] = tally
                    del samples[policy]
    return [result[policy] for policy in policies]


def _read(cell: Cell, grader: str, ids: Sequence[str], n: int) -> Tally:
    """Return the tally of the first n samples of these questions."""
    if grader not in cell.graders():
        run = cell.path.parent
        raise UserError(
            f"{cell.path} has no grades; run `twotemp regrade {run}`, then the same command again"
        )
    table = cell.table(grader)
    row_of = {question: row for row, question in enumerate(table.questions)}
    passed, costs = [], []
    nothing = np.zeros(0, dtype=bool)
    for question in ids:
        row = row_of.get(question)
        first = nothing if row is None else table.index[row] < n
        passed.append(nothing if row is None else table.passed[row][first])
        if row is not None and first.any():
            costs.append(table.nfe[row][first])
    # By the paper's accounting an empty answer of AR costs nothing, but one pass is needed to see that it is empty.
    cost = max(1.0, metrics.mean_cost(costs))
    n_, correct = (np.array([int(f(p)) for p in passed]) for f in (len, np.sum))
    return Tally(n_, correct, cost, spent=float(sum(c.sum() for c in costs)))
