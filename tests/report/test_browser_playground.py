"""The playground without a server: `tiny` in the browser draws the samples of `twotemp.sample`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import browser_playground
import pytest

import twotemp
from twotemp.graders import get
from twotemp.policies import PRESETS
from twotemp.tasks import SOURCES

PROBLEMS = SOURCES["countdown-3"].task().problems().problems[:2]
SHAPES = ((12, None), (18, 6))  # length and block: one block, and several


ASK_WORKERS = """async (cases) => Promise.all(cases.map(([text, policy, length, block, seed], n) =>
  new Promise((done, fail) => {
    const id = ++asked, numbers = Object.entries(policy).map(([k, v]) => [k, v === "inf" ? Infinity : v]);
    const request = {prompt: encode(text), policy: Object.fromEntries(numbers), length, block, seed: String(seed)};
    waiting.set(id, {samples: [], missing: 1, done, fail});
    workers[n % workers.length].postMessage({id, side: `case ${n}`, request: {...request, indices: [0, 1, 2, 3]}});
  })))"""


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("site") / "playground.html"
    path.write_text(browser_playground.page(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def tab(browser, address):
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    asked, errors = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text))
    yield opened
    assert errors == []
    assert all(url.partition("#")[0] == address or url.startswith("blob:") for url in asked)
    opened.close()


def until(condition) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def settled(tab) -> None:
    until(lambda: tab.locator("body").get_attribute("data-state") == "done")


def test_every_preset_with_a_budget_or_a_threshold_is_offered():
    rules = {PRESETS[name].policy.rule for name in browser_playground.presets()}
    assert rules == {"budget", "threshold"}
    assert len(browser_playground.presets()) >= 17


def test_samples_are_those_of_the_library(tab, address, model):
    """Tokens, order, cost and confidence of every preset. A near-tie that rounding decides would be a difference."""
    tab.goto(address)
    settled(tab)
    cases, expected = [], []
    for seed, name in enumerate(browser_playground.presets()):
        for problem in PROBLEMS:
            for length, block in SHAPES:
                drawn = twotemp.sample(
                    model, problem.prompt, name, n=4, length=length, block=block, seed=seed, trace=True
                )
                policy = drawn[0].policy.to_dict()
                cases.append([problem.prompt, policy, length, block, seed])
                expected.append(drawn)
    # The page's own worker and encoder, asked directly: through the form this would take a minute.
    found = tab.evaluate(ASK_WORKERS, cases)
    pairs = [(ours, theirs) for drawn, some in zip(expected, found) for ours, theirs in zip(drawn, some)]
    assert len(pairs) >= 200
    different = [ours for ours, theirs in pairs if list(ours.tokens) != theirs["tokens"]]
    print(json.dumps({"samples": len(pairs), "different": len(different)}))
    assert different == []
    for ours, theirs in pairs:
        assert list(ours.trace.steps) == theirs["steps"]
        assert ours.nfe == theirs["nfe"]
        assert theirs["confidence"] == pytest.approx(ours.trace.confidence, abs=1e-4)


def test_the_page_shows_the_library_s_answers_and_the_grader_s_verdicts(tab, address, model):
    problem = PROBLEMS[0]
    tab.goto(f"{address}#n=24&seed=3&a=lc&b=tct:t_pos=0.3")
    settled(tab)
    for number, policy in enumerate(("lc", "tct:t_pos=0.3")):
        panel = tab.locator("main > section").nth(number)
        drawn = twotemp.sample(model, problem.prompt, policy, n=24, length=12, seed=3)
        (answers,) = drawn.answers().values()
        shown = dict(
            zip(
                panel.locator("ol button > span:last-child").all_inner_texts(),
                map(int, panel.locator("ol .count").all_inner_texts()),
            )
        )
        assert shown == dict(answers)
        grades = dict(zip(shown, get("countdown").grade([(problem, text) for text in shown])))
        verdicts = dict(zip(shown, panel.locator("ol .hidden").all_inner_texts()))
        assert verdicts == {text: "right" if grade.passed else "wrong" for text, grade in grades.items()}


def test_the_grader_in_the_page_is_the_library_s(tab, address):
    tab.goto(address)
    settled(tab)
    numbers, target = [22, 26, 31], 79
    texts = [
        "22 + 26 = 48 , 48 + 31 = 79",
        "26 + 22 = 48 , 31 + 48 = 79",
        "22 + 26 = 47 , 47 + 31 = 79",
        "",
        "x",
    ]
    texts += [
        "22 + 26 = 48",
        "22 + 22 = 44 , 44 + 26 = 70",
        "31 - 31 = 0 , 22 + 26 = 48",
        "26 / 0 = 1",
        "31 - 26 = 5 , 22 - 5 = 17",
    ]
    found = tab.evaluate(
        "([reference, texts]) => texts.map((text) => gradeChain(reference, text))",
        [{"numbers": numbers, "target": target}, texts],
    )
    from twotemp.graders.puzzles import grade_chain

    expected = [grade_chain(numbers, target, text) for text in texts]
    assert [(g["outcome"], g["answer"]) for g in found] == [(g.outcome, g.answer) for g in expected]


def test_a_step_of_the_slider_draws_at_once_and_errors_are_shown(tab, address):
    tab.goto(address)
    settled(tab)
    slider = tab.locator(".heat input[type=range]")
    slider.focus()
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    until(lambda: "t_pos" in tab.url)
    settled(tab)
    assert "48 samples of each policy in" in tab.locator("#status").inner_text()
    assert sum(map(int, tab.locator("main ol").last.locator(".count").all_inner_texts())) == 48
    tab.locator("#length").fill("200")
    tab.locator("#run").click()
    until(lambda: tab.locator("#error").is_visible())
    assert "exceed the context of 128" in tab.locator("#error").inner_text()


def test_inside_another_page_the_controls_of_both_policies_stand_side_by_side(tab, address):
    tab.set_viewport_size({"width": 740, "height": 900})
    tab.goto(address)
    settled(tab)
    tab.evaluate("document.body.classList.add('embedded')")
    left, right = (tab.get_by_label(f"Policy {side}", exact=True).last.bounding_box() for side in "AB")
    assert left["y"] == right["y"]


PHONE = """<!doctype html><meta name="viewport" content="width=device-width"><style>
body {{ margin: 0 }} article {{ width: 420px }} pre {{ overflow: auto }} .table-wrapper {{ overflow-x: auto }}
{css}</style><article>
<div class="highlight-python notranslate"><div class="highlight"><pre>{long}</pre></div></div>
<div class="highlight-text notranslate"><div class="highlight"><pre id="output">{long}</pre></div></div>
<div class="table-wrapper"><table><tr><td>a</td><td><code>{name}</code></td><td>b</td></tr></table></div></article>"""


def test_code_and_tables_of_the_site_fit_a_phone(browser):
    """Lines of Python wrap, and so do names in tables; output of commands keeps its columns and scrolls."""
    css = (Path(__file__).parents[2] / "docs" / "static" / "site.css").read_text()
    opened = browser.new_page(viewport={"width": 420, "height": 800})
    opened.set_content(PHONE.format(css=css, long="model " * 400, name="GSAI-ML/LLaDA-8B-Instruct-" * 4))
    too_wide = "e => [...document.querySelectorAll(e)].map((e) => e.scrollWidth > e.clientWidth)"
    assert opened.evaluate(too_wide, ".highlight-python pre") == [False]
    assert opened.evaluate(too_wide, ".table-wrapper") == [False]
    assert opened.evaluate(too_wide, "#output") == [True]
    opened.close()


def sections(module: bytes) -> list[tuple[int, bytes]]:
    """Return the sections of a WebAssembly module but for custom ones: some assemblers keep names there."""
    found, at = [], 8
    while at < len(module):
        kind, size, shift, at = module[at], 0, 0, at + 1
        while True:
            size |= (module[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if module[at - 1] < 128:
                break
        found.append((kind, module[at : at + size]))
        at += size
    return [section for section in found if section[0]]


def test_the_kernels_are_those_in_the_source():
    pytest.importorskip("wasmtime", reason="needs wasmtime (pip install wasmtime)")
    import tiny_kernels

    committed = (tiny_kernels.PAGES / "tiny_kernels.wasm").read_bytes()
    assert sections(tiny_kernels.assemble()) == sections(committed), "run `make pages`"
