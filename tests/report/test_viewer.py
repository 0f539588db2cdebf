"""The run viewer: what its file holds, and what a reader can do with it in a browser."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
from dataclasses import asdict
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from tests.helpers.synthetic_runs import HOSTILE, write_run
from tests.helpers.viewer_pages import Tab, chunks_of, index_of
from twotemp.cli import app
from twotemp.forks.probe import Fork
from twotemp.forks.study import Journal
from twotemp.integrations.imports import HarnessCell, import_cells
from twotemp.policies import parse
from twotemp.records import Grade, Problem, Sample
from twotemp.report import live, viewer
from twotemp.report.blocks import sentences
from twotemp.store import Store


def test_every_sample_and_grade_is_in_the_file(run, html):
    index, chunks = index_of(html), chunks_of(html)
    for number, policy in enumerate(index["policies"]):
        (cell,) = (c for c in Store.open(run).cells() if c.config.policy.name == policy["spec"])
        grades = cell.grades("countdown 1")
        for sample in cell.samples():
            place = next(n for n, one in enumerate(index["questions"]) if one["id"] == sample.request)
            columns, grade = chunks[place]["cells"][str(number)], grades[sample.key]
            assert chunks[place]["texts"][columns["text"][sample.index]] == sample.text
            assert chunks[place]["grades"][columns["grade"][sample.index]][0] == grade.outcome
            assert columns["trace"][sample.index]["steps"] == list(sample.trace.steps)
            sign = {"passed": "+", "failed": "-", "timeout": "!", "ungraded": "?"}[grade.outcome]
            assert index["questions"][place]["verdicts"][str(number)][sample.index] == sign
    ids = [question["id"] for question in index["questions"]]
    assert ids == [f"countdown-3/test/{n}" for n in range(12)]  # 10 after 9


def test_hostile_text_cannot_leave_its_element_and_the_policy_is_strict(html):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert "window.hacked" in data  # in the reasons of the overview
    assert not re.search("[<>&]", data)
    assert "window.hacked" not in html.replace(data, "")
    assert html.count("<script") == html.count("</script>") == 2 + 12
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", html)


def test_traces_that_do_not_fit_are_left_out(run):
    small = viewer.view([run], largest=6_000).html()
    index, chunks = index_of(small), chunks_of(small)
    assert 0 < index["traced"] < 8
    kept = [t is not None for t in chunks[0]["cells"]["0"]["trace"]]
    assert kept == [n < index["traced"] for n in range(8)]
    assert len(chunks[0]["cells"]["0"]["text"]) == 8


def test_a_run_without_problems_on_this_machine_can_be_viewed(html):
    """The synthetic run's data are not those of the task, so that its questions have no text."""
    assert all("prompt" not in question for question in index_of(html)["questions"])


def test_the_overview_counts_why_samples_are_wrong(run, html):
    (found,) = (b for b in index_of(html)["blocks"] if "why samples are wrong" in b["title"])
    wrong, slow = found["rows"]  # ungraded samples are not wrong
    assert wrong[0].startswith("wrong step </script>")
    assert "onerror='…'" in wrong[0]
    assert slow == ["took longer than N s", *[slow[1]] * 6, "took longer than 10 s (6 times)"]
    for entry, column in zip(wrong[1:-1], index_of(html)["policies"]):
        (cell,) = (c for c in Store.open(run).cells() if c.config.policy.name == column["spec"])
        outcomes = [grade.outcome for grade in cell.grades("countdown 1").values()]
        share = outcomes.count("failed") / (len(outcomes) - outcomes.count("ungraded"))
        assert entry["value"] == pytest.approx(share)


# --- other kinds of runs


