"""Take the docs' screenshots of the pages: `python -m docs.tools.pages` (needs Chromium)."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from typer.testing import CliRunner

import twotemp
from tests.helpers.serving_clients import listening
from twotemp.cli import app
from twotemp.graders import get
from twotemp.report.trace_page import page
from twotemp.serving import Server
from twotemp.tasks import SOURCES

DOCS = Path(__file__).resolve().parents[1]
SCREENSHOTS = {  # name -> width, color scheme
    "playground": (1300, "light"),
    "playground-dark": (1300, "dark"),
    "playground-phone": (390, "light"),
    "trace": (1300, "light"),
    "viewer": (1300, "light"),
    "viewer-question": (1300, "light"),
}
EVALUATION = "eval --task countdown-3 --policies ar,lc,tlc,ct,tct -n 32 --questions 40 --trace"
ADDRESSES = {  # parts of the viewer
    "viewer": "#questions?sort=difference",
    "viewer-question": "#questions?question=countdown-3/test/0&task=countdown-3",
}


def viewer_page(folder: Path) -> Path:
    """Evaluate five policies and return the viewer's file."""
    run, out = folder / "countdown", folder / "viewer.html"
    for words in (*EVALUATION.split(), "--out", str(run)), ("view", str(run), "--out", str(out)):
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
    return out


def trace_page(model: twotemp.LanguageModel) -> str:
    """Return a trace page of two policies on the playground's first problem, graded."""
    problem = SOURCES["countdown-3"].task().problems().problems[0]
    samples = [
        sample
        for policy in ("lc", "tlc:t_pos=1")
        for sample in twotemp.sample(model, problem.prompt, policy, n=24, length=12, trace=True)
    ]
    grades = list(get("countdown").grade([(problem, sample.text) for sample in samples]))
    return page(samples, model.tokenizer, each=2, grades=grades)


def wait_until_done(tab: Page, state: str = "done") -> None:
    """Wait until the page has shown everything."""
    while tab.locator("body").get_attribute("data-state") != state:
        time.sleep(0.1)


def main() -> None:
    """Take all screenshots."""
    model = twotemp.load("tiny")
    with (
        tempfile.TemporaryDirectory() as folder,
        listening(Server(model, slots=96)) as (_, port),
        sync_playwright() as playwright,
    ):
        viewer = viewer_page(Path(folder))
        file = Path(folder) / "trace.html"
        file.write_text(trace_page(model), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, scheme) in SCREENSHOTS.items():
            tab = browser.new_page(viewport={"width": width, "height": 970}, color_scheme=scheme)
            tab.on("console", lambda message: print(message.text))
            tab.on("pageerror", lambda error: print(error))
            if name in ADDRESSES:
                tab.goto(viewer.as_uri() + ADDRESSES[name])
                wait_until_done(tab, "drawn")
            elif name == "trace":
                tab.goto(file.as_uri())
                tab.locator("#step").fill("8")
            else:
                tab.goto(f"http://127.0.0.1:{port}/")
                wait_until_done(tab)
            tab.evaluate("document.activeElement.blur()")
            # How long it took says something of this machine only.
            tab.evaluate("document.querySelector('#status')?.replaceChildren()")
            tab.screenshot(path=DOCS / f"{name}.png", full_page=name not in ("trace", "viewer"))
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
