"""Race policies with a model: each measurement is an ordinary evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from twotemp.tuning.race import (
    PROBE,
    Measurement,
    Round,
    Standing,
    affordable_questions,
    policy_distances,
    race,
    standings,
)

if TYPE_CHECKING:
    from twotemp.backends import Backend

# Called with (number of candidates, number of questions, progress of their evaluation).
RoundCallback = Callable[[int, int, Progress], None]
_VALIDATION = "validation"
FEW = 16  # questions of the first round of `Tuner.portfolio`


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


class Tuner:
    """Tunes on the one task of a plan, with a run directory that holds every sample it draws."""

    def __init__(
        self,
        plan: Plan,
        goal: Goal,
        backend: Backend,
        out: Path | str,
        *,
        budget: float,
        on_progress: RoundCallback | None = None,
    ) -> None:
        """Read the questions.

        Args:
            plan: Policies, the task (see `validation`) and at most how many questions to use; `n` follows from the
                goal.
            goal: What to optimize.
            backend: Draws the samples.
            out: The run directory.
            budget: NFE of all samples.
            on_progress: Called with the progress of each round.
        """
        self._plan = validation(plan)
        (self._choice,) = self._plan.tasks
        self._ids = [problem.id for problem in self._choice.problems().problems[: plan.questions]]
        components = (component for policy in plan.policies for component in policy.components)
        self._candidates = list(dict.fromkeys(components))
        self._goal, self._backend, self._out, self._budget = goal, backend, out, budget
        self._on_progress = on_progress
        self._spent: dict[Policy, float] = {}

    def race(self) -> Tuned:
        """Race the candidates: the best single policy."""
        goal = self._goal

        def measure(policies: Sequence[Policy], questions: int) -> list[Measurement]:
            return [
                Measurement(
                    goal.values(tally),
                    goal.price(tally.cost),
                    tally.spent,
                    goal.half(tally.cost).values(tally),
                )
                for tally in self._draw(policies, questions)
            ]

        rounds = race(
            self._candidates, measure, policy_distances, budget=self._budget, questions=len(self._ids)
        )
        ranked = standings(rounds, policy_distances)
        return Tuned(goal, self._choice, self._backend.name, sum(self._spent.values()), rounds, ranked)

    def portfolio(self) -> TunedPortfolio:
        """Choose the policies that draw a set of samples.

        All candidates start on a few questions. Portfolios are chosen on these questions and on resamples of them;
        candidates that none of them uses drop out. The others go on to twice as many questions, until the questions
        or the budget are used up.
        """
        goal, most = self._goal, len(self._ids)
        alive, probed = self._candidates, min(PROBE, most)
        price = sum(tally.spent for tally in self._draw(alive, probed)) / probed
        questions = affordable_questions(self._budget, price, min(FEW, most), len(alive))
        while True:
            tallies = self._draw(alive, questions)
            kept = useful(tallies, goal)
            price = sum(goal.price(tallies[number].cost) for number in kept)
            affordable = questions + int((self._budget - sum(self._spent.values())) / price)
            more = min(2 * questions, most, affordable)
            if more <= questions:
                break
            alive, questions = [alive[number] for number in kept], more
        best = choose(tallies, goal)
        return TunedPortfolio(
            goal,
            self._choice,
            self._backend.name,
            sum(self._spent.values()),
            len(self._candidates),
            from_order([alive[number] for number in best.order]),
            alive[best.single],
            best.compared,
        )

    def _draw(self, policies: Sequence[Policy], questions: int) -> list[Tally]:
        """Draw until each policy has as many samples as the goal needs at the cost of the policy's samples."""
        samples = dict.fromkeys(policies, self._goal.k or 1)
        tallies: dict[Policy, Tally] = {}
        report = self._on_progress
        on_progress = None if report is None else partial(report, len(policies), questions)
        while samples:
            groups: dict[int, list[Policy]] = defaultdict(list)
            for policy, n in samples.items():
                groups[n].append(policy)
            for n, group in groups.items():
                plan = replace(self._plan, questions=questions, policies=tuple(group), n=n)
                with Evaluation(plan, self._out) as evaluation:
                    store = evaluation.run_with(self._backend, on_progress=on_progress)
                    ((task, grader),) = evaluation.grader_names.items()
                for policy in group:
                    tally = _read(store[f"{task}@{spell(policy)}"], grader, self._ids[:questions], n)
                    if (needed := self._goal.samples(tally.cost)) > n:
                        samples[policy] = needed
                    else:
                        tallies[policy] = tally
                        del samples[policy]
        self._spent |= {policy: tally.spent for policy, tally in tallies.items()}
        return [tallies[policy] for policy in policies]


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