def test_rollouts_of_every_finished_step_can_be_read(browser, trained, tmp_path):
    path = viewer.write(tmp_path / "grpo.html", viewer.view([trained]))
    tab = Tab(browser, path.as_uri())
    charts = tab.page.locator("figcaption").all_inner_texts()
    assert [c.lower() for c in charts][:2] == [
        "mean reward of a group",
        "spread of the reward within a group (std)",
    ]
    tab.page.get_by_role("link", name="Rollouts").click()
    tab.until(lambda: tab.page.locator(".heatmap tbody tr").count() == 2)
    names = tab.page.locator(".heatmap tbody small").all_inner_texts()
    assert names == ["step 1: countdown-3/train/1", "step 2: countdown-3/train/2"]
    tab.page.locator(".heatmap a").nth(1).click()
    tab.until(lambda: tab.page.locator(".side.card").count() == 1)
    assert tab.page.locator("pre.raw").inner_text().endswith("= 6 2")
    assert "reward\n1.25" in tab.page.locator(".why").inner_text()
    tab.page.get_by_label("next sample").click()
    assert "reward\nnone: it could not be graded" in tab.page.locator(".why").inner_text()
    tab.close()


def test_of_a_long_run_the_page_keeps_evenly_spaced_steps(trained):
    assert len(viewer.view([trained]).run.questions) == 2
    small = viewer.view([trained], largest=300)
    assert [question["id"] for question in small.run.questions] == ["step 1: countdown-3/train/1"]


def test_a_study_of_forks_shows_its_forks(tmp_path):
    run = write_run(tmp_path / "forks", questions=12, n=1, words=4, policies=("ar",))
    found = [
        Fork(
            f"countdown-3/test/{n}/0/9",
            1 + n / 10,
            (0, 1, 2),
            (1.5, 1.0, 0.4),
            (5, 6),
            ("6", HOSTILE),
            n % 3,
            0,
        )
        for n in range(6)
    ]
    journal = Journal(run / "forks" / "countdown-3", {"task": "countdown-3"})
    journal.append(asdict(fork) for fork in found)
    journal.close()
    said, measured, one_by_one, *rest = viewer.view([run]).blocks
    assert said["items"][2].startswith("At 33 % of 6 forks the likeliest tokens lead to two or more")
    assert measured["items"][0]["series"][0]["y"] == [1.5, 1.0, 0.4]
    assert measured["items"][1]["series"][0]["x"] == [0, 1, 2]
    assert [row[0] for row in one_by_one["rows"]] == [fork.name for fork in reversed(found)]
    assert one_by_one["rows"][0][-1] == f"6, {HOSTILE}"
    assert rest[-1]["title"] == "Settings and provenance"


def test_candidates_that_a_race_dropped_do_not_stand_before_its_recommendation(browser, tmp_path):
    for kind, expected in (
        ("tune", ["Recommendation", "Not drawn"]),
        ("evaluation", ["Incomplete", "Recom"]),
    ):
        shown = viewer.View("run", kind, [sentences("Recommendation", ["Use lc."])], gaps=["lc: 16 of 80"])
        tab = Tab(browser, viewer.write(tmp_path / f"{kind}.html", shown).as_uri())
        titles = tab.page.locator("h2").all_inner_texts()
        assert [title.startswith(start) for title, start in zip(titles, expected)] == [True, True]
        tab.close()


def test_an_imported_run_shows_the_questions_that_came_with_it(tmp_path):
    origin = {"model": "tiny", "fingerprint": "f", "policy": parse("tlc").to_dict(), "block": None}
    cell = HarnessCell("lm-eval", "three", {**origin, "cache": None, "compile": False}, metric="exact_match")
    cell.problems["three/0"] = Problem("three/0", "three", HOSTILE, {"answer": "6"})
    cell.samples.append(Sample("three/0", 0, 0, parse("tlc"), (1,), (2,), (3,), 1, 1, 1, 0.1, "length", "6"))
    cell.grades.append((cell.samples[0].key, Grade("passed", "6")))
    import_cells([cell], tmp_path / "run")
    shown = viewer.view([tmp_path / "run"])
    assert shown.run.questions == [
        {"id": "three/0", "task": "three", "verdicts": {0: "+"}, "prompt": HOSTILE}
    ]
    (content,) = chunks_of(shown.html())
    assert content["reference"] == {"answer": "6"}


