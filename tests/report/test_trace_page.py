"""Trace pages: their data, and the page itself in a real browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.helpers.toy import ToyModel
from twotemp.cli import app
from twotemp.engine import states
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Grade, Sample, Trace
from twotemp.report.trace_page import page, pieces
from twotemp.sampling.api import infill, sample

# Token text that would break a page which is careless about any one of them.
HOSTILE = (
    "<|endoftext|>",
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked=1'>",
    " <!--",
    "]]>",
    '"quotes\\"',
    "\u2028",
    "\u202eright to left",
    "\n    ",
    "\n",
    "&amp;",
    "${alert(1)}",
    " plain",
)


class Words:
    """A tokenizer whose tokens are those strings."""

    all_special_ids = (0,)

    def decode(self, ids, **options) -> str:
        return "".join(HOSTILE[i] for i in ids)


def hostile_sample(name: str, steps: list[int], entropy: float = 0.2) -> Sample:
    tokens = tuple(range(1, len(HOSTILE)))
    sure = tuple(0.5 + 0.03 * i for i in range(len(tokens)))
    spread = tuple(1.5 if i == 2 else entropy for i in range(len(tokens)))
    return Sample(
        request="q",
        index=0,
        seed=0,
        policy=policy(name),
        prompt=(len(HOSTILE) - 1, 1),
        positions=tuple(range(2, 2 + len(tokens))),
        tokens=tokens,
        nfe=max(steps) + 1,
        forwards=max(steps) + 1,
        processed=100,
        seconds=0.1,
        finish="length",
        trace=Trace(tuple(steps), sure, spread),
    )


def two_samples() -> list[Sample]:
    length = len(HOSTILE) - 1
    return [hostile_sample("lc", list(range(length))), hostile_sample("tct", [i // 4 for i in range(length)])]


def data_of(html: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert len(found) == 1
    return json.loads(found[0])


def test_data_survive_hostile_tokens():
    html = page(two_samples(), Words())
    data = data_of(html)
    for one in data["samples"]:
        written = [cell["text"] for cell in one["cells"] if "step" in cell]
        assert written == list(HOSTILE[1:])
    # The template has two script elements, and no token added or closed one.
    assert html.count("<script") == html.count("</script>") == 2
    assert "/*DATA*/" not in html
    assert data["prompt"] == "plain" + HOSTILE[1]


def test_cells_carry_the_trace():
    model = ToyModel()
    (found,) = sample(model, [5, 6, 7], policy("tlc", t_pos=math.inf), length=9, seed=4, trace=True)
    assert found.trace is not None
    one = data_of(page([found]))["samples"][0]
    written = one["cells"]  # the prompt stands above the samples, once
    assert [c["id"] for c in written] == list(found.tokens)
    assert data_of(page([found]))["prompt"] == "5 6 7"
    assert [c["step"] for c in written] == list(found.trace.steps)
    assert [c["confidence"] for c in written] == pytest.approx(found.trace.confidence, abs=1e-5)
    assert [c["entropy"] for c in written] == pytest.approx(found.trace.entropy, abs=1e-5)
    assert one["steps"] == found.nfe == 9
    assert ["T", "pos", "∞"] in one["settings"]


def test_special_tokens_of_the_prompt_are_left_out_and_verdicts_shown():
    samples = [replace(one, prompt=(0, 12, 12, 0)) for one in two_samples()]
    samples = [replace(one, positions=tuple(p + 2 for p in one.positions)) for one in samples]
    data = data_of(page([*samples, samples[0]], Words(), grades=[Grade("passed"), Grade("failed")]))
    assert data["prompt"] == "plain plain"
    assert [one["verdict"] for one in data["samples"]] == ["right", "wrong", None]
    assert data_of(page(samples[:1], grades=[Grade("ungraded")]))["samples"][0]["verdict"] is None


def test_infill_keeps_the_given_tokens_in_place():
    model = ToyModel()
    text = [5, model.mask_id, 7, model.mask_id, 9]
    (found,) = infill(model, text, policy("lc"), trace=True)
    data = data_of(page([found]))
    assert data["prompt"] is None
    assert ["step" in cell for cell in data["samples"][0]["cells"]] == [False, True, False, True, False]


def test_characters_of_several_tokens_belong_to_the_last():
    class Bytes:
        def decode(self, ids, **options) -> str:
            return bytes(ids).decode("utf-8", errors="replace")

    ids = list("aü b€".encode())
    found = pieces(ids, Bytes())
    assert "".join(piece for piece in found if piece != "\ufffd") == "aü b€"
    assert found[1:3] == ["\ufffd", "ü"]


def test_errors_name_the_fix():
    with pytest.raises(UserError, match="no sample"):
        page([])
    bare = sample(ToyModel(), [5, 6], policy("lc"), length=3)
    with pytest.raises(UserError, match="--trace"):
        page(bare)


# --- the command ------------------------------------------------------------------------------------------------


def write_lines(path: Path, samples: list[Sample]) -> Path:
    path.write_text("".join(json.dumps(s.to_dict()) + "\n" for s in samples))
    return path


def test_command_puts_sources_side_by_side(tmp_path):
    model = ToyModel()
    files = [
        write_lines(
            tmp_path / f"{name}.jsonl",
            sample(model, [[5, 6], [7, 8]], policy(name), n=3, length=6, trace=True, ids=["0", "1"]),
        )
        for name in ("lc", "random")
    ]
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["trace", *map(str, files), "--out", str(out), "--request", "1"])
    assert done.exit_code == 0, done.output
    data = data_of(out.read_text())
    assert [(s["name"], s["index"]) for s in data["samples"]] == [
        (name, index) for name in ("LC", "RANDOM") for index in range(3)
    ]
    assert data["each"] == 2
    assert data["prompt"] == "7 8"

    for arguments, message in (
        ([str(files[0]), "--request", "9"], "no sample of request '9'; choose --request from 0, 1"),
        ([str(tmp_path / "none.jsonl")], "does not exist"),
        ([str(tmp_path)], "is not a run"),
    ):
        failed = CliRunner().invoke(app, ["trace", *arguments])
        assert isinstance(failed.exception, UserError)
        assert message in str(failed.exception)


def test_command_names_the_broken_line(tmp_path):
    file = write_lines(tmp_path / "s.jsonl", two_samples())
    file.write_text(file.read_text() + '{"request": "q"}\n')
    failed = CliRunner().invoke(app, ["trace", str(file)])
    assert "line 3 is not a sample" in str(failed.exception)


# --- in a browser -----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Any]:
    """The page of two hostile samples."""
    with opened_page(browser, tmp_path, page(two_samples(), Words())) as tab:
        yield tab


@contextmanager
def opened_page(browser, folder: Path, html: str) -> Iterator[Any]:
    """A tab; at the end, that nothing was asked for and nothing went wrong."""
    file = folder / "trace.html"
    file.write_text(html, encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1200, "height": 800})
    asked, errors = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text))
    tab.goto(file.as_uri())
    yield tab
    assert asked == [file.as_uri()]
    assert errors == []
    assert tab.evaluate("window.hacked") is None
    tab.close()


LENGTH = len(HOSTILE) - 1


def written(tab, panel: int) -> int:
    return tab.locator(f"article >> nth={panel}").locator(".tok.on").count()


def test_page_shows_both_samples_complete(opened):
    assert opened.locator("article h2").all_inner_texts() == ["LC", "TCT"]
    assert [written(opened, 0), written(opened, 1)] == [LENGTH, LENGTH]
    assert opened.locator(".prompt p").inner_text() == "plain" + HOSTILE[1]
    shown = opened.locator("article >> nth=0").locator(".tok").all_text_contents()
    assert shown[0] == HOSTILE[1]
    assert shown[7] == "⏎\n    "
    # One fork a sample, at the position with 1.5 nats, in text and plot.
    assert opened.locator(".tok.fork").all_text_contents() == ["<!--", "<!--"]
    assert opened.locator("circle.fork").count() == 2
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_done_does_not_read_as_right(opened):
    """No tick if nothing was graded."""
    assert opened.locator(".clock").first.inner_text().startswith("done in ")
    assert "✓" not in opened.content()


def test_slider_and_keys_move_one_clock(opened):
    slider = opened.locator("#step")
    slider.fill("0")
    assert [written(opened, 0), written(opened, 1)] == [0, 0]
    opened.keyboard.press("ArrowRight")
    assert [written(opened, 0), written(opened, 1)] == [1, 4]
    opened.keyboard.press("ArrowRight")
    assert [written(opened, 0), written(opened, 1)] == [2, 8]
    assert opened.locator("article >> nth=0").locator(".tok.now").count() == 1
    assert opened.locator(".clock").all_inner_texts() == [f"step 2 of {LENGTH}", "step 2 of 3"]
    opened.keyboard.press("ArrowLeft")
    assert written(opened, 0) == 1
    opened.keyboard.press("End")
    assert [written(opened, 0), written(opened, 1)] == [LENGTH, LENGTH]
    opened.keyboard.press("Home")
    assert written(opened, 0) == 0
    # Color follows the step: in order, and the same step has the same color in both samples.
    lc, tct = (
        opened.locator(f"article >> nth={i}")
        .locator(".tok")
        .evaluate_all("all => all.map(t => t.style.cssText)")
        for i in (0, 1)
    )
    assert len(set(lc)) == LENGTH
    assert tct == [lc[i // 4] for i in range(LENGTH)]


def until(tab, reached: Callable[[], bool], seconds: float = 15.0) -> None:
    """Poll from here: the page's own policy forbids the `eval` that playwright would wait with."""
    for _ in range(int(seconds / 0.05)):
        if reached():
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"nothing happened within {seconds} s")


