"""One answer from many: from a run to votes, rewards and reports."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.graded_cells import ballot, elected
from twotemp import graders, tasks
from twotemp.analysis import (
    GradedCell,
    add_ballots,
    best_at,
    common_reward_model,
    every_choice,
    selection_findings,
)
from twotemp.analysis import read as read_cells
from twotemp.cli import app
from twotemp.errors import UserError
from twotemp.metrics import NO_ANSWER
from twotemp.policies import parse
from twotemp.records import Grade, Sample, Trace
from twotemp.report import figures, selection, sentence, viewer, write_selection
from twotemp.rewards.denoiser import VERSION
from twotemp.store import Config, Key, Store

# --- from a store ---------------------------------------------------------------------------------------------


class ByText:
    """A reward model that reads the first number of a text."""

    name = "by text 1"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, items):
        self.asked += [text for _, text in items]
        return [float(text.split()[0]) for _, text in items]


PROBLEMS = tasks.get("countdown-3").problems()


def read(run, **options) -> list[GradedCell]:
    return add_ballots(read_cells([run]), **options)


def fill(
    store: Store,
    spec: str,
    samples: dict[int, list[tuple[str, str | None, bool]]],
    trace: bool = False,
    model: str = "tiny",
):
    """A cell of countdown-3; for each question (by number) samples as (text, answer, passed)."""
    policy = parse(spec)
    config = Config(
        "countdown-3", PROBLEMS.digest, "", "test", model, "mark", policy, 12, None, 0, version="1"
    )
    cell = store.cell(f"countdown-3@{spec}", config)
    with cell.writer() as writer:
        for number, given_ in samples.items():
            question = PROBLEMS.problems[number].id
            drawn = [
                Sample(
                    question, i, 0, policy, (1,), (1, 2), (5, 6), 4, 4, 9, 0.5, "length", text,
                    Trace((0, 1), (0.5, 0.25 * (i % 4)), (0.1, 0.1)) if trace else None,
                )
                for i, (text, _, _) in enumerate(given_)
            ]  # fmt: skip
            writer.samples(drawn)
            writer.grades(
                "countdown 1",
                [
                    (s.key, Grade("passed" if passed else "failed", answer))
                    for s, (_, answer, passed) in zip(drawn, given_)
                ],
            )
    return cell


def a_run(path, trace: bool = False, specs=("ar", "ct", "tct")):
    store = Store.create(path)
    rng = np.random.default_rng(3)
    for spec in specs:
        samples = {}
        for number in range(12):
            rows = []
            for _ in range(8):
                answer = ["(1 + 2)", "(2 * 3)", "(4 - 1)", None][rng.integers(4)]
                passed = answer == "(2 * 3)"
                rows.append((f"{rng.normal(passed):.3f} {answer}", answer, passed))
            samples[number] = rows
        fill(store, spec, samples, trace)
    return path


def test_reading_a_run_groups_answers_over_all_policies(tmp_path):
    store = Store.create(tmp_path / "run")
    fill(store, "ar", {0: [("1", "x", False), ("2", "y", True), ("3", None, False)]})
    fill(store, "tct", {0: [("4", "y", True), ("5", "z", False)], 2: [("6", "x", True)]})
    ar, tct = read(tmp_path / "run")
    assert (ar.policy.name, tct.policy.name, ar.samples, ar.without_answer, ar.cost()) == (
        "ar",
        "tct",
        3,
        1,
        4.0,
    )
    assert [list(b.answers) for b in ar.ballots] == [[0, 1, NO_ANSWER]]
    assert sorted((b.question, list(b.answers)) for b in tct.ballots) == [
        (PROBLEMS.problems[0].id, [1, 2]),
        (PROBLEMS.problems[2].id, [0]),
    ]
    assert ar.ballots[0].spelled == tct.ballots[0].spelled == ("x", "y", "z")


def test_rewards_are_computed_once_and_kept(tmp_path):
    run = a_run(tmp_path / "run")
    first, again = ByText(), ByText()
    before = read(run, reward_model=first)
    after = read(run, reward_model=again)
    assert len(first.asked) == 3 * 12 * 8
    assert again.asked == []
    for one, two in zip(before, after):
        for a, b in zip(one.ballots, two.ballots):
            np.testing.assert_array_equal(a.reward, b.reward)
    rows = {(r["request"], r["index"]): r["text"] for r in Store.open(run)["countdown-3@ct"].light_rows()}
    ct = next(one for one in after if one.policy.name == "ct")
    assert ct.reward_model == "by text 1"
    for one_ballot in ct.ballots:
        for index, reward in zip(one_ballot.index, one_ballot.reward):
            assert float(rows[one_ballot.question, int(index)].split()[0]) == reward


def test_a_reward_model_that_gives_nan_leaves_no_score_behind(tmp_path):
    run = a_run(tmp_path / "run", specs=("ar",))

    class Broken(ByText):
        def score(self, items):
            return [math.nan for _ in items]

    with pytest.raises(UserError, match=r"by text 1 scored sample \d+ of 'countdown-3/test/\d' with nan"):
        read(run, reward_model=Broken())
    assert Store.open(run).cells()[0].scores("by text 1") == {}


def test_confidence_is_the_mean_of_the_trace(tmp_path):
    (one,) = read(a_run(tmp_path / "run", trace=True, specs=("tct",)), confidence=True)
    np.testing.assert_allclose(one.ballots[0].confidence, [(0.5 + 0.25 * (i % 4)) / 2 for i in range(8)])
    assert np.isfinite(best_at(one, "confidence", [1, 2, 8])).all()


def test_confidence_without_traces_names_the_fix(tmp_path):
    with pytest.raises(UserError, match=r"drawn without traces.*twotemp eval --trace"):
        read(a_run(tmp_path / "run"), confidence=True)


def test_a_grader_that_cannot_compare_is_named_with_the_question(tmp_path, monkeypatch):
    from twotemp.graders.puzzles import CountdownGrader

    def broken(self, problem, a, b):
        raise RecursionError("too deep")

    monkeypatch.setattr(CountdownGrader, "same", broken)
    with pytest.raises(
        UserError, match=r"'countdown 1' cannot compare two answers to countdown-3/test/\d.*too deep"
    ):
        read(a_run(tmp_path / "run"))


def test_a_plug_ins_grader_may_sign_with_another_name(tmp_path, monkeypatch):
    from twotemp.graders.puzzles import CountdownGrader

    class Mine(CountdownGrader):
        name = "last number 1"

        def same(self, problem, a, b):
            return True

    monkeypatch.setitem(graders.GRADERS, "last-number", Mine)
    cell = fill(Store.create(tmp_path / "run"), "ar", {0: [("1", "x", True), ("2", "y", True)]})
    grades = cell.grades("countdown 1")
    with cell.writer() as writer:
        writer.grades("last number 1", grades.items())
    (one,) = add_ballots(read_cells([tmp_path / "run"], grader="last number 1"))
    assert list(one.ballots[0].answers) == [0, 0]


def test_a_run_without_grades_or_of_other_data_is_refused(tmp_path):
    Store.create(tmp_path / "empty")
    with pytest.raises(UserError, match="no graded sample"):
        read(tmp_path / "empty")
    store = Store.create(tmp_path / "other")
    policy = parse("ar")
    cell = store.cell(
        "x", Config("countdown-3", "0" * 64, "", "test", "tiny", "mark", policy, 12, None, 0, version="1")
    )
    with cell.writer() as writer:
        writer.samples([Sample("q", 0, 0, policy, (1,), (1,), (5,), 4, 4, 9, 0.5, "length", "x")])
        writer.grades("countdown 1", [(Key("q", 0, 0), Grade("passed"))])
    with pytest.raises(UserError, match="drawn from other data"):
        read(tmp_path / "other")


# --- report and command ---------------------------------------------------------------------------------------


def curves(run, selectors=("majority", "orm", "weighted", "oracle")):
    return every_choice(read(run, reward_model=ByText()), selectors)


def sentences_of(cells, selectors) -> list[str]:
    return [sentence(finding) for finding in selection_findings(every_choice(cells, selectors))]


def test_the_entropy_sentence_has_the_sign_of_the_difference():
    wide = elected(*(ballot([0] * 4, [0, 1, 2, 3], question=f"q{i}") for i in range(12)), spec="tct")
    narrow = elected(*(ballot([0] * 4, [0] * 4, question=f"q{i}") for i in range(12)), spec="ar")

    def entropy_sentence(*cells: GradedCell) -> str:
        return next(s for s in sentences_of(cells, ["majority"]) if "entropy" in s)

    assert "is higher than that of Autoregressive: +1.39 nats" in entropy_sentence(narrow, wide)  # log 4
    assert "is lower than that of Autoregressive: -1.39 nats" in entropy_sentence(
        _as(narrow, "tct"), _as(wide, "ar")
    )
    few = entropy_sentence(narrow.only([0, 1]), wide.only([0, 1]))
    assert "+1.39 nats (2 questions: too few for an interval" in few


def test_comparisons_without_common_data_are_left_out():
    some = [ballot([1, 0, 1, 0], [0, 1, 0, NO_ANSWER], question=f"q{i}") for i in range(12)]
    tct, ar = elected(*some, spec="tct"), elected(*some, spec="ar")
    models = [
        replace(one, config=replace(one.config, model=model)) for model in ("a", "b") for one in (tct, ar)
    ]
    sentences = sentences_of(models, ["majority"])
    assert ["(a)" in s for s in sentences] == [True, True, False, False]
    assert ["(b)" in s for s in sentences] == [False, False, True, True]
    assert "cannot be told from that of Autoregressive" in sentences[1]
    empty = replace(ar, table=replace(ar.table, nfe=tuple(0 * nfe for nfe in ar.table.nfe)))
    (alone,) = sentences_of([tct, empty], ["majority"])  # no budget is spent on nothing
    assert alone.startswith("The entropy")
    other = elected(ballot([1], [0], question="q0"), *some[1:2], spec="ar")
    torn = elected(*some[:1], ballot([1], [0], question="q1"), spec="tct")
    assert sentences_of([other, torn], ["majority"]) == []  # no question has 4 samples on both sides


def _as(one: GradedCell, spec: str) -> GradedCell:
    return elected(*one.ballots, spec=spec)


def test_equal_cost_compares_as_many_samples_as_a_budget_buys():
    """TCT costs a quarter: for the price of AR's two samples it may choose from eight of its ten."""
    right_once = [False] * 9 + [True]
    names = [f"q{i}" for i in range(12)]
    tct = elected(
        *(ballot(right_once, [0] * 9 + [1], [0.0] * 9 + [1.0], question=name) for name in names), nfe=5
    )
    ar = elected(
        *(ballot([True, False], [1, 0], [0.0, 1.0], question=name) for name in names), spec="ar", nfe=20
    )
    sentences = sentences_of([ar, tct], ["orm"])
    assert "Choosing by orm for equal NFE (40 per question)" in sentences[0]
    assert "TCT (t_pos=0.1) solves 80.0 points more than Autoregressive" in sentences[0]