# --- the command and the live page


def test_report_and_view_write_the_page(run, tmp_path):
    done = CliRunner().invoke(app, ["view", str(run), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert len(chunks_of((tmp_path / "page.html").read_text())) == 12
    CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "report")])
    index = index_of((tmp_path / "report" / "report.html").read_text())
    titles = [chart["title"] for chart in index["blocks"][1]["items"]]
    assert titles == [
        "pass@k",
        "pass@NFE",
    ]  # no Best@k: the answers of a task that is not here cannot be compared


def test_the_live_page_follows_the_run_and_answers_only_loopback_names(tmp_path):
    run = write_run(tmp_path / "run", questions=2, n=2, words=4, policies=("lc",))
    server = live.server(live.LiveRun([run], lambda: viewer.view([run])))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}/"
    try:
        first = json.load(urlopen(base + "overview"))
        assert len(first["questions"]) == 2
        packed = urlopen(f"{base}question/{first['version']}/1").read()
        assert len(json.loads(gzip.decompress(packed))["texts"]) == 2
        write_run(tmp_path / "other", questions=3, n=2, words=4, policies=("lc", "tlc"))
        (tmp_path / "other" / "tlc").rename(run / "tlc")
        for _ in range(100):
            second = json.load(urlopen(base + "overview"))
            if second["version"] != first["version"]:
                break
            time.sleep(0.05)
        assert len(second["questions"]) == 3
        assert len(second["policies"]) == 2
        for path, host, status in (
            ("overview", "evil.example", 403),
            (f"question/{first['version']}/0", None, 409),
        ):
            request = Request(base + path, headers={"Host": host} if host else {})
            with pytest.raises(HTTPError) as refused:
                urlopen(request)
            assert refused.value.code == status
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_in_a_browser_the_live_page_shows_new_samples_and_says_when_the_server_ends(browser, tmp_path):
    run = write_run(tmp_path / "run", questions=2, n=2, words=4, policies=("lc",))
    server = live.server(live.LiveRun([run], lambda: viewer.view([run])))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        tab = Tab(browser, f"http://127.0.0.1:{server.server_port}/#questions")
        assert tab.page.locator(".heatmap tbody tr").count() == 2
        assert tab.page.locator("#status").inner_text() == "2 questions, live"
        write_run(tmp_path / "other", questions=3, n=2, words=4, policies=("lc", "tlc"))
        (tmp_path / "other" / "tlc").rename(run / "tlc")
        tab.until(lambda: tab.page.locator(".heatmap tbody tr").count() == 3)
        assert [name.split()[0] for name in tab.page.locator(".heatmap thead th").all_inner_texts()[1:]] == [
            "LC",
            "TLC",
        ]
        assert (
            tab.page.locator("#policy-a, #a").inner_text().split()[0] == "LC"
        )  # now there are two to compare
        tab.page.get_by_role("link", name="Overview").click()
        chart = tab.page.locator("figure.chart").first
        chart.locator("button.key").first.click()
        tab.page.locator("th button", has_text="NFE").first.click()
        write_run(tmp_path / "third", questions=3, n=2, words=4, policies=("ct",))
        (tmp_path / "third" / "ct").rename(run / "ct")
        tab.until(lambda: chart.locator("button.key").count() == 3)
        assert (
            chart.locator("path.line").count() == 2
        )  # what is hidden stays hidden, and a sorted table sorted
        assert tab.page.locator("th[aria-sort]").inner_text().startswith("NFE")
        tab.page.get_by_role("link", name="Questions").click()
        tab.page.locator(".heatmap a").first.click()
        tab.until(lambda: tab.page.locator(".side.card .answers .count").count() > 0)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    tab.until(lambda: "has ended" in tab.page.locator("#error").inner_text())
    assert tab.page.locator(".side.card .answers .count").count() > 0
    assert all("ERR_CONNECTION_REFUSED" in error for error in tab.errors)
    tab.errors.clear()
    tab.close()
