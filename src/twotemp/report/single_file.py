"""Pages of one file: a template with the shared stylesheet and script inlined."""

from __future__ import annotations

from importlib.resources import files


def template(package: str, name: str) -> str:
    """Return the template `name` of a package with its placeholders for the shared style and script filled in."""
    page = (files(package) / name).read_text(encoding="utf-8")
    for shared in ("components.css", "components.js"):
        content = (files("twotemp.report") / shared).read_text(encoding="utf-8")
        page = page.replace(f"/*{shared}*/", content)
    return page