def test_play_runs_to_the_end_and_pauses(opened):
    opened.keyboard.press("Home")
    opened.click("#play")
    assert opened.get_attribute("#play", "aria-label") == "Pause"
    until(opened, lambda: int(opened.input_value("#step")) >= 2)
    opened.keyboard.press(" ")
    assert opened.get_attribute("#play", "aria-label") == "Play"
    stopped = opened.input_value("#step")
    opened.wait_for_timeout(700)
    assert opened.input_value("#step") == stopped
    opened.click("#play")
    until(opened, lambda: int(opened.input_value("#step")) == LENGTH)
    assert opened.get_attribute("#play", "aria-label") == "Play"


def test_a_tooltip_shows_confidence_and_entropy(opened):
    opened.locator("article >> nth=1").locator(".tok").nth(2).hover()
    tip = opened.locator("#tip")
    assert tip.is_visible()
    shown = tip.inner_text()
    assert "0.560" in shown
    assert "1.500 nats" in shown
    assert "position 4, id 3, step 1 of 3" in shown
    assert "fork" in shown
    assert opened.locator("circle.lit").count() == 1
    opened.locator("article >> nth=0").locator(".tok").nth(1).hover()
    assert "<img src=x" in tip.inner_text()
    assert "fork" not in tip.inner_text()
    opened.locator("h2 >> nth=0").hover()
    assert not tip.is_visible()
    opened.keyboard.press("Home")  # still masked: the page does not give away what will be written
    opened.locator("article >> nth=0").locator(".tok").nth(1).hover()
    assert "masked" in tip.inner_text()
    assert "img" not in tip.inner_text()


