"""Curves of portfolios are assembled from the cells of their policies."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.helpers import toy_task
from tests.helpers.toy_runs import PLAN, evaluate
from twotemp.analysis import PortfolioCell, add_ballots, best_at, choices, read, with_portfolios
from twotemp.cli import app
from twotemp.policies import parse, parse_portfolio, spell
from twotemp.report import viewer

pytestmark = pytest.mark.usefixtures("toy_tasks")
PORTFOLIO = parse_portfolio("ar:t_token=2 + 2*tlc:t_token=2 + ar:t_token=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        toy_task.install(patch)
        out = tmp_path_factory.mktemp("portfolio") / "run"
        return evaluate(
            toy_task.micro_model(), replace(PLAN, policies=(PORTFOLIO, parse("ar")), n=5), out
        ).path


@pytest.fixture
def cell(run) -> PortfolioCell:
    assembled = [
        c for c in with_portfolios(read([run]), [run]) if isinstance(c, PortfolioCell) and c.task == "toy"
    ]
    assert len(assembled) == 1
    return assembled[0]


def test_its_samples_are_those_of_its_places(cell):
    assert spell(cell.policy) == spell(PORTFOLIO)
    assert all(index.tolist() == [0, 1, 2, 3, 4] for index in cell.table.index)
    stored = {part.policy.name: part for part in cell.parts}
    assert {name: part.table.index[0].tolist() for name, part in stored.items()} == {
        "ar": [0, 3, 4],
        "tlc": [1, 2],
    }
    for row in range(len(cell.questions)):
        for place, index in enumerate(cell.table.index[row]):
            part = stored[PORTFOLIO.for_sample(int(index)).name].table
            where = part.index[row].tolist().index(index)
            assert cell.table.passed[row][place] == part.passed[row][where]
            assert cell.table.nfe[row][place] == part.nfe[row][where]


def test_its_pass_rates_count_all_sets_of_its_composition(cell):
    for row in range(len(cell.questions)):
        by_part = [part.table.passed[row] for part in cell.parts]
        for k in range(1, 6):
            names = [PORTFOLIO.for_sample(index).name for index in range(k)]
            counts = [names.count(part.policy.name) for part in cell.parts]
            sets = product(*(combinations(p, c) for p, c in zip(by_part, counts)))
            expected = np.mean([any(map(any, chosen)) for chosen in sets])
            assert cell.passes[row, k - 1] == pytest.approx(expected)


def test_its_cost_is_that_of_its_samples_in_order(cell):
    each = {part.policy: part.cost() for part in cell.parts}
    expected = np.cumsum([each[PORTFOLIO.for_sample(index)] for index in range(5)])
    assert cell.costs("nfe", [1, 2, 3, 4, 5]) == pytest.approx(expected)
    assert cell.cost() == pytest.approx(expected[-1] / 5)


def test_one_answer_is_chosen_from_its_first_samples(run):
    cells = with_portfolios(add_ballots(read([run])), [run])
    cell = next(c for c in cells if isinstance(c, PortfolioCell) and c.task == "toy")
    found = best_at(cell, "majority", [1, 5, 6])
    assert found[:, 0].tolist() == [float(passed[0]) for passed in cell.table.passed]
    positions = choices(cell, "majority")
    last = [0.0 if p is None else float(b.passed[p]) for b, p in zip(cell.ballots, positions)]
    assert found[:, 1].tolist() == last
    assert np.isnan(found[:, 2]).all()
    oracle = best_at(cell, "oracle", [3])[:, 0]
    assert oracle.tolist() == [float(passed[:3].any()) for passed in cell.table.passed]


@pytest.mark.slow
def test_reports_show_it(run, tmp_path):
    done = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report" / "report.md").read_text()
    assert "Autoregressive (t_token=2) + 2*TLC" in page
    overview = viewer.view([run]).overview()
    (chart, *_) = next(b for b in overview["blocks"] if b["kind"] == "charts" and b["title"] == "toy")[
        "items"
    ]
    assert any("(t_token=2) + 2*TLC" in series["name"] for series in chart["series"])
    assert not any("+" in policy["name"] for policy in overview["policies"])  # it has no samples of its own
    assert spell(PORTFOLIO) in (tmp_path / "report" / "passk.csv").read_text()
    assert "2*TLC" in (tmp_path / "report" / "selection.md").read_text()
