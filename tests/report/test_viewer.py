"""The run viewer: what its file holds, and what a reader can do with it in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
import threading
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from typer.testing import CliRunner

import twotemp
from tests.helpers.synthetic_runs import HOSTILE, write_run
from twotemp.cli import app
from twotemp.folders import claim
from twotemp.forks.probe import Fork
from twotemp.forks.study import Journal
from twotemp.integrations.imports import HarnessCell, import_cells
from twotemp.policies import parse
from twotemp.records import Grade, Problem, Sample
from twotemp.report import live, trace_page, viewer
from twotemp.rl import results
from twotemp.rl.rollouts import Rollouts
from twotemp.store import Store


def index_of(html: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(found)


def chunks_of(html: str) -> list[dict[str, Any]]:
    packed = re.findall(r'<script type="application/gzip" data-chunk="\d+">(.*?)</script>', html)
    return [json.loads(gzip.decompress(base64.b64decode(one))) for one in packed]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "six"
    return write_run(folder, questions=12, n=8, words=10, trace=True)


@pytest.fixture(scope="module")
def html(run) -> str:
    return viewer.view([run]).html()


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


# --- in a browser


class Tab:
    """A page, and what it asked for and complained about."""

    def __init__(self, browser, address: str, width: int = 1300, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.address = address.partition("#")[0]
        self.page.goto(address)
        self.until(lambda: self.page.locator("body").get_attribute("data-state") == "drawn")

    def until(self, reached) -> None:
        """Poll from here: the page's own policy forbids the `eval` that playwright would wait with."""
        for _ in range(400):
            if reached():
                return
            time.sleep(0.05)
        raise AssertionError("waited in vain")

    def close(self) -> None:
        assert self.errors == []
        assert all(url.startswith(self.address) for url in self.asked)
        assert self.page.evaluate("window.hacked") is None
        self.page.close()


@pytest.fixture(scope="module")
def file(html, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, file):
    tabs = []

    def open_at(fragment: str = "", **options):
        tabs.append(Tab(browser, file + fragment, **options))
        return tabs[-1]

    yield open_at
    for tab in tabs:
        tab.close()


def listed(page) -> list[str]:
    return [text.split("/")[-1] for text in page.locator(".heatmap tbody small").all_inner_texts()]


def verdicts(html: str, policy: str) -> dict[str, str]:
    index = index_of(html)
    number = next(n for n, one in enumerate(index["policies"]) if one["spec"] == policy)
    return {q["id"].split("/")[-1]: q["verdicts"][str(number)] for q in index["questions"]}


def test_filters_show_exactly_the_questions_they_name(opened, html):
    page = opened("#questions").page
    tlc, lc = verdicts(html, "tlc"), verdicts(html, "lc")
    assert listed(page) == list(tlc)
    page.locator("#filter").select_option("gained")  # A is TLC, B is LC unless they are chosen
    assert listed(page) == [q for q in tlc if "+" in tlc[q] and "+" not in lc[q]]
    page.locator("#filter").select_option("late")
    assert listed(page) == [q for q in tlc if "+" in tlc[q] and tlc[q][0] != "+"]
    page.locator("#filter").select_option("ungraded")
    assert listed(page) == ["7"]
    page.locator("#filter").select_option("errors")
    assert listed(page) == ["8"]
    page.locator("#filter").select_option("all")
    page.locator("#sort").select_option("difference")
    gaps = {q: tlc[q].count("+") / 8 - lc[q].count("+") / 8 for q in tlc if q not in "78"}
    assert [q for q in listed(page) if q in gaps] == sorted(gaps, key=lambda q: -gaps[q])


def test_search_finds_questions_by_id_and_by_samples(opened, html):
    tab = opened("#questions")
    page = tab.page
    page.locator("#search").fill("test/1")
    assert listed(page) == ["1", "10", "11"]
    page.locator("#search").fill("ONERROR")
    assert listed(page) == []
    page.locator("#search").press("Enter")
    said = page.locator("#found")
    tab.until(lambda: "Their samples were searched, too." in said.inner_text())
    assert len(listed(page)) == 12
    page.get_by_role("link", name="Questions").click()  # ends the search, and what was said of it
    tab.until(lambda: page.locator("#search").input_value() == "")
    assert "searched" not in said.inner_text()
    page.locator("#search").fill("wrong step")  # the reason of a verdict
    page.locator("#search").press("Enter")
    tab.until(lambda: "Their samples were searched, too." in said.inner_text())
    assert len(listed(page)) == 12


