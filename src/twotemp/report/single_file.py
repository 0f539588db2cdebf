"""Pages of one file: a template, with the palette and the components that all pages share put inside it."""

from __future__ import annotations

from importlib.resources import files


def template(package: str, name: str) -> str:
    """The template `name` of a package; it says where the shared style and script go."""
    page = (files(package) / name).read_text(encoding="utf-8")
    for shared in ("components.css", "components.js"):
        inside = (files("twotemp.report") / shared).read_text(encoding="utf-8")
        page = page.replace(f"/*{shared}*/", inside)
    return page
