"""The page at `/`: strict about what may load, right about what it counts, usable by keyboard."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")
pytest.importorskip("httpx", reason="needs httpx, Starlette's test client")

import twotemp
from tests.helpers.serving_clients import PROMPT, client_of, listening, wait_for
from twotemp import graders
from twotemp.engine import StepCallback, run, states
from twotemp.graders import get
from twotemp.graders.puzzles import CountdownGrader
from twotemp.records import Request
from twotemp.sampling.requests import prompt_requests
from twotemp.serving import Server
from twotemp.serving.playground import TASKS


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def uniform():
    """Return an embedded model that has no mask."""
    return twotemp.load("tiny-uniform")


@pytest.fixture(scope="module")
def client(model):
    with client_of(model) as made:
        yield made


def test_the_page_may_load_nothing_but_itself(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    for outside in ("src=", "href=", "@import", " url("):
        assert outside not in answer.text


def test_verdicts_are_the_grader_s(client):
    about = client.get("/playground/about").json()
    task = about["tasks"][0]
    problem = task["problems"][0]
    texts = ["22 + 26 = 48 , 48 + 31 = 79", "22 + 26 = 47 , 48 + 31 = 79", ""]
    body = {"task": task["name"], "problem": problem["id"], "texts": texts}
    found = client.post("/playground/grade", json=body).json()["grades"]
    (given,) = (p for p in TASKS[task["name"]].task().problems().problems if p.id == problem["id"])
    expected = list(get("countdown").grade([(given, text) for text in texts]))
    assert [one["outcome"] for one in found] == [grade.outcome for grade in expected]
    assert found[0]["outcome"] == "passed"


def canvases_of(model, request: Request) -> list[list[int]]:
    """Return what the open positions of a row hold after each step."""
    rows, begin = [], len(request.prompt)
    callback = StepCallback(lambda view: rows.append(view.canvas[0, begin : begin + request.length].tolist()))
    list(run(model, [request], observer=callback))
    return rows


def test_a_stream_of_a_model_without_masks_holds_its_random_tokens(uniform):
    """At every step what was accepted and the noise make up the engine's canvas; no policy that edits is offered."""
    policy, length = "tct:t_pos=0.3", 12
    (request,) = prompt_requests(uniform, PROMPT, policy, 1, length, seed=3, chat=False)
    expected = [[uniform.decode([t], cut=False) for t in row] for row in canvases_of(uniform, request)]
    body = {
        "prompt": PROMPT,
        "max_tokens": length,
        "policy": policy,
        "seed": 3,
        "stream": True,
        "diffusing": True,
    }
    with client_of(uniform) as client:
        offered = client.get("/playground/about").json()["policies"]
        with client.stream("POST", "/v1/completions", json=body) as reply:
            parts = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    facts = [
        part["choices"][0]["twotemp"] for part in parts if "commits" in part["choices"][0].get("twotemp", {})
    ]
    shown = []
    for step in facts:
        written = {place: text for place, text, _ in step["commits"] if text is not None}
        noise = dict(step.get("noise", []))
        assert not written.keys() & noise.keys()
        shown.append([(written | noise)[place] for place in range(length)])
    assert shown == expected
    assert any(step.get("noise") for step in facts[:-1])
    assert "noise" not in facts[-1], "the last step leaves the text"
    assert "tct" in offered
    assert not {"llada2.1", "t2m"} & offered.keys()


def test_a_slow_grader_delays_no_other_request(model, monkeypatch):
    """More of them than a server has threads; one grader, made once, sees them one after the other."""
    go, made = threading.Event(), []

    class Slow(CountdownGrader):
        def __init__(self, workers):
            made.append(workers)

        def grade(self, items):
            assert go.wait(60)
            return super().grade(items)

    monkeypatch.setattr(graders, "get", lambda kind, workers: Slow(workers))
    with client_of(model) as client:
        task = client.get("/playground/about").json()["tasks"][0]
        body = {"task": task["name"], "problem": task["problems"][0]["id"], "texts": ["1"]}
        found = []
        asking = [
            threading.Thread(target=lambda: found.append(client.post("/playground/grade", json=body)))
            for _ in range(40)
        ]
        for thread in asking:
            thread.start()
        try:
            time.sleep(0.5)  # all of them are there
            large, answered = {"prompt": "1 " * 10_000, "max_tokens": 4}, threading.Event()
            other = threading.Thread(
                target=lambda: (client.post("/v1/completions", json=large), answered.set())
            )
            asking.append(other)
            other.start()
            assert answered.wait(10)
        finally:
            go.set()
        for thread in asking:
            thread.join(60)
    assert [answer.status_code for answer in found] == [200] * 40
    assert made == [1]