def test_a_link_shows_the_same_question_policies_and_sample_text(opened):
    tab = opened("#questions?question=countdown-3/test/3&task=countdown-3&a=3&b=1")
    page = tab.page
    assert page.locator("#part-question h2").inner_text() == "countdown-3/test/3"
    sides = page.locator(".side.card")
    assert sides.nth(0).locator("select").first.input_value() == "3"
    assert sum(map(int, sides.nth(0).locator(".answers .count").all_inner_texts())) == 8
    texts = sides.nth(0).locator(".answers .unanswered").all_inner_texts()  # after the answers
    assert texts
    assert texts == sides.nth(0).locator(".answers button > span:last-child").all_inner_texts()[-len(texts) :]
    sides.nth(0).get_by_role("slider", name="Samples of policy A").press("Home")
    sides.nth(0).locator("summary").click()
    assert HOSTILE[:9] in sides.nth(0).locator("pre.raw").inner_text()
    first = sides.nth(0).locator(".which h3").inner_text()
    sides.nth(0).get_by_label("next sample").click()
    second = sides.nth(0).locator(".which h3").inner_text()
    assert second != first
    tab.until(lambda: f"sample-a={second.split()[1]}" in page.url)
    page.reload()
    tab.until(lambda: sides.count() == 2)
    assert sides.nth(0).locator(".which h3").inner_text() == second
    page.get_by_text("next →").click()
    assert "sample-a" not in page.url
    tab.until(lambda: page.locator("#part-question h2").inner_text() == "countdown-3/test/4")
    page.go_back()
    tab.until(lambda: page.locator("#part-question h2").inner_text() == "countdown-3/test/3")
    assert sides.nth(0).locator(".which h3").inner_text() == second
    page.locator("#policy-b").select_option("0")
    tab.until(lambda: "b=0" in page.url)


def test_a_question_lists_the_answers_of_all_policies(opened, html):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3").page
    page.locator(".by-policy summary").first.click()
    rows = page.locator(".by-policy").first.locator("tbody tr").all_inner_texts()
    counts = [list(map(int, row.split("\t")[1:])) for row in rows]
    index = index_of(html)
    expected = [index["questions"][3]["verdicts"][str(n)].count("+") for n in range(6)]
    assert [sum(column) for column in zip(*counts[:-1])] == expected  # a failed sample has no answer here
    assert [sum(column) for column in zip(*counts)] == [8] * 6
    assert rows[0].startswith("✓")
    assert rows[-1].startswith("no answer found")


def test_a_click_anywhere_in_a_row_opens_its_question_and_back_returns_to_its_place(opened):
    tab = opened("#questions")
    page = tab.page
    page.set_viewport_size({"width": 1300, "height": 300})
    page.locator("#rows").evaluate("(rows) => { rows.scrollTop = 90; }")
    page.locator(".heatmap tbody tr").nth(5).locator("td").last.click()
    tab.until(lambda: page.locator("#part-question h2").is_visible())
    assert page.locator("#part-question h2").inner_text() == "countdown-3/test/5"
    page.go_back()
    tab.until(lambda: page.locator("#rows").is_visible())
    assert page.locator("#rows").evaluate("(rows) => rows.scrollTop") == 90


def test_no_link_to_a_part_moves_the_page(opened):
    tab = opened()
    page = tab.page
    page.set_viewport_size({"width": 1300, "height": 300})  # so that there is somewhere to go
    for name in ("Questions", "Overview", "Questions"):
        page.get_by_role("link", name=name).click()
        tab.until(page.locator(f"#part-{name.lower()}").is_visible)
        assert page.evaluate("scrollY") == 0


def test_a_question_counts_the_reasons_against_its_samples(opened, html):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3").page
    page.locator(".by-policy summary").last.click()
    (row,) = page.locator(".by-policy").last.locator("tbody tr").all_inner_texts()
    assert HOSTILE[:9] in row
    index = index_of(html)
    wrong = [index["questions"][3]["verdicts"][str(n)].count("-") for n in range(6)]
    assert list(map(int, row.split("\t")[1:])) == wrong


