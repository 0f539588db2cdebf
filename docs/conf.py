"""The site: `make docs`. Nothing on a page is loaded from elsewhere, and a warning is an error."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "tools"), str(HERE.parent / "src")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import mermaid  # noqa: E402
import reference  # noqa: E402

import twotemp  # noqa: E402

project = "twotemp"
author = copyright = "the twotemp authors"
version = release = twotemp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "generated"]
suppress_warnings = ["myst.strikethrough"]
nitpicky = False

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
default_role = "code"  # docstrings are written with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"twotemp {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False


class Mermaid(Directive):
    """A diagram, as the picture that `tools/mermaid.py` made of it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        path = mermaid.picture("\n".join(self.content))
        if not path.is_file():
            raise self.error(
                "this diagram was changed; draw it again: python docs/tools/mermaid.py MERMAID.MIN.JS"
            )
        return [
            nodes.container("", nodes.image(uri=f"/figures/{path.name}", alt="diagram"), classes=["diagram"])
        ]


def write_generated(app: object) -> None:
    folder = HERE / "generated"
    folder.mkdir(exist_ok=True)
    for name, page in reference.PAGES.items():
        (folder / f"{name}.md").write_text(page() + "\n")


def list_parameters(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Docstrings say what an argument means in a line `name: …`; a page shows these as a list."""
    known = set(inspect.signature(thing).parameters) if inspect.isfunction(thing) else set()
    shown: list[str] = []
    inside = False
    for line in lines:
        names, colon, text = line.partition(": ")
        if colon and set(names.split(", ")) <= known:
            shown += ([] if inside else [""]) + [f"* ``{names}``: {text}"]
            inside = True
        elif inside and line and not re.match(r"\s|[a-z_]+\(", line):
            shown.append("  " + line)
        else:
            shown += [""] * inside + [line]
            inside = False
    lines[:] = shown


def setup(app: object) -> None:
    app.add_directive("mermaid", Mermaid)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_generated)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", list_parameters)  # type: ignore[attr-defined]