def test_the_files_of_the_report_agree_with_the_curves(tmp_path):
    found = curves(a_run(tmp_path / "run"))
    made = write_selection(found, tmp_path / "out")
    assert {one.name for one in made.figures} == {"best-countdown-3", "entropy", "answers-countdown-3"}
    for one in made.figures:
        assert one.path.stat().st_size > 5000
        assert one.path.with_suffix(".pdf").exists()
    rows = list(csv.DictReader((tmp_path / "out" / "selection.csv").open()))
    assert len(rows) == 3 * 4 * 4  # policies, selectors, k = 1, 2, 4, 8
    row = next(r for r in rows if (r["policy"], r["selector"], r["k"]) == ("ct", "orm", "4"))
    curve = next(c for c in found if (c.cell.policy.name, c.selector) == ("ct", "orm"))
    assert float(row["best"]) == pytest.approx(curve.values[:, 2].mean(), abs=1e-5)
    assert float(row["nfe"]) == 16.0
    chosen = [json.loads(line) for line in (tmp_path / "out" / "selected.jsonl").read_text().splitlines()]
    assert len(chosen) == 3 * 4 * 12
    for selector in ("majority", "orm"):  # choosing from all samples is Best@n, up to how ties are broken
        mine = [c["passed"] for c in chosen if (c["policy"], c["selector"]) == ("tct", selector)]
        curve = next(c for c in found if (c.cell.policy.name, c.selector) == ("tct", selector))
        whole = np.isin(curve.values[:, -1], (0.0, 1.0))
        np.testing.assert_array_equal(np.array(mine)[whole], curve.values[whole, -1])
    page = made.path.read_text()
    assert "Self-consistency" in page
    assert "by text 1 on countdown-3" in page
    assert f"{sum(c.cell.without_answer for c in found[::4])} of 288" in page