def test_an_order_map_says_what_was_written_under_the_pointer(opened, html):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3").page
    canvas = page.locator(".side.card .map .when").first
    canvas.hover(position={"x": 9, "y": canvas.bounding_box()["height"] - 4})
    index, chunk = index_of(html), chunks_of(html)[3]
    number = next(n for n, one in enumerate(index["policies"]) if one["spec"] == "tlc")
    trace = chunk["cells"][str(number)]["trace"][7]
    token = index["pieces"][str(trace["tokens"][0])].strip()
    said = page.locator(".side.card .map .tip").first
    assert said.inner_text().split("\n") == [f"{token} step {trace['steps'][0] + 1}", "position 0, sample 7"]
    page.locator("h1").hover()
    assert said.is_hidden()


def test_nothing_of_the_fork_tree_is_cut_off_sideways(opened):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3", width=390).page
    cut = """(tree) => [tree, ...tree.querySelectorAll("ul, li, button, .words")]
      .filter((node) => node.scrollWidth > node.clientWidth + 1).length"""
    assert page.locator(".tree").first.evaluate(cut) == 0
    words = " ".join(page.locator(".tree").first.locator(".words").all_inner_texts())
    assert "…" not in words


def test_tokens_follow_the_step_slider_and_colors_change(opened):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3").page
    side = page.locator(".side.card").first
    assert side.locator(".tok.on").count() == 10
    side.get_by_label("Step", exact=True).fill("4")
    assert side.locator(".tok.on").count() == 4
    before = side.locator(".tok").first.get_attribute("style")
    side.locator("[id^=color]").select_option("entropy")
    assert side.locator(".tok").first.get_attribute("style") != before
    chart = side.get_by_role("slider", name="Samples of policy A")
    chart.focus()
    page.keyboard.press("End")
    assert side.locator(".which h3").inner_text() == "sample 7"


def test_curves_are_read_with_the_keyboard_and_hidden_by_the_legend(opened, html):
    page = opened().page
    chart = page.locator("figure.chart").first
    assert chart.locator("path.line").count() == 6
    chart.locator(".plot").focus()
    page.keyboard.press("End")
    said = chart.locator(".plot").get_attribute("aria-valuetext")
    (curve,) = (s for s in index_of(html)["blocks"][1]["items"][0]["series"] if s["name"].startswith("TCT"))
    assert said.startswith("k 8: ")
    assert f"{100 * curve['y'][-1]:.1f} %" in said
    chart.locator("button.key").first.click()
    assert chart.locator("path.line").count() == 5
    page.locator("th button", has_text="k = 8").first.click()
    rates = page.locator("table").first.locator("tbody tr td:last-child").all_inner_texts()
    assert [float(r.split()[0]) for r in rates] == sorted((float(r.split()[0]) for r in rates), reverse=True)


def test_the_overview_leads_to_what_one_policy_solves_and_another_does_not(opened, html):
    tab = opened()
    page = tab.page
    card = page.locator("section.card", has_text="solved by A and not by B")
    tct, ar = verdicts(html, "tct"), verdicts(html, "ar")
    names = card.locator("tbody th").all_inner_texts()
    row, column = (next(n for n, name in enumerate(names) if name.startswith(p)) for p in ("TCT ", "AR "))
    cell = card.locator("tbody tr").nth(row).locator("td").nth(column)
    expected = [q for q in tct if "+" in tct[q] and "+" not in ar[q]]
    assert expected
    assert cell.inner_text() == str(len(expected))
    cell.locator("a").click()
    tab.until(page.locator("#rows").is_visible)
    assert listed(page) == expected


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1300, "light")])
def test_nothing_is_wider_than_the_window(opened, width, scheme):
    for fragment in ("", "#questions", "#questions?question=countdown-3/test/3&task=countdown-3"):
        page = opened(fragment, width=width, scheme=scheme).page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), fragment


def test_the_parts_of_two_policies_stand_side_by_side(opened):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3").page
    for part in (".answers", ".map", ".sample", ".tree"):
        left, right = (page.locator(f".side.card {part}").nth(n).bounding_box() for n in range(2))
        assert left["y"] == pytest.approx(right["y"], abs=1)
        assert left["x"] + left["width"] < right["x"]


def test_a_question_opens_at_a_right_sample(opened, html):
    page = opened("#questions?question=countdown-3/test/3&task=countdown-3").page
    expected = verdicts(html, "tlc")["3"].index("+")
    assert page.locator(".side.card").first.locator(".which h3").inner_text() == f"sample {expected}"


