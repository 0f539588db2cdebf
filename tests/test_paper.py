"""README and docs say what the stored results say; the numbers in them are made, not written."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from experiments import blocks, command, embedded, frontier, paper, verifier
from tests.helpers.graded_cells import graded
from twotemp import tasks
from twotemp.evaluation import comparison
from twotemp.policies import parse

PAIR = {"mean": 4.04, "low": -2.0, "high": 10.0}


def cells(**rates: float) -> list[dict]:
    """One task: what each policy has at k = 1 and 64."""
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


@pytest.mark.parametrize("document", paper.DOCUMENTS)
def test_the_documents_say_what_the_stored_results_say(document):
    """After an edit of a block, of a result or of the weights: `python -m experiments.paper --blocks`."""
    assert document not in paper.differing()


def test_every_block_is_made_by_a_part_and_shown_somewhere():
    shown = [
        name for document in paper.DOCUMENTS for name in blocks.names((paper.ROOT / document).read_text())
    ]
    assert sorted(shown) == sorted(paper.BLOCKS)


def test_figures_are_those_that_were_drawn_with_the_results():
    for path in sorted(paper.RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        assert path.stem in paper.PARTS
        for name, digest in result["figures"].items():
            assert paper.digest(paper.ROOT / "docs" / "figures" / name) == digest, name


def test_a_block_is_rewritten_and_nothing_else():
    text = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n<!-- generated: y -->\n<!-- end -->\n"
    assert blocks.names(text) == ["x", "y"]
    new = blocks.rewritten(text, lambda name: f"new {name}\n")
    assert new == text.replace("old", "new x").replace("y -->\n", "y -->\nnew y\n")
    assert blocks.rewritten(new, lambda name: f"new {name}") == new


@pytest.fixture
def one_result(monkeypatch, tmp_path):
    """A repository with one document and the result of one part; returns a writer of that result."""
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
        found = {"cells": cells(**rates), "easier": easier, "differences": differences}
        found |= {"parameters": 835_968, "blocks": 2}
        result = {**inputs, "questions": 500, "samples": 64, "figures": {}, "found": found}
        (tmp_path / "claims.json").write_text(json.dumps(result))

    return write


def test_a_document_differs_when_the_result_or_the_weights_change(one_result, tmp_path):
    page, shipped = tmp_path / "page.md", paper.inputs(paper.PARTS["claims"])
    paper.write_documents()
    assert 'Not measured with these models yet; run `make paper PARTS="claims"`' in page.read_text()
    one_result(shipped, ar=40.0, lc=55.7, tlc=47.4, ct=44.7, tct=37.8)
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
    one_result(shipped, ar=40.0, lc=55.8, tlc=47.4, ct=44.7, tct=37.8)
    assert paper.differing()
    for what in ("weights", "settings"):
        one_result({**shipped, what: "others"}, ar=40.0, lc=55.7, tlc=47.4, ct=44.7, tct=37.8)
        paper.write_documents()
        assert f"The {what} have changed since this was measured" in page.read_text()
        assert not paper.current("claims", 500, 64)


def test_numbers_and_verdicts_are_spelled_from_the_intervals():
    assert blocks.with_interval(PAIR) == "+4.0 (−2.0 to +10.0)"
    assert blocks.signed(-0.04) == "0.0"
    assert blocks.listed(["a", "b", "c"]) == "a, b and c"
    up, no = {"task": "a", **PAIR, "low": 1.0}, {"task": "b", **PAIR}
    assert blocks.where([up]) == "on all tasks"
    assert blocks.where([no]) == "on none of the tasks"
    assert blocks.where([up, no]) == "on a, but not on b"


def test_an_experiment_stops_where_its_command_was_stopped(monkeypatch, tmp_path):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("twotemp.cli.evaluate.run_plan", interrupted)
    with pytest.raises(SystemExit) as stopped:  # not: go on, and keep half of the samples as the result
        embedded.draw(tmp_path, questions=1, samples=1)
    assert stopped.value.code == 130


def test_commands_run_side_by_side_each_on_one_core(tmp_path, capfd):
    """And nothing is started any more once one of them has failed."""
    # In one write: two processes say it at once.
    said = "f'{len(os.sched_getaffinity(0))} {os.environ[\"OMP_NUM_THREADS\"]}\\n'"
    say = f"import os; os.write(1, {said}.encode())"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(say)
    listing = ["tasks", "--plugin", str(plugin)]
    command.side_by_side([listing] * 3)
    assert capfd.readouterr().out.splitlines().count("1 1") == 3
    with pytest.raises(subprocess.CalledProcessError):
        command.side_by_side([["no-such-command"], *[listing] * 20])
    assert capfd.readouterr().out.splitlines().count("1 1") < 20


def test_the_claims_are_drawn_summed_up_and_reported(monkeypatch, tmp_path):
    """What is drawn of the easier levels is for one sentence, not for the figures."""
    written = []
    hard, easy = (graded("lc", [1], task=task) for task in (embedded.TASKS[0], embedded.EASIER[0]))
    monkeypatch.setattr(embedded, "draw", lambda out, **size: [easy, hard])
    monkeypatch.setattr(embedded, "summary", lambda cells, samples: {"cells": cells, "samples": samples})
    monkeypatch.setattr(paper, "write", lambda cells, folder: written.append((cells, folder)))
    assert paper.claims(paper.PartOptions(tmp_path, 1, 1)) == {"cells": [easy, hard], "samples": 1}
    assert written == [([hard], tmp_path / "claims" / "report")]


def test_of_a_folder_only_what_was_asked_for_is_read():
    """It may hold the cells of earlier settings, and more questions."""
    ids = [problem.id for problem in tasks.get("countdown-3").problems().problems[:5]]
    before, now = (
        graded(f"tct:t_pos={t_pos}", [8, 8, 8, 0, 0], questions=ids[::-1]) for t_pos in (0.15, 0.3)
    )
    (found,) = command.select([before, now], ["tct:t_pos=0.3"], 2)
    assert (found.policy, found.questions) == (now.policy, tuple(ids[:2]))
    assert found.passes[:, 0].tolist() == [0.0, 0.0]


def test_tct_is_drawn_until_it_has_half_of_what_ar_spends(monkeypatch, tmp_path):
    """Also where more samples turn out to be cheaper than the first."""
    asked = []

    def evaluated(out, task, specs, *options, n, **size):
        asked.append((task, n))
        costs = {"ar": 20, "tct": 9 if n == 4 else 7}
        return [graded(spec, [1], n=n, task=task, cost=costs.get(parse(spec).name)) for spec in specs]

    monkeypatch.setattr(embedded, "evaluated", evaluated)
    cells = embedded.draw(tmp_path, questions=1, samples=4, tasks=["countdown-4"])
    assert [n for task, n in asked if task == "countdown-4"] == [4, 5, 6]
    found = {one.policy.name: one for one in cells if one.task == "countdown-4"}
    assert (list(found), found["tct"].samples) == (["ar", "lc", "tlc", "ct", "tct"], 6)


def test_a_method_that_buys_nothing_has_no_rate_and_one_that_solves_nothing_has_one():
    methods = [{"name": "AR", "policy": "ar", "nfe": 12.0, "pass": {"1": {"mean": 0.0}}}]
    methods[0]["bought"] = {str(n): None for n in frontier.BOUGHT}
    found = {
        "samples": 1,
        "seeds": 1,
        "studies": [{"task": "a", "questions": 9, "ar": 12.0, "methods": methods}],
    }
    assert frontier.render(found).endswith("| AR | `ar` | 12.0 | **0.0** | – | – | – |")
    assert frontier.ahead(found) == "- a: AR at k = 1 (0.0 %)."


def test_cells_without_right_and_wrong_samples_say_nothing_about_the_verifier():
    judged = {"task": "a", "name": "ar", "mixed": 3, "auc": {"verifier": {"mean": 71.0}}}
    found = {"questions": 9, "samples": 4, "auc": [{**judged, "mixed": 0, "auc": {}}, judged]}
    assert verifier.render_auc(found).endswith("The verifier's lowest AUC is 0.71 on a.")


class Rates:
    """A method of which every question has the same rate at every k, and half of it for every NFE."""

    cost = 12.0

    def __init__(self, rate: float, questions: int) -> None:
        self.rate, self.questions = rate, questions

    def at(self, k):
        return np.full(self.questions, self.rate)

    def at_nfe(self, nfe):
        return np.full(self.questions, self.rate * nfe / (2 * frontier.EQUAL * self.cost))


def test_statements_are_compared_task_by_task_and_over_all_questions():
    names = {name for first, second, *_ in frontier.STATEMENTS for name in (first, second)}
    few, many = (
        {name: Rates(rate if name == "LC" else 0.5, questions) for name in names}
        for rate, questions in ((0.9, 10), (0.6, 30))
    )
    studies = [
        {"task": task, "statements": frontier.compared([methods], 4)}
        for task, methods in (("a", few), ("b", many))
    ]
    found = {"studies": studies, "statements": frontier.compared([few, many], 4)}
    first = frontier.STATEMENTS[0]
    assert (first[0], first[1], first[2]) == ("LC", "TLC", 1)
    assert [one["mean"] for one in (*(s["statements"][0] for s in studies), found["statements"][0])] == [
        pytest.approx(points, abs=0.5) for points in (40.0, 10.0, 17.5)
    ]
    row = frontier.statements(found).splitlines()[4]
    assert row.startswith(f"| {first[3]} | LC − TLC, k = 1 | **+4")
    assert row.endswith("| 2 / 0 of 2 |")
    assert "TLC − LC, k = 4" in frontier.statements(found)  # never more samples than there are
    assert "TCT − AR, NFE of 4 AR samples | 0.0 (" in frontier.statements(found)