def test_a_tooltip_covers_neither_its_token_nor_the_plot(opened):
    tip = opened.locator("#tip")
    for what in (".tok", "circle"):
        for place in (0, LENGTH - 1):
            target = opened.locator("article >> nth=0").locator(what).nth(place)
            target.hover()
            assert tip.is_visible()
            for kept in (target, opened.locator("article >> nth=0").locator(".plot svg")):
                assert not overlap(tip.bounding_box(), kept.bounding_box()), (what, place)


def overlap(a, b) -> bool:
    return all(
        a[x] < b[x] + b[size] and b[x] < a[x] + a[size] for x, size in (("x", "width"), ("y", "height"))
    )


def test_every_policy_has_one_row_with_a_map_of_its_samples(browser, tmp_path):
    lc, tct = two_samples()
    samples = [replace(one, index=index) for one in (lc, tct) for index in range(5)]
    grades = [Grade("passed" if one.index == 4 else "failed") for one in samples]
    html = page(samples, Words(), each=2, grades=grades)
    with opened_page(browser, tmp_path, html) as tab:
        rows = tab.locator("section.policy")
        assert rows.locator("h2").all_inner_texts() == ["LC", "TCT"]
        assert [rows.nth(n).locator("article").count() for n in (0, 1)] == [2, 2]
        boxes = [rows.first.locator("article").nth(n).bounding_box() for n in (0, 1)]
        assert boxes[0]["y"] == boxes[1]["y"]
        assert "1 of 5 right" in rows.first.locator(".settings").first.inner_text()
        chart = rows.first.get_by_role("slider", name="Samples of LC")
        chart.focus()
        tab.keyboard.press("End")
        assert chart.get_attribute("aria-valuetext") == "sample 4, right"
        shown = rows.first.locator("article .settings").all_inner_texts()
        assert [text.split()[1] for text in shown] == ["4", "0"]
        assert "right" in shown[0]
        tab.keyboard.press("ArrowUp")
        assert chart.get_attribute("aria-valuenow") == "3"
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    four = [replace(lc, index=index) for index in range(4)]
    with opened_page(browser, tmp_path, page(four, Words())) as tab:  # two and two, not three and one
        tops = [one.bounding_box()["y"] for one in tab.locator("article").all()]
        assert tops[0] == tops[1] < tops[2] == tops[3]


@pytest.mark.parametrize("name", ["llada2.1", "t2m"])
def test_a_rewritten_position_shows_its_earlier_tokens(browser, tmp_path, name):
    model = ToyModel()
    samples = sample(
        model, [5, 6, 7], policy(name, t_token=1.0, edit_threshold=0.5), n=8, length=9, trace=True
    )
    one = max(samples, key=lambda found: len(found.trace.edits))
    rows = [row for row, _ in states(one, model.mask_id)]
    standing = [[str(row[p]) for p in one.positions if row[p] != model.mask_id] for row in rows]
    standing.append([str(token) for token in one.tokens])
    masks = [[p for p in one.positions if row[p] == model.mask_id] for row in rows]
    taken_back = any(set(after) - set(before) for before, after in pairwise(masks))
    assert taken_back == (name == "t2m")
    assert one.trace.edits
    with opened_page(browser, tmp_path, page([one])) as tab:
        tab.keyboard.press("Home")
        for done, expected in enumerate(standing):
            assert tab.locator(".tok.on").all_text_contents() == expected, done
            assert f"{len(expected)} tokens" in tab.locator(".count small").inner_text()
            tab.keyboard.press("ArrowRight")
        assert f"{len(one.trace.edits)} rewrite" in tab.locator("article .facts").inner_text()
        place = one.trace.edits[0][1]
        tab.locator(".tok").nth(place).hover()
        assert "before:" in tab.locator("#tip").inner_text()
