"""Mermaid diagrams as pictures: `python docs/tools/mermaid.py MERMAID.MIN.JS`.

The source of a diagram stays in the Markdown, where GitHub draws it. The site shows a drawing that is kept in
docs/figures under a hash of that source: Mermaid in the browser would be 3.5 MB of script on a page, or a request to
another server, and Mermaid in the build would need Node and a browser wherever somebody builds the site. A diagram
that was changed without being drawn again fails the build and tests/test_site.py.

Drawing needs `npm pack mermaid` (its dist/mermaid.min.js), playwright and chromium.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
FIGURES = DOCS / "figures"


def picture(source: str) -> Path:
    """Where the drawing of a diagram is kept."""
    digest = hashlib.sha256(source.strip().encode()).hexdigest()[:12]
    return FIGURES / f"mermaid-{digest}.svg"


def diagrams() -> list[str]:
    """The sources of all diagrams in the docs."""
    return [
        source
        for page in sorted(DOCS.rglob("*.md"))
        for source in re.findall(r"^```mermaid\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    ]


def main(script: str) -> None:
    from playwright.sync_api import sync_playwright

    wanted = {picture(source): source for source in diagrams()}
    for old in set(FIGURES.glob("mermaid-*.svg")) - set(wanted):
        old.unlink()
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<html><body></body></html>")
        page.add_script_tag(path=script)
        page.evaluate(
            "mermaid.initialize({startOnLoad: false, theme: 'neutral', deterministicIds: true, htmlLabels: false,"
            " flowchart: {htmlLabels: false, useMaxWidth: false}, fontFamily: 'sans-serif',"
            " sequence: {width: 120, actorMargin: 35, wrap: true, useMaxWidth: false, messageFontSize: 15}})"
        )
        for path, source in wanted.items():
            drawn = page.evaluate(f"async s => (await mermaid.render('{path.stem}', s)).svg", source)
            path.write_text(drawn + "\n")
            print(path)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
