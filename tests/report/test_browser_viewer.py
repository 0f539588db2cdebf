"""The viewer in a browser: its questions, filters, links, tokens and curves; and a large run."""

from __future__ import annotations

import os
import time

import pytest

import twotemp
from tests.helpers.synthetic_runs import HOSTILE, write_run
from tests.helpers.viewer_pages import Tab, chunks_of, index_of
from twotemp.report import trace_page, viewer


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