# --- other kinds of runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two finished steps of a GRPO run, and the rollouts of a third that a kill interrupted."""
    run = tmp_path_factory.mktemp("grpo") / "trained"
    claim(
        run,
        "grpo",
        {"model": "tiny", "task": "countdown-3", "settings": {"policy": parse("tct").to_dict()}},
    )
    log = results.open_steps(run, 0)
    for step in (1, 2, 3):
        problem = Problem(f"countdown-3/train/{step}", "countdown-3", "1 2 3 -> 6", {"target": 6})
        samples = tuple(
            Sample(problem.id, index, 0, parse("tct"), (1,), (2,), (3,), 1, 1, 1, 0.1, "length", text)
            for index, text in enumerate((f"1 + 2 = 3 , 3 + 3 = 6 {step}", HOSTILE))
        )
        grades = (Grade("passed", "6", "chain"), Grade("ungraded", detail="the grader failed"))
        rollouts = Rollouts((problem,), samples, grades, torch.tensor([[1.25, math.nan]]), 0.0, 0.0)
        results.write_rollouts(run, step, 0, rollouts)
        if step < 3:
            row = {field.name: 1 for field in fields(results.StepRecord)}
            log.add({**row, "step": step, "kl": None})
    return run


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


# --- slow: a large run, and what axe-core finds


@pytest.mark.slow
def test_a_large_run_fits_into_30_mb_and_appears_within_two_seconds(browser, tmp_path):
    """500 questions, 64 samples of 60 words, 6 policies. The first paint must not wait for the samples."""
    run = write_run(tmp_path / "large", questions=500, n=64, words=60)
    path = viewer.write(tmp_path / "large.html", viewer.view([run]))
    assert path.stat().st_size < 30e6
    tab = Tab(browser, path.as_uri())
    painted = tab.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print({"MB": round(path.stat().st_size / 1e6, 1), "first paint, s": round(painted / 1000, 2)})
    assert painted < 2000
    tab.page.goto(path.as_uri() + "#questions?filter=gained")
    tab.until(lambda: tab.page.locator("#found").is_visible())
    assert "of 500 questions" in tab.page.locator("#found").inner_text()
    tab.page.goto(path.as_uri() + "#questions?question=countdown-3/test/499&task=countdown-3")
    tab.until(lambda: tab.page.locator(".side.card .answers .count").count() > 0)
    first = tab.page.locator(".side.card").first.locator(".answers .count").all_inner_texts()
    assert sum(map(int, first)) == 64
    tab.close()


@pytest.mark.slow
def test_axe_finds_no_serious_violation(browser, file, trained, tmp_path):
    """Set TWOTEMP_AXE to the axe.min.js of the npm package axe-core."""
    script = os.environ.get("TWOTEMP_AXE")
    if not script:
        pytest.skip("needs TWOTEMP_AXE=node_modules/axe-core/axe.min.js (npm install axe-core)")
    import browser_playground

    playground, trace = tmp_path / "playground.html", tmp_path / "trace.html"
    playground.write_text(browser_playground.page(), "utf-8")
    samples = twotemp.sample("tiny", "22 26 31 -> 79", "tlc", n=6, length=12, trace=True)
    trace.write_text(trace_page.page(samples, title="axe", each=2), "utf-8")
    grpo = viewer.write(tmp_path / "grpo.html", viewer.view([trained])).as_uri()
    question = "#questions?question=countdown-3/test/3&task=countdown-3"
    serious = []
    shown = [file, file + "#questions", file + question, playground.as_uri(), trace.as_uri()]
    for address in (*shown, grpo, grpo + "#questions"):
        for scheme in ("light", "dark"):
            # The page's own policy forbids foreign scripts; a context may set it aside for a test.
            context = browser.new_context(bypass_csp=True, color_scheme=scheme)
            page = context.new_page()
            page.goto(address)
            for _ in range(400):
                if address == trace.as_uri():  # is drawn at once
                    break
                if page.locator("body").get_attribute("data-state") in ("drawn", "done"):
                    break
                time.sleep(0.05)
            page.add_script_tag(path=script)
            found = page.evaluate("axe.run()")["violations"]
            serious += [
                (
                    address.partition("#")[2],
                    scheme,
                    v["id"],
                    v["nodes"][0]["html"][:160],
                    v["nodes"][0]["failureSummary"],
                )
                for v in found
                if v["impact"] in ("serious", "critical")
            ]
            context.close()
    assert not serious, "\n".join(map(str, serious))
