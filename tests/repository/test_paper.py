"""The numbers in README and docs are generated from the stored results."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from experiments import blocks, canvases, command, embedded, frontier, paper, parts, portfolios, verifier
from tests.helpers.graded_cells import graded
from twotemp import metrics, tasks
from twotemp.evaluation import comparison
from twotemp.policies import parse
from twotemp.tuning import Tally

PAIR = {"mean": 4.04, "low": -2.0, "high": 10.0}


def cells(**rates: float) -> list[dict]:
    """Return cells of one task with these pass rates at k = 1 and 64."""
    return [
        {
            "task": "countdown-4",
            "name": name,
            "policy": comparison.policies("countdown-4")[name],
            "nfe": 12.0,
            "questions": 500,
            "grader": "countdown 1",
            "pass": {k: {"mean": rate + (k == "64"), "low": rate - 2, "high": rate + 2} for k in ("1", "64")},
        }
        for name, rate in rates.items()
    ]


@pytest.fixture(scope="module")
def differing():
    return paper.differing()


@pytest.mark.parametrize("document", paper.DOCUMENTS)
def test_the_documents_are_up_to_date_with_the_stored_results(document, differing):
    """After a change of a block, a result or the weights, run `python -m experiments.paper --blocks`."""
    assert document not in differing


def test_every_block_is_made_by_a_part_and_used_in_a_document():
    shown = [
        name for document in paper.DOCUMENTS for name in blocks.names((paper.ROOT / document).read_text())
    ]
    assert sorted(shown) == sorted(paper.BLOCKS)


def test_the_figures_belong_to_the_stored_results():
    for path in sorted(paper.RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        assert path.stem in paper.PARTS
        for name, digest in result["figures"].items():
            assert paper.digest(paper.ROOT / "docs" / "figures" / name) == digest, name


def test_only_blocks_are_rewritten():
    text = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n<!-- generated: y -->\n<!-- end -->\n"
    assert blocks.names(text) == ["x", "y"]
    new = blocks.rewritten(text, lambda name: f"new {name}\n")
    assert new == text.replace("old", "new x").replace("y -->\n", "y -->\nnew y\n")
    assert blocks.rewritten(new, lambda name: f"new {name}") == new


@pytest.fixture
def write_result(monkeypatch, tmp_path):
    """Set up a repository with one document, and return a function that writes the result of one part."""
    (tmp_path / "page.md").write_text("<!-- generated: measured -->\n<!-- end -->\n")
    monkeypatch.setattr(paper, "ROOT", tmp_path)
    monkeypatch.setattr(paper, "RESULTS", tmp_path)
    monkeypatch.setattr(paper, "DOCUMENTS", ("page.md",))

    def write(inputs: dict[str, Any], **rates: float) -> None:
        differences = [
            {"task": "countdown-4", "first": first, "second": second, "k": k or 64, **PAIR}
            for first, second, k in embedded.AT_EQUAL_SAMPLES
        ]
        easier = {"countdown-3": {"mean": 80.0, "low": 78.0, "high": 82.0}}
        summary = {"cells": cells(**rates), "easier": easier, "differences": differences}
        summary |= {"parameters": 835_968, "blocks": 2}
        result = {**inputs, "questions": 500, "samples": 64, "figures": {}, "found": summary}
        (tmp_path / "claims.json").write_text(json.dumps(result))

    return write


def test_a_document_differs_when_the_result_or_the_weights_change(write_result, tmp_path):
    page, shipped = tmp_path / "page.md", paper.inputs(paper.PARTS["claims"])
    paper.write_documents()
    assert 'Not measured with these models yet; run `make paper PARTS="claims"`' in page.read_text()
    write_result(shipped, ar=40.0, lc=55.7, tlc=47.4, ct=44.7, tct=37.8)
    assert paper.differing()
    paper.write_documents()
    assert not paper.differing()
    assert "| LC | 12.0 | **55.7** ± 2.0 | **56.7** ± 2.0 |" in page.read_text()
    assert "0.8 M parameters" in page.read_text()
    tlc, tct = comparison.T_POS["countdown-4"]
    assert f"2 blocks per answer, T_token = 0.8, K = 1, λ = {comparison.THRESHOLD}. T_pos" in page.read_text()
    assert f"{tlc} and {tct} on countdown-4" in page.read_text()
    assert "have changed since" not in page.read_text()
    assert paper.current("claims", 500, 64)
    assert not paper.current("claims", 100, 64)
    write_result(shipped, ar=40.0, lc=55.8, tlc=47.4, ct=44.7, tct=37.8)
    assert paper.differing()
    for what in ("weights", "settings"):
        write_result({**shipped, what: "others"}, ar=40.0, lc=55.7, tlc=47.4, ct=44.7, tct=37.8)
        paper.write_documents()
        assert f"The {what} have changed since this was measured" in page.read_text()
        assert not paper.current("claims", 500, 64)


def test_numbers_and_verdicts_follow_the_intervals():
    assert blocks.with_interval(PAIR) == "+4.0 (−2.0 to +10.0)"
    assert blocks.signed(-0.04) == "0.0"
    assert blocks.listed(["a", "b", "c"]) == "a, b and c"
    up, no = {"task": "a", **PAIR, "low": 1.0}, {"task": "b", **PAIR}
    assert blocks.where([up]) == "on all tasks"
    assert blocks.where([no]) == "on none of the tasks"
    assert blocks.where([up, no]) == "on a, but not on b"


def test_an_experiment_stops_if_its_command_is_interrupted(monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("twotemp.cli.evaluate.run_plan", interrupted)
    with pytest.raises(SystemExit) as stopped:  # instead of storing an incomplete result
        embedded.draw(tmp_path, questions=1, samples=1)
    assert stopped.value.code == 130


def test_commands_run_in_parallel_with_one_core_each(tmp_path, capfd):
    """No further command is started after one has failed."""
    # A single write, because two processes write at the same time.
    report = "f'{len(os.sched_getaffinity(0))} {os.environ[\"OMP_NUM_THREADS\"]}\\n'"
    code = f"import os; os.write(1, {report}.encode())"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(code)
    listing = ["tasks", "--plugin", str(plugin)]
    command.side_by_side([listing] * 3)
    assert capfd.readouterr().out.splitlines().count("1 1") == 3
    with pytest.raises(subprocess.CalledProcessError):
        command.side_by_side([["no-such-command"], *[listing] * 20])
    assert capfd.readouterr().out.splitlines().count("1 1") < 20


def test_the_claims_are_drawn_summarized_and_reported(monkeypatch, tmp_path):
    """Samples of the easier levels are not in the figures."""
    written = []
    hard, easy = (graded("lc", [1], task=task) for task in (embedded.TASKS[0], embedded.EASIER[0]))
    monkeypatch.setattr(embedded, "draw", lambda out, **size: [easy, hard])
    monkeypatch.setattr(embedded, "summary", lambda cells, samples: {"cells": cells, "samples": samples})
    monkeypatch.setattr(parts, "write", lambda cells, folder: written.append((cells, folder)))
    assert parts.claims(paper.PartOptions(tmp_path, 1, 1)) == {"cells": [easy, hard], "samples": 1}
    assert written == [([hard], tmp_path / "claims" / "report")]


def test_only_the_requested_cells_and_questions_are_read():
    """The run directory may also hold cells of earlier settings, and more questions."""
    ids = [problem.id for problem in tasks.get("countdown-3").problems().problems[:5]]
    before, now = (
        graded(f"tct:t_pos={t_pos}", [8, 8, 8, 0, 0], questions=ids[::-1]) for t_pos in (0.15, 0.3)
    )
    (cell,) = command.select([before, now], ["tct:t_pos=0.3"], 2)
    assert (cell.policy, cell.questions) == (now.policy, tuple(ids[:2]))
    assert cell.passes[:, 0].tolist() == [0.0, 0.0]


def test_tct_is_drawn_until_it_has_used_half_of_the_nfe_of_ar(monkeypatch, tmp_path):
    """Also if later samples are cheaper than the first."""
    requested = []

    def evaluated(out, task, specs, *options, n, **size):
        requested.append((task, n))
        costs = {"ar": 20, "tct": 9 if n == 4 else 7}
        return [graded(spec, [1], n=n, task=task, cost=costs.get(parse(spec).name)) for spec in specs]

    monkeypatch.setattr(embedded, "evaluated", evaluated)
    cells = embedded.draw(tmp_path, questions=1, samples=4, tasks=["countdown-4"])
    assert [n for task, n in requested if task == "countdown-4"] == [4, 5, 6]
    by_policy = {cell.policy.name: cell for cell in cells if cell.task == "countdown-4"}
    assert (list(by_policy), by_policy["tct"].samples) == (["ar", "lc", "tlc", "ct", "tct"], 6)


def test_a_budget_below_one_sample_has_no_rate_and_no_solution_has_rate_zero():
    methods = [{"name": "AR", "policy": "ar", "nfe": 12.0, "pass": {"1": {"mean": 0.0}}}]
    methods[0]["bought"] = {str(n): None for n in frontier.BOUGHT}
    result = {
        "samples": 1,
        "seeds": 1,
        "studies": [{"task": "a", "questions": 9, "ar": 12.0, "methods": methods}],
    }
    assert frontier.render(result).endswith("| AR | `ar` | 12.0 | **0.0** | – | – | – |")
    assert frontier.ahead(result) == "- a: AR at k = 1 (0.0 %)."


def test_cells_without_right_and_wrong_samples_are_left_out_of_the_auc():
    row = {"task": "a", "name": "ar", "mixed": 3, "auc": {"verifier": {"mean": 71.0}}}
    result = {"questions": 9, "samples": 4, "auc": [{**row, "mixed": 0, "auc": {}}, row]}
    assert verifier.render_auc(result).endswith("The verifier's lowest AUC is 0.71 on a.")


class ConstantRates:
    """A method with the same rate for every question and k, and half of it at the NFE of EQUAL AR samples."""

    cost = 12.0

    def __init__(self, rate: float, questions: int) -> None:
        self.rate, self.questions = rate, questions

    def at(self, k):
        return np.full(self.questions, self.rate)

    def at_nfe(self, nfe):
        return np.full(self.questions, self.rate * nfe / (2 * frontier.EQUAL * self.cost))


def test_claims_are_compared_by_task_and_over_all_questions():
    names = {name for first, second, *_ in frontier.STATEMENTS for name in (first, second)}
    few, many = (
        {name: ConstantRates(rate if name == "LC" else 0.5, questions) for name in names}
        for rate, questions in ((0.9, 10), (0.6, 30))
    )
    studies = [
        {"task": task, "statements": frontier.compared([methods], 4)}
        for task, methods in (("a", few), ("b", many))
    ]
    result = {"studies": studies, "statements": frontier.compared([few, many], 4)}
    first = frontier.STATEMENTS[0]
    assert (first[0], first[1], first[2]) == ("LC", "TLC", 1)
    assert [gap["mean"] for gap in (*(s["statements"][0] for s in studies), result["statements"][0])] == [
        pytest.approx(points, abs=0.5) for points in (40.0, 10.0, 17.5)
    ]
    row = frontier.statements(result).splitlines()[4]
    assert row.startswith(f"| {first[3]} | LC − TLC, k = 1 | **+4")
    assert row.endswith("| 2 / 0 of 2 |")
    assert "TLC − LC, k = 4" in frontier.statements(result)  # k is limited to the number of samples
    assert "TCT − AR, NFE of 4 AR samples | 0.0 (" in frontier.statements(result)


def test_holms_correction_stops_at_the_first_comparison_that_fails():
    rows = [{"p": p, "mean": mean} for p, mean in ((0.04, 1.0), (0.001, -2.0), (0.02, 3.0), (0.012, 1.0))]
    portfolios.holm(rows)
    # 0.001 <= 0.05 / 4 and 0.012 <= 0.05 / 3 and 0.02 <= 0.05 / 2 and 0.04 <= 0.05
    assert [row["verdict"] for row in rows] == ["holds", "opposite", "holds", "holds"]
    rows[3]["p"] = 0.018  # above 0.05 / 3: the larger ones are open too
    portfolios.holm(rows)
    assert [row["verdict"] for row in rows] == ["open", "opposite", "open", "open"]


def test_a_ladder_equals_its_first_policy_while_only_that_has_drawn():
    n = np.full(12, 64)
    tallies = {"lc": Tally(n, np.arange(12) * 5, 1.0), "tlc": Tally(n, np.full(12, 20), 1.0)}
    rows = {row["k"]: row for row in portfolios.climb(tallies, "lc", 2, "tlc")}
    assert rows[1]["rates"][0] == rows[1]["rates"][1]
    assert rows[2]["rates"][0] == rows[2]["rates"][1]
    passes = [metrics.pass_at_k(t.n, t.correct, [2])[:, 0] for t in tallies.values()]
    assert rows[4]["rates"][0] == round(100 * float((1 - (1 - passes[0]) * (1 - passes[1])).mean()), 2)


def test_portfolios_draw_only_what_no_stored_result_has(monkeypatch, tmp_path):
    """A policy whose counts are stored is never drawn again, and every task is stored when it is complete."""
    monkeypatch.setattr(portfolios, "TESTS", {"test:31": {"countdown-3": 6, "words-2": 5}})
    monkeypatch.setattr(portfolios, "VALIDATION", {"questions": 5, "samples": 4})
    drawn, kept = [], []

    def draw(out, cells, specs):
        drawn.append((cells.subset, cells.task, len(specs), cells.questions))
        assert out.parent.parent == tmp_path
        n = np.full(cells.questions, cells.samples)
        return {spec: Tally(n, np.arange(cells.questions) % 5, 1.0 + len(spec)) for spec in specs}

    monkeypatch.setattr(portfolios, "drawn", draw)
    for name in ("climb", "tuned", "compared", "curve"):  # slow, and not the subject
        monkeypatch.setattr(portfolios, name, lambda *tallies: {})
    whole = portfolios.run(tmp_path, 400, keep=kept.append)
    tests = [("test:31", "countdown-3", 6, 6), ("validation", "words-2", 6, 5), ("test:31", "words-2", 6, 5)]
    assert drawn == [*(("validation", task, 8, 5) for task in portfolios.TASKS), *tests]
    assert whole["complete"]
    assert not kept[-1]["complete"]
    assert kept[-1]["counts"]["test:31"].keys() == {"countdown-3"}
    drawn.clear()
    again = portfolios.run(tmp_path, 400, [kept[-2], kept[-1]])
    assert (drawn, again) == (tests[2:], whole)
    # One policy more, and more questions than are stored.
    del kept[-1]["counts"]["test:31"]["countdown-3"]["policies"]["eb"]
    monkeypatch.setattr(portfolios, "TESTS", {"test:31": {"countdown-3": 6, "words-2": 7}})
    drawn.clear()
    less = portfolios.run(tmp_path, 400, [whole], draw=False)
    assert (drawn, less["complete"], len(less["counts"]["test:31"])) == ([], False, 2)
    portfolios.run(tmp_path, 400, [kept[-1]])
    assert drawn == [("test:31", "countdown-3", 1, 6), ("test:31", "words-2", 6, 7)]
    drawn.clear()
    portfolios.run(tmp_path, 400, [{"counts": {"validation": whole["counts"]["validation"]}}])
    assert [entry[:3] for entry in drawn] == [("test:31", "countdown-3", 6), ("test:31", "words-2", 6)]


def test_the_claims_about_canvases_say_where_they_hold():
    def pair(claim, low):
        first, second, k = claim
        ends = {"mean": low + 2.0, "low": low, "high": low + 4.0}
        return {"first": first, "second": second, "k": 32 if k < 0 else k, **ends}

    studies = [
        {"task": task, "statements": [pair(claim, low) for claim in canvases.STATEMENTS]}
        for task, low in (("a", 1.0), ("b", -1.0))
    ]
    text = canvases.statements({"samples": 32, "studies": studies})
    assert "TLC is ahead of LC on a, but not on b" in text
    assert "| TLC − LC, k = 32 | **+3.0 (+1.0 to +5.0)** | +1.0 (−1.0 to +3.0) |" in text
    assert "| EB, T_pos = 0.3 − EB, the NFE of 8 EB samples |" in text