def test_worked_answers_are_graded_too(client):
    pytest.importorskip("math_verify", reason="needs the extra `eval`")
    about = client.get("/playground/about").json()
    task = next(one for one in about["tasks"] if one["name"] == "words-2")
    body = {"task": "words-2", "problem": task["problems"][0]["id"], "texts": ["no idea"]}
    (grade,) = client.post("/playground/grade", json=body).json()["grades"]
    assert grade["outcome"] == "failed"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"task": ["countdown-3"]},
        {"task": "programs-1", "problem": "programs-1/test/0", "texts": ["import os"]},
        {"task": "countdown-3", "problem": "countdown-3/test/8"},
        {"task": "countdown-3", "problem": "no", "texts": []},
        {"task": "countdown-3", "problem": "countdown-3/test/8", "texts": ["a"] * 2000},
        {"task": "countdown-3", "problem": "countdown-3/test/8", "texts": [1]},
    ],
)
def test_the_playground_refuses_to_grade_programs_and_bad_bodies(client, body):
    assert client.post("/playground/grade", json=body).status_code == 400


# --- in a browser


@pytest.fixture(scope="module")
def address(model):
    with listening(Server(model, slots=16)) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def tab(browser, address):
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    asked, errors = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text))
    yield opened
    # A browser notes every answer that is not 2xx.
    assert [text for text in errors if "status of 400" not in text] == []
    assert all(url.startswith(address) for url in asked)
    opened.close()


STATE = "#prompt=22+26+31+-%3E+79&problem=countdown-3/test/0&t=0.8&n=12&length=12&seed=3&a=lc&b=tct:t_pos=0.3"