def test_shown_questions_are_ranked_by_entropy_not_by_hand():
    some = [ballot([0] * 4, [0] * (4 - i) + list(range(1, i + 1)), question=f"q{i}") for i in (3, 0, 2, 1)]
    assert selection.shown_questions([elected(*some)]) == ["q1", "q2", "q3"]
    assert selection.shown_questions([elected(some[0])]) == ["q3"]


def test_the_command_writes_one_line_per_curve(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from twotemp import rewards

    monkeypatch.setattr(rewards, "load", lambda *a, **k: ByText())
    monkeypatch.setattr(figures, "available", lambda: False)  # tested above, and slow
    run = a_run(tmp_path / "run")
    done = CliRunner().invoke(app, ["select", str(run), "--by", "majority,orm,weighted,oracle", "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(r["policy"], r["selector"]) for r in rows] == [
        (p, s) for p in ("ar", "ct", "tct") for s in ("majority", "orm", "weighted", "oracle")
    ]
    for r in rows:
        assert list(r["best"]) == ["1", "2", "4", "8"]
        assert all(e["low"] <= e["mean"] <= e["high"] for e in r["best"].values())
    assert (run / "selection" / "selection.md").exists()


def test_a_report_has_a_selection_page_with_the_stored_scores(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.setattr(figures, "available", lambda: False)
    run = a_run(tmp_path / "run")
    assert common_reward_model(read_cells([run])) is None
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0
    page = run / "report" / "selection.md"
    assert "Self-consistency" in page.read_text()
    assert "ORM" not in page.read_text()
    read(run, reward_model=ByText())
    assert common_reward_model(read_cells([run])) == "by text 1"
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0
    assert "ORM-weighted vote" in page.read_text()
    once = fill(Store.create(tmp_path / "once"), "ar", {i: [("1", "x", True)] for i in range(3)})
    assert CliRunner().invoke(app, ["report", str(once.path.parent)]).exit_code == 0
    assert not (tmp_path / "once" / "report" / "selection.md").exists()


def test_the_viewer_has_curves_of_best_at_k_by_what_the_run_holds(tmp_path):
    run = a_run(tmp_path / "run", specs=("ar", "ct"))

    def curves() -> dict[str, list]:
        (charts,) = (block["items"] for block in viewer.view([run]).blocks if block["kind"] == "charts")
        return {chart["title"]: chart["series"] for chart in charts}

    assert list(curves()) == ["pass@k", "pass@NFE", "Best@k, majority", "Best@k, oracle"]
    cells = read(run, reward_model=ByText())
    found = curves()
    assert list(found)[2:] == [f"Best@k, {name}" for name in ("majority", "orm", "weighted", "oracle")]
    for cell, series in zip(cells, found["Best@k, weighted"]):
        (choice,) = every_choice([cell], ["weighted"])
        assert series["x"] == list(choice.ks)
        assert series["y"] == pytest.approx(choice.estimate.mean, rel=1e-4)
        assert series["low"] == pytest.approx(choice.estimate.low, rel=1e-4)


def test_a_report_leaves_out_selection_if_there_are_too_many_samples_to_vote(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.setattr(figures, "available", lambda: False)
    monkeypatch.setattr("twotemp.metrics.best._MAX_VOTES", 4)
    done = CliRunner().invoke(app, ["report", str(a_run(tmp_path / "run"))])
    assert done.exit_code == 0, done.output
    assert "the report has no page about choosing one answer: the exact vote counts" in done.stderr


def test_likelihoods_are_of_the_sampling_model_and_are_not_rewards(tmp_path, monkeypatch):
    """With another length and without the chat format: the rows that are judged are those of the samples."""
    import torch
    from typer.testing import CliRunner

    from twotemp.models.load import load

    monkeypatch.setattr(figures, "available", lambda: False)
    drawn = "--model tiny --tasks countdown-3 --policies ct;tct --questions 2 -n 3 --no-chat --length 16"
    run = tmp_path / "run"
    for command in (["eval", *drawn.split(), "--out", str(run)], ["select", str(run), "--by", "pll"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    model = load("tiny")
    for cell in Store.open(run).cells():
        (name,) = cell.scorers()
        assert name == f"pll:tiny {VERSION} {model.fingerprint[:8]}"
        for sample in cell.samples():
            row = torch.tensor([*sample.prompt, *sample.tokens])
            ends = [k for k in range(len(sample.prompt), len(row)) if row[k] in model.eos_ids]
            asked = range(len(sample.prompt), min(ends[0] + 1 if ends else len(row), len(row)))
            expected = 0.0
            for k in asked:
                at = torch.arange(len(row)) == k
                logits = model.logits(row.masked_fill(at, model.mask_id)[None], None, at[None])[0]
                logits[list(model.forbidden_ids)] = -torch.inf
                expected += logits.log_softmax(-1)[row[k]].item()
            assert cell.scores(name)[sample.key] == pytest.approx(expected, abs=1e-3)
    assert common_reward_model(read_cells([run])) is None


def test_likelihoods_need_the_weights_that_drew_the_samples(tmp_path):
    from typer.testing import CliRunner

    run = a_run(tmp_path / "run", specs=("ct",))
    done = CliRunner().invoke(app, ["select", str(run), "--by", "pll"])
    assert "tiny has changed since it drew these samples" in str(done.exception)
    assert Store.open(run)["countdown-3@ct"].scorers() == []


def test_voting_alone_needs_no_reward_model(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from twotemp import rewards

    monkeypatch.setattr(rewards, "load", lambda *a, **k: pytest.fail("no reward model was asked for"))
    monkeypatch.setattr(figures, "available", lambda: False)
    done = CliRunner().invoke(app, ["select", str(a_run(tmp_path / "run")), "--by", "majority,oracle"])
    assert done.exit_code == 0, done.output
    assert "Self-consistency" in done.output


def test_selection_loads_neither_torch_nor_matplotlib():
    names = "twotemp.analysis, twotemp.rewards"
    code = f"import sys, {names}; print({{'torch', 'matplotlib'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
