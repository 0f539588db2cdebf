"""From runs to graded cells and sentences: what is compared, over which questions, and what is missing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.helpers.graded_cells import config, graded, store_cell
from twotemp import tasks
from twotemp.analysis import (
    GradedCell,
    findings,
    k_grid,
    read,
    representatives,
    survey,
)
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.evaluation.work import problems_of, record_data_files
from twotemp.folders import claim
from twotemp.policies import parse
from twotemp.records import Grade
from twotemp.report import figures, sentence
from twotemp.report.style import model_name, signed
from twotemp.store import Store

# --- from the store -------------------------------------------------------------------------------------------


def test_a_graded_cell_is_what_the_store_holds(tmp_path):
    store_cell(Store.create(tmp_path / "run"), "tlc", {"a": "pf", "b": "ffuw", "c": "pp"})
    (one,) = read([tmp_path / "run"])
    assert (one.questions, list(one.table.n), list(one.table.correct)) == (
        ("a", "b", "c"),
        [2, 2, 2],
        [1, 0, 2],
    )
    assert (one.table.ungraded, one.table.pending, one.grader) == (1, 1, "countdown 1")
    np.testing.assert_allclose(one.curve.mean, [0.5, 2 / 3])
    assert (one.cost("nfe"), one.cost("forwards"), one.cost("seconds")) == (3.5, 4.5, 0.5)
    assert one.tokens_per_forward == pytest.approx(2 / 4.5)


def test_order_is_tasks_then_policies_then_their_numbers(tmp_path):
    store = Store.create(tmp_path / "run")
    for spec in ("tlc", "tlc:t_pos=0.5", "random", "ar", "ct", "lc"):
        for task in ("words-2", "countdown-3"):
            store_cell(store, spec, {"a": "p"}, task)
    found = [(s.task, s.policy.name, s.policy.t_pos) for s in read([tmp_path / "run"])]
    policies = [("ar", 0.0), ("lc", 0.0), ("random", inf), ("tlc", 0.5), ("tlc", 1.0), ("ct", 0.0)]
    assert found == [(task, *p) for task in ("countdown-3", "words-2") for p in policies]


def test_the_same_cell_in_two_runs_is_refused(tmp_path):
    for name in ("one", "two"):
        store_cell(Store.create(tmp_path / name), "tlc", {"a": "p"})
    with pytest.raises(UserError, match=r"both hold tiny, countdown-3, tlc; report them separately"):
        read([tmp_path / "one", tmp_path / "two"])


def test_a_run_without_grades_names_the_fix(tmp_path):
    Store.create(tmp_path / "run")
    with pytest.raises(UserError, match=r"twotemp eval.*twotemp regrade"):
        read([tmp_path / "run"])


def test_k_grid_is_the_papers():
    assert k_grid([graded("ar", [1], n=64)]) == [1, 2, 4, 8, 16, 32, 64]
    assert k_grid([graded("ar", [1], n=96)]) == [1, 2, 4, 8, 16, 32, 64, 96]
    assert k_grid([graded("ar", [1], n=1)]) == [1]


# --- what is missing or damaged -------------------------------------------------------------------------------

ALL = {f"q{i}": "pf" for i in range(12)}


def a_run(path, specs=("lc", "tlc"), verdicts=ALL):
    store = Store.create(path)
    for spec in specs:
        store_cell(store, spec, verdicts)
    return path


def test_a_whole_run_has_no_gaps(tmp_path):
    found = survey([a_run(tmp_path / "run")])
    assert (len(found.cells), found.gaps) == (2, [])
    (tmp_path / "run" / "report").mkdir()
    (tmp_path / "run" / "report" / "report.md").write_text("")
    assert survey([tmp_path / "run"]).gaps == []


def _no_configuration(cell):
    (cell / "cell.json").unlink()


def _no_samples(cell):
    next(cell.glob("samples-*")).unlink()


def _no_grades(cell):
    next(cell.glob("grades-*")).unlink()


def _scrambled(cell):
    (cell / "cell.json").write_text("{")


def _overwritten(cell):
    file = next(cell.glob("samples-*"))
    file.write_bytes(b"x" * file.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_no_configuration, "no cell.json"),
        (_no_samples, "no samples"),
        (_no_grades, "no grades"),
        (_scrambled, "is damaged|cannot be read"),
        (_overwritten, "is damaged"),
    ],
)
def test_a_damaged_cell_is_named_and_the_rest_is_read(tmp_path, damage, reason):
    damage(a_run(tmp_path / "run") / "countdown-3@tlc")
    found = survey([tmp_path / "run"])
    assert [one.policy.name for one in found.cells] == ["lc"]
    (gap,) = found.gaps
    assert re.search(f"countdown-3@tlc.*({reason})", gap)


def test_missing_questions_samples_and_grades_are_listed(tmp_path):
    store = Store.create(tmp_path / "run")
    store_cell(store, "lc", ALL)
    store_cell(store, "tlc", dict.fromkeys(list(ALL)[:9], "pf"))
    store_cell(store, "ct", {**ALL, "q3": "p"})
    store_cell(store, "tct", {**ALL, "q3": "pw"})
    store_cell(store, "ar", {**ALL, "q3": "pu"})  # our own failure: reported elsewhere, and nothing to draw
    texts = survey([tmp_path / "run"]).gaps
    expected = (
        "tct has 1 sample without a grade",
        "ct lacks 1 sample of",
        "tlc has graded samples of 9 of 12",
    )
    assert len(texts) == len(expected)
    assert all(any(part in text for text in texts) for part in expected)


def test_an_unreadable_run_reports_the_reason(tmp_path):
    _no_samples(a_run(tmp_path / "run", ("lc",)) / "countdown-3@lc")
    with pytest.raises(UserError, match=r"nothing to report.*countdown-3@lc has no samples"):
        survey([tmp_path / "run"])


def test_the_report_of_a_damaged_run_lists_the_damage_and_exits_with_3(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    run = a_run(tmp_path / "run", ("lc", "tlc", "ct"))
    whole = CliRunner().invoke(app, ["report", str(run)])
    assert whole.exit_code == 0, whole.output
    _no_samples(run / "countdown-3@tlc")
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 3
    assert "incomplete:" in done.stderr
    page = (run / "report" / "report.md").read_text()
    assert page.index("countdown-3@tlc has no samples") < page.index("## pass@k")


def test_grades_of_two_versions_are_chosen_task_by_task(tmp_path, monkeypatch):
    """After an update of a grader: the newer version, or the one named, which must not be asked of other tasks."""
    monkeypatch.setattr(figures, "available", lambda: False)
    run = a_run(tmp_path / "run")
    cell = store_cell(Store.open(run), "lc", ALL, task="words-2")
    with cell.writer() as writer:
        writer.grades("countdown 2", [(key, Grade("failed")) for key in cell.grades("countdown 1")])
    for options, version in (([], 2), (["--grader", "words-2=countdown 1"], 1)):
        result = CliRunner().invoke(app, ["report", str(run), "-k", "1", *options])
        assert result.exit_code == 0, result.output
        assert ("grader countdown 2." in (run / "report" / "report.md").read_text()) == (version == 2)


# --- what is compared -----------------------------------------------------------------------------------------


def test_two_policies_are_compared_on_the_questions_both_have():
    """This holds for costs: a question that only one side has must not change what a budget buys."""
    ar = graded("ar", [2] * 12)
    tct = graded("tct", [2] * 12)
    more = graded("tct", [2] * 12 + [8] * 12)
    odd = replace(
        more,
        table=replace(more.table, nfe=tuple(c * (1 + 9 * (i > 11)) for i, c in enumerate(more.table.nfe))),
    )
    assert [f.mean for f in findings([ar, odd])] == pytest.approx([f.mean for f in findings([ar, tct])])
    assert findings([ar, graded("tct", [2] * 12, questions=[f"other/{i}" for i in range(12)])]) == []


def test_a_comparison_on_one_task_of_several_names_the_task():
    lc, tlc, other = graded("lc", [0] * 12), graded("tlc", [8] * 12), graded("lc", [0] * 12, task="words-2")
    one, all_ = findings([lc, tlc, other])
    assert sentence(one).startswith("On countdown-3, with one sample per question, Low confidence")
    assert sentence(all_).startswith("On countdown-3, with 8 samples per question, TLC")


def test_in_a_sweep_the_preset_represents_its_family():
    sweep = [graded(f"tlc:t_pos={t}", [right] * 12) for t, right in ((0.25, 1), (1, 5), (4, 2))]
    cells = [graded("lc", [0] * 12), *sweep]
    lc, tlc = (cells[0].policy,), (sweep[1].policy,)
    assert [(found.first, found.second) for found in findings(cells)] == [(lc, tlc), (tlc, lc)]
    with figures.styled():
        figure, _ = figures.pass_at_k(cells)
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), 100 * sweep[1].curve.mean)


def test_a_sweep_is_represented_by_the_same_policy_on_every_task():
    cells = [
        graded("tlc:t_pos=0.5", [1] * 3),
        graded("tlc", [1] * 3),
        graded("tlc:t_pos=0.5", [1] * 3, task="words-2"),
    ]
    assert representatives(cells) == [cells[1]]
    assert representatives([cells[0], cells[2]]) == [cells[0], cells[2]]


def test_a_policy_tuned_per_task_is_shown_on_all_tasks_under_one_name():
    cells = [
        cell
        for t_pos, task in (("0.5", "countdown-3"), ("2", "words-2"))
        for cell in (graded("lc", [0] * 12, task=task), graded(f"tlc:t_pos={t_pos}", [8] * 12, task=task))
    ]
    assert representatives(cells) == cells
    _, found = findings(cells)
    assert [task for task, _ in found.tasks] == ["countdown-3", "words-2"]
    assert "TLC (t_pos varies) solves" in sentence(found)
    with figures.styled():
        figure, _ = figures.pass_at_k(cells)
    assert [len(axis.lines) for axis in figure.axes] == [2, 2]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][1:] == [r"TLC ($T_\mathrm{pos}$ varies)"]


def test_ties_on_all_questions_leave_uncertainty():
    (found,) = findings([graded("ct", [8] * 20), graded("tct", [8] * 20)])[:1]
    assert found.low < -0.05
    assert found.high > 0.05
    assert "cannot be told apart: +0.0 points" in sentence(found)


def test_too_few_questions_are_stated_instead_of_an_interval():
    _, found = findings([graded("lc", [0] * 4), graded("tlc", [8] * 4)])
    assert "differ by +100.0 points (4 questions: too few for an interval)" in sentence(found)


def test_no_number_is_printed_as_minus_zero(capsys):
    from twotemp.cli import sample
    from twotemp.records import Sample

    assert [signed(x) for x in (-0.04, 0.0, -0.06)] == ["+0.0", "+0.0", "-0.1"]
    answers = sample.AnswerTable()
    for i in (0, 1):
        answers.add(Sample("q", i, 0, parse("ar"), (1,), (1,), (5,), 4, 4, 9, 0.5, "length", "x"))
    answers.show("?")
    assert "(0.00 of 1.00 bits)" in capsys.readouterr().out


# --- what a folder is, and its data ---------------------------------------------------------------------------


def test_a_folder_of_another_kind_is_identified(tmp_path):
    commands = {"grpo": "twotemp grpo", "forks": "twotemp forks", "training": "python -m recipes"}
    for kind, writer in commands.items():
        claim(tmp_path / kind, kind, {})
        for command in ("select", "report"):
            if (kind, command) != ("grpo", "report"):
                done = CliRunner().invoke(app, [command, str(tmp_path / kind)])
                assert isinstance(done.exception, UserError)
                assert writer in str(done.exception)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match="is not a run"):
        survey([tmp_path / "nothing"])


def test_a_run_records_its_data_file_and_the_hub_is_not_asked(tmp_path, monkeypatch):
    from twotemp.tasks import data as tasks_data

    monkeypatch.setattr(tasks_data, "_download", lambda _: pytest.fail("went to the hub"))
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(3)]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    digest = tasks.get("gsm8k").problems(data=file, allow_altered=True).digest
    store = Store.create(tmp_path / "run")
    cell = store.cell("gsm8k@ar", config("ar", "gsm8k", data=digest))
    with pytest.raises(UserError, match="--data gsm8k=FILE"):
        problems_of(cell, hub=False)
    record_data_files(store.path, {"gsm8k": (file, True)})
    assert [p.reference["answer"] for p in problems_of(cell).problems] == ["1", "2", "3"]
    file.rename(tmp_path / "moved.jsonl")
    with pytest.raises(UserError, match=r"mine.jsonl, which no longer exists.*--data gsm8k=FILE"):
        problems_of(cell)
    assert len(problems_of(cell, {"gsm8k": tmp_path / "moved.jsonl"}, True).problems) == 3


def test_an_evaluation_notes_its_data_file_and_regrading_finds_it(tmp_path, monkeypatch):
    from twotemp.evaluation import Evaluation, Plan, TaskChoice, regrade
    from twotemp.tasks import data as tasks_data

    monkeypatch.setattr(tasks_data, "_download", lambda _: pytest.fail("went to the hub"))
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}))
    choice = TaskChoice("gsm8k", data=file, grader="d1", allow_altered=True)
    with Evaluation(Plan((choice,), (parse("ar"),)), tmp_path / "run") as evaluation:
        evaluation.store.cell("gsm8k@ar", config("ar", "gsm8k", data=choice.problems().digest))
    assert regrade(tmp_path / "run", grader="d1") == {"gsm8k@ar": 0}


# --- sentences ------------------------------------------------------------------------------------------------


def under(one: GradedCell, other: GradedCell) -> GradedCell:
    """The one's numbers under the other's name."""
    return replace(one, config=other.config)


def test_a_clear_difference_is_stated_with_its_sign():
    better, worse = graded("tlc", [8] * 20), graded("lc", [0] * 10 + [8] * 10)
    one, found = findings([worse, better])
    assert (one.mean, one.high < 0) == (-0.5, True)
    assert (found.mean, found.low > 0) == (0.5, True)
    assert "TLC (t_pos=1) solves 50.0 points more than Low confidence" in sentence(found)
    _, found = findings([under(worse, better), under(better, worse)])
    assert "TLC (t_pos=1) solves 50.0 points fewer than Low confidence" in sentence(found)


def test_no_difference_is_claimed_that_could_be_chance():
    rng = np.random.default_rng(0)
    noise = [graded(spec, rng.integers(0, 2, 40) * 8) for spec in ("lc", "tlc")]
    for found in findings(noise):
        assert found.low < 0 < found.high
        assert "cannot be told apart" in sentence(found)
    # One sample each: one sentence says it.
    (found,) = findings([graded(spec, [1] * 12, n=1) for spec in ("lc", "tlc")])
    assert [policy.name for policy in found.first] == ["tlc"]


def test_differences_are_paired():
    """Questions differ far more than the policies do: only pairing sees the difference."""
    base = np.array([0, 8] * 30)
    gain = base.copy()
    gain[0:16:2] = 8
    first, second = graded("tlc", gain), graded("lc", base)
    _, found = findings([second, first])
    assert found.low > 0
    assert first.curve.low[-1] < second.curve.high[-1], "the unpaired intervals overlap"


def test_at_equal_cost_the_cheaper_policy_has_more_samples():
    ar, tct = graded("ar", [2] * 10), graded("tct", [2] * 10)
    cheap, found = findings([ar, tct])
    # For one AR sample (30 NFE) there are 30 / 7 = 4.29 TCT samples.
    for_one = tct.passes[0, 3] + (30 / 7 - 4) * (tct.passes[0, 4] - tct.passes[0, 3])
    assert cheap.mean == pytest.approx(for_one - ar.passes[0, 0])
    assert sentence(cheap).startswith("For the NFE of one Autoregressive sample (30), ")
    # 8 TCT samples cost 56 NFE; for them AR buys 56 / 30 = 1.87 samples.
    bought = ar.passes[0, 0] + (56 / 30 - 1) * (ar.passes[0, 1] - ar.passes[0, 0])
    assert found.mean == pytest.approx(tct.passes[0, 7] - bought)
    assert sentence(found).startswith("For equal NFE (56 per question), ")


def test_tasks_are_pooled_by_question_and_listed_separately():
    data = [
        graded("lc", [0] * 10),
        graded("tlc", [8] * 10),
        graded("lc", [0] * 30, task="words-2"),
        graded("tlc", [0] * 30, task="words-2"),
    ]
    _, found = findings(data)
    assert found.mean == 0.25
    assert found.tasks == (("countdown-3", 1.0), ("words-2", 0.0))


def test_the_stated_budget_is_that_of_the_compared_tasks():
    """On words-2 one sample of AR buys none of TCT: it is left out of the sentence, and so are its NFE."""
    cells = [
        *(graded("tct", [3] * 12, cost=7), graded("ar", [3] * 12, cost=30)),
        *(
            graded("tct", [3] * 12, cost=200, task="words-2"),
            graded("ar", [3] * 12, cost=100, task="words-2"),
        ),
    ]
    sentences = [sentence(finding) for finding in findings(cells)]
    assert "On countdown-3, for the NFE of one Autoregressive sample (30), TCT" in sentences[0]
    assert "For equal NFE (428 per question), TCT" in sentences[1]


def test_answers_that_cost_nothing_are_not_compared_by_cost():
    """AR's NFE are its tokens before EOS: of empty answers there are none."""
    empty = graded("ar", [0] * 12)
    empty = replace(empty, table=replace(empty.table, nfe=tuple(0 * nfe for nfe in empty.table.nfe)))
    assert findings([empty, graded("tct", [3] * 12)]) == []
    (finding,) = findings([empty, graded("tct", [3] * 12), graded("tlc", [3] * 12)])
    assert sentence(finding).startswith("With 8 samples per question, ")


def test_a_saved_model_is_named_after_its_run():
    assert model_name("GSAI-ML/LLaDA-8B-Instruct") == "LLaDA-8B-Instruct"
    assert model_name("runs/tct/model/") == "tct"
    assert model_name("model") == "model"