def until(condition) -> None:
    """Poll from here: the page's own policy forbids the `eval` that playwright would wait with."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def settled(tab) -> None:
    until(lambda: tab.locator("body").get_attribute("data-state") == "done")


def seen(tab) -> list[str]:
    return tab.locator("main ol button, main .facts, main .canvas, main .tree, #curve").all_inner_texts()


def test_the_same_address_gives_the_same_page_and_counts_add_up(tab, address, model):
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    first = seen(tab)
    for number, policy in enumerate(("lc", "tct:t_pos=0.3")):
        panel = tab.locator("main > section").nth(number)
        counts = [int(text) for text in panel.locator("ol .count").all_inner_texts()]
        expected = twotemp.sample(model, "22 26 31 -> 79", policy, n=12, length=12, seed=3)
        (answers,) = expected.answers().values()
        assert sum(counts) == 12
        assert sorted(counts, reverse=True) == counts == [count for _, count in answers.most_common()]
        # The tree holds every sample once: its first ways and what it only counts, too.
        ways = panel.locator(".tree > ul > li > button small").all_inner_texts()
        rest = panel.locator(".tree > ul > li.more").all_inner_texts()
        assert sum(map(int, ways)) + sum(int(text.split()[2]) for text in rest) == 12
        verdicts = panel.locator("ol .hidden").all_inner_texts()
        assert set(verdicts) <= {"right", "wrong"}
    assert tab.locator("#curve svg path").count() == 2
    tab.reload()
    settled(tab)
    assert seen(tab) == first


def test_controls_have_names_and_keys_work(tab, address):
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    for control in tab.locator("input:visible, select:visible, button:visible, [tabindex]:visible").all():
        named = control.evaluate(
            "e => e.ariaLabel || e.innerText || [...(e.labels || [])].map((l) => l.innerText).join('')"
        )
        assert named.strip(), control.evaluate("e => e.outerHTML.slice(0, 200)")
    box = tab.locator(".map").first
    box.focus()
    tab.keyboard.press("ArrowDown")
    assert box.get_attribute("aria-valuenow") == "1"
    tab.get_by_label("Step of the sample").first.focus()
    tab.keyboard.press("Home")
    assert tab.locator("main > section").first.locator(".tok.on").count() == 0
    tab.keyboard.press("ArrowRight")
    assert tab.locator("main > section").first.locator(".tok.on").count() == 1


def test_the_slider_reaches_infinity_and_the_address_follows(tab, address):
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    slider = tab.locator(".heat input[type=range]")
    slider.focus()
    tab.keyboard.press("End")
    until(lambda: "t_pos%3Dinf" in tab.url)
    settled(tab)
    assert slider.get_attribute("aria-valuetext") == "T pos ∞"
    slider.focus()
    tab.keyboard.press("Home")
    until(lambda: "t_pos%3D0&" in tab.url + "&")
    settled(tab)


def test_a_branch_of_the_tree_leads_to_its_samples(tab, address):
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    panel = tab.locator("main > section").nth(1)
    way = panel.locator(".tree > ul > li > button").last
    way.click()
    words = way.locator(".words").inner_text()
    chosen = panel.locator('ol button[aria-current="true"] > span').last.inner_text()
    assert chosen.startswith(words)


@pytest.mark.parametrize("name", ["llada2.1", "t2m"])
def test_a_replay_shows_what_was_rewritten(tab, address, model, name):
    spec = f"{name}:edit_threshold=0.6"
    drawn = (
        twotemp.sample(model, "22 26 31 -> 79", spec + ",t_token=0.8", length=12, seed=seed, trace=True)[0]
        for seed in range(200)
    )
    one = next(sample for sample in drawn if sample.trace.edits)
    state = STATE.replace("a=lc", f"a={spec}").replace("n=12", "n=1").replace("seed=3", f"seed={one.seed}")
    tab.goto(f"{address}/{state}")
    settled(tab)
    panel = tab.locator("main > section").first
    tab.get_by_label("Step of the sample").first.focus()
    tab.keyboard.press("Home")
    for row, _ in states(one, model.mask_id):
        expected = [
            model.decode([row[p]], cut=False).strip() or "▪" for p in one.positions if row[p] != model.mask_id
        ]
        assert panel.locator(".tok.on").all_inner_texts() == expected
        tab.keyboard.press("ArrowRight")
    assert "rewritten, mean" in panel.locator(".facts").inner_text()


def test_a_canvas_shows_its_random_tokens_as_noise(browser, uniform):
    """At every step of the replay; the end of text is a square, and a token that stays is written once."""
    policy = "tct:t_pos=0.3,t_token=0.8"
    (request,) = prompt_requests(uniform, "22 26 31 -> 79", policy, 1, 12, seed=3)
    rows = canvases_of(uniform, request)
    with listening(Server(uniform, slots=4)) as (_, port):
        opened = browser.new_page(viewport={"width": 1300, "height": 900})
        errors = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto(f"http://127.0.0.1:{port}/{STATE.replace('n=12', 'n=1').replace('a=lc', 'a=eb')}")
        settled(opened)
        panel = opened.locator("main > section").nth(1)
        slider = opened.get_by_label("Step of the sample").nth(1)
        slider.focus()
        opened.keyboard.press("Home")
        assert panel.locator(".tok.noise, .tok.on").count() == 0, "the first noise is in no step"
        noisy = 0
        for row in rows:
            opened.keyboard.press("ArrowRight")
            expected = [uniform.decode([token], cut=False).strip() or "▪" for token in row]
            assert panel.locator(".tok").all_inner_texts() == expected
            assert panel.locator(".tok.noise, .tok.on").count() == len(row)
            assert panel.locator(".tok.noise.on").count() == 0
            noisy += panel.locator(".tok.noise").count()
        assert noisy > 0
        assert panel.locator(".tok.noise").count() == 0, "the last step leaves the text"
        assert errors == []
        opened.close()


def test_a_link_pasted_into_the_same_tab_is_followed(tab, address):
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    tab.evaluate(f"location.hash = {STATE.replace('n=12', 'n=5').replace('a=lc', 'a=ar')!r}")
    until(lambda: tab.locator("main ol").first.locator(".count").count() > 0 and "n=5" in tab.url)
    settled(tab)
    panels = tab.locator("main > section")
    assert panels.count() == 2
    assert sum(map(int, panels.first.locator("ol .count").all_inner_texts())) == 5
    assert panels.first.locator("select").input_value() == "ar"


def test_copied_python_and_curl_commands_run(tab, address, model):
    """As Python: the samples on the page. As curl: bodies that the server takes."""
    import httpx

    tab.goto(f"{address}/{STATE}")
    settled(tab)
    tab.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    copied = {}
    for name in ("python", "curl"):
        tab.locator(f"#{name}").click()
        until(lambda: name in tab.locator("#copied").inner_text().lower())  # noqa: B023
        copied[name] = tab.evaluate("window.copied")
    printed = []
    exec(copied["python"], {"print": printed.append})
    shown = [
        sorted(panel.locator("ol button > span:last-child").all_inner_texts())
        for panel in tab.locator("main > section").all()
    ]
    assert [sorted({one.text for one in samples}) for samples in printed] == shown
    for line in copied["curl"].splitlines():
        body = json.loads(line.split(" -d ", 1)[1].strip("'"))
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
        assert len(answer.json()["choices"]) == 12


@pytest.mark.parametrize("width", [360, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(tab, address, width, scheme):
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (page == "rgb(16, 17, 20)") == (scheme == "dark")


def test_an_error_is_shown(tab, address):
    tab.goto(f"{address}/{STATE.replace('length=12', 'length=500')}")
    until(lambda: tab.locator("#error").is_visible())
    assert "exceed the context of 128" in tab.locator("#error").inner_text()


def test_a_link_from_another_site_draws_only_after_a_click(browser, address):
    opened = browser.new_page()
    posted = []
    opened.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    link = f'<a href="{address}/{STATE}">look</a>'
    opened.route("http://other.example/", lambda route: route.fulfill(body=link, content_type="text/html"))
    opened.goto("http://other.example/")
    opened.click("a")
    until(lambda: "another site" in opened.locator("#status").inner_text())
    opened.evaluate(f"location.hash = {STATE.replace('n=12', 'n=5')!r}")
    until(lambda: opened.locator("#n").input_value() == "5")
    assert posted == []
    opened.click("#run")
    settled(opened)
    assert posted
    assert sum(map(int, opened.locator("main ol").first.locator(".count").all_inner_texts())) == 5
    opened.close()


def test_results_stay_when_the_server_is_gone(browser, model, tmp_path):
    with listening(Server(model, slots=16)) as (_, port):
        opened = browser.new_page(viewport={"width": 1300, "height": 900})
        opened.goto(f"http://127.0.0.1:{port}/{STATE}")
        settled(opened)
        drawn = seen(opened)
    opened.click("#run")
    until(lambda: opened.locator("#error").is_visible())
    settled(opened)
    message = opened.locator("#error").inner_text()
    assert f"127.0.0.1:{port} does not answer" in message
    assert "Failed" not in message
    assert seen(opened) == drawn
    assert sum(map(int, opened.locator("main ol").first.locator(".count").all_inner_texts())) == 12
    opened.screenshot(path=tmp_path / "gone.png")
    opened.close()


def test_a_page_that_is_closed_leaves_no_lines_in_the_log(model, caplog):
    """Many rows write at once; none of it may go to a connection that is lost."""
    server = Server(model, slots=64)
    ask = {"prompt": "1 2", "n": 200, "max_tokens": 60, "policy": "ar", "stream": True, "diffusing": True}
    body = json.dumps(ask)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with listening(server) as (_, port):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                assert connection.recv(1000)
            wait_for(lambda: server.service.load == 0)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_box_takes_an_exact_temperature_and_a_prompt_may_have_lines(tab, address):
    tab.goto(f"{address}/{STATE}")
    settled(tab)
    tab.get_by_label("Tpos", exact=True).fill("0.37")
    tab.keyboard.press("Tab")
    until(lambda: "t_pos%3D0.37" in tab.url)
    settled(tab)
    tab.locator("#prompt").fill("22 26")
    tab.locator("#prompt").press("Shift+Enter")
    tab.keyboard.type("31 -> 79")
    tab.keyboard.press("Enter")
    until(lambda: "22+26%0A31" in tab.url)
    settled(tab)
    assert not tab.locator("#error").is_visible()
