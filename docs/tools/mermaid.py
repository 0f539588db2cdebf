"""Draw the Mermaid diagrams of the docs: `python docs/tools/mermaid.py MERMAID.MIN.JS`.

The source of a diagram is in the Markdown, where GitHub draws it. The site shows an SVG file in docs/figures that is
named by a hash of the source: Mermaid in the browser would add 3.5 MB of script to a page or a request to another
server, and Mermaid in the build would need Node and a browser. A diagram that was changed without being drawn again
fails the build and tests/report/test_site.py.

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
    """Return the path of a diagram's SVG file."""
    digest = hashlib.sha256(source.strip().encode()).hexdigest()[:12]
    return FIGURES / f"mermaid-{digest}.svg"


def diagrams() -> list[str]:
    """Return the sources of all diagrams in the docs."""
    return [
        source
        for page in sorted(DOCS.rglob("*.md"))
        for source in re.findall(r"^```mermaid\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    ]


def main(script: str) -> None:
    """Draw all diagrams with this Mermaid script, and delete old drawings."""
    from playwright.sync_api import sync_playwright

    wanted = {picture(source): source for source in diagrams()}
    for old in set(FIGURES.glob("mermaid-*.svg")) - set(wanted):
        old.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<html><body></body></html>")
        page.add_script_tag(path=script)
        page.evaluate(
            "mermaid.initialize({startOnLoad: false, theme: 'neutral', deterministicIds: true, htmlLabels: false,"
            " flowchart: {htmlLabels: false, useMaxWidth: false}, fontFamily: 'sans-serif',"
            " sequence: {width: 120, actorMargin: 35, wrap: true, useMaxWidth: false, messageFontSize: 15}})"
        )
        for path, source in wanted.items():
            svg = page.evaluate(f"async s => (await mermaid.render('{path.stem}', s)).svg", source)
            path.write_text(svg + "\n")
            print(path)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
