"""Curves of portfolios, assembled from the cells of their policies: nothing is drawn for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twotemp import metrics
from twotemp.analysis.cells import Ballot, Cost, GradedCell
from twotemp.analysis.compare import Choice, every_choice
from twotemp.analysis.selectors import add_ballots, common_reward_model
from twotemp.evaluation.work import portfolios_of
from twotemp.metrics.estimates import Floats
from twotemp.policies import Portfolio
from twotemp.records import Policy
from twotemp.store import Table


@dataclass(frozen=True, eq=False)
class PortfolioCell(GradedCell):
    """The samples of a portfolio on one task, in its order; `parts` has the cells of its policies.

    `table` has the samples that the portfolio draws. The pass rates use all samples of the parts: for every k, they
    average over sets with as many samples of each policy as the portfolio has among its first k.
    """

    portfolio: Portfolio | None = None
    parts: tuple[GradedCell, ...] = ()  # in the order of the portfolio's components, on the same questions

    @property
    def policy(self) -> Portfolio:  # type: ignore[override]  # reports ask for names, and for `components` where it matters
        assert self.portfolio is not None
        return self.portfolio

    @property
    def ordered(self) -> bool:
        return True

    @cached_property
    def _taken(self) -> NDArray[np.int64]:
        """How many of the first k samples are of each part, for k = 1, 2, ...: [samples, parts]."""
        numbers = {part.policy: number for number, part in enumerate(self.parts)}
        order = [numbers[self.policy.for_sample(index)] for index in range(self.samples)]
        return np.cumsum(np.eye(len(self.parts), dtype=np.int64)[order], axis=0)

    @cached_property
    def passes(self) -> Floats:
        """pass@k per question for k = 1, 2, ...: [questions, samples]; NaN where a question has too few samples."""
        n, correct = (
            np.stack([getattr(part.table, name) for part in self.parts], axis=1) for name in ("n", "correct")
        )
        return metrics.pass_of_allocations(n, correct, self._taken)

    def questions_at(self, k: int) -> frozenset[str]:
        """Return the questions that pass@k averages over."""
        return frozenset(q for q, rate in zip(self.questions, self.passes[:, k - 1]) if not np.isnan(rate))

    def cost(self, kind: Cost = "nfe") -> float:
        """Return the mean cost of a sample."""
        return float(self.costs(kind, [self.samples])[0] / self.samples)

    def costs(self, kind: Cost, ks: Sequence[int]) -> Floats:
        """Return the cost of the first k samples for each k."""
        each = np.array([part.cost(kind) for part in self.parts])
        columns: Floats = (self._taken @ each)[np.asarray(ks) - 1]
        return columns

    def only(self, rows: Sequence[int] | NDArray[np.int64]) -> GradedCell:
        """Return the cell restricted to these rows (questions), in this order."""
        cell = super().only(rows)
        assert isinstance(cell, PortfolioCell)
        return replace(cell, parts=tuple(part.only(rows) for part in self.parts))


def with_portfolios(cells: Sequence[GradedCell], runs: Sequence[Path | str]) -> list[GradedCell]:
    """Return the cells, followed by those of the portfolios that their runs record.

    Args:
        cells: The graded cells of these runs.
        runs: Run directories.
    """
    result = list(cells)
    for run in map(Path, runs):
        own = [cell for cell in cells if cell.path.parent.resolve() == run.resolve()]
        for portfolio in portfolios_of(run):
            result += _assembled(portfolio, own)
    return result


def stored_choices(cells: Sequence[GradedCell], runs: Sequence[Path | str]) -> list[Choice]:
    """Return Best@k of all cells with several samples, under the selectors that need nothing but their runs.

    Args:
        cells: The graded cells of these runs.
        runs: Run directories, whose portfolios count as cells.
    """
    model = common_reward_model(cells)
    selectors = ("majority", "orm", "weighted", "oracle") if model else ("majority", "oracle")
    counted = with_portfolios(add_ballots(cells, hub=False, reward_model=model), runs)
    return every_choice([cell for cell in counted if cell.samples > 1], selectors)


def _assembled(portfolio: Portfolio, cells: Sequence[GradedCell]) -> Iterator[PortfolioCell]:
    """Yield the cell of a portfolio for each task and model whose cells have all of its policies."""
    groups: dict[tuple[str, str], dict[Policy, GradedCell]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.task), {})[cell.policy] = cell
    for by_policy in groups.values():
        parts = [by_policy[policy] for policy in portfolio.components if policy in by_policy]
        if len(parts) < len(portfolio.components):
            continue
        common = set.intersection(*({*part.questions} for part in parts))
        parts = [part.only([row for row, q in enumerate(part.questions) if q in common]) for part in parts]
        if common and (table := _ordered(portfolio, parts)).questions:
            first = parts[0]
            yield PortfolioCell(
                first.path,
                first.config,
                first.grader,
                table,
                _ballots(portfolio, parts, table) if all(part.ballots for part in parts) else (),
                first.reward_model,
                portfolio,
                tuple(parts),
            )


def _ballots(portfolio: Portfolio, parts: Sequence[GradedCell], table: Table) -> tuple[Ballot, ...]:
    """Return the ballots of the samples that the portfolio draws."""
    number = {policy: n for n, policy in enumerate(portfolio.components)}
    ballots = []
    for row, indices in enumerate(table.index):
        own = [part.ballots[row] for part in parts]
        places = [
            (ballot := own[number[portfolio.for_sample(int(i))]], int(np.flatnonzero(ballot.index == i)[0]))
            for i in indices
        ]
        columns: dict[str, Any] = {
            name: np.array([getattr(b, name)[place] for b, place in places if len(getattr(b, name))])
            for name in ("index", "passed", "answers", "reward", "confidence", "likelihood")
        }
        ballots.append(replace(own[0], **columns))
    return tuple(ballots)


def _ordered(portfolio: Portfolio, parts: Sequence[GradedCell]) -> Table:
    """Return the samples that the portfolio draws: of each question those before the first that is missing."""
    tables: dict[Policy, Table] = dict(zip(portfolio.components, (part.table for part in parts)))
    names = [f.name for f in fields(Table) if f.name not in ("questions", "ungraded", "pending")]
    columns: dict[str, list[object]] = {name: [] for name in names}
    for row in range(len(parts[0].questions)):
        places = {
            policy: {int(i): n for n, i in enumerate(table.index[row])} for policy, table in tables.items()
        }
        picked: list[tuple[Table, int]] = []
        while (index := len(picked)) in places[policy := portfolio.for_sample(index)]:
            picked.append((tables[policy], places[policy][index]))
        for name in names:
            values = [getattr(table, name)[row][place] for table, place in picked]
            like = getattr(parts[0].table, name)[row]
            columns[name].append(
                tuple(values) if isinstance(like, tuple) else np.array(values, dtype=like.dtype)
            )
    arrays = {name: tuple(column) for name, column in columns.items()}
    return Table(
        questions=parts[0].questions,
        **arrays,  # type: ignore[arg-type]
        ungraded=sum(table.ungraded for table in tables.values()),
        pending=sum(table.pending for table in tables.values()),
    )
