"""Configure Sphinx (`make docs`). Pages load nothing from other servers, and a warning is an error."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "tools"), str(HERE.parent / "src")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import browser_playground  # noqa: E402
import mermaid  # noqa: E402
import reference  # noqa: E402
from formulas import split_indices  # noqa: E402

import twotemp  # noqa: E402

project = "twotemp"
author = copyright = "the twotemp authors"
version = release = twotemp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "generated"]
suppress_warnings = ["myst.strikethrough"]
nitpicky = False

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid", "math"]
default_role = "code"  # docstrings are written with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"twotemp {version}"
html_static_path = ["static"]
SITE = HERE / "generated" / "site"  # copied into the root of the site
SITE.mkdir(parents=True, exist_ok=True)
html_extra_path = ["generated/site"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False


class Mermaid(Directive):
    """A Mermaid diagram, shown as the SVG file that `tools/mermaid.py` drew."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the node of the picture."""
        path = mermaid.picture("\n".join(self.content))
        if not path.is_file():
            raise self.error(
                "this diagram has changed; draw it again with `python docs/tools/mermaid.py MERMAID.MIN.JS`"
            )
        return [
            nodes.container("", nodes.image(uri=f"/figures/{path.name}", alt="diagram"), classes=["diagram"])
        ]


def visit_inline_math(translator: Any, node: nodes.math) -> None:
    """Write a formula in a line as MathML, which browsers draw without a script or a font from elsewhere."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Write a displayed formula as MathML; on a narrow screen its box scrolls."""
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def render_indices(app: Any, doctree: nodes.document) -> None:
    """Replace T_pos and the like in paragraphs and tables by nodes with a subscript; code is left alone."""
    for text in list(doctree.findall(nodes.Text)):
        parent = text.parent
        if isinstance(parent, (nodes.paragraph, nodes.emphasis, nodes.strong)):
            parent.replace(text, _with_indices(text.astext()))


def _with_indices(text: str) -> list[nodes.Node]:
    """Return the nodes of a text; an index may have indices itself, as in e^{b_l − z}."""
    makers = {"sub": nodes.subscript, "sup": nodes.superscript}
    return [
        nodes.Text(piece) if kind == "text" else makers[kind]("", "", *_with_indices(piece))
        for kind, piece in split_indices(text)
    ]


def write_generated(app: Any) -> None:
    """Write the pages of `tools/reference.py` and the playground into docs/generated."""
    folder = HERE / "generated"
    folder.mkdir(exist_ok=True)
    for name, page in reference.PAGES.items():
        (folder / f"{name}.md").write_text(page() + "\n")
    (SITE / "playground.html").write_text(browser_playground.page(), "utf-8")


def list_parameters(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Turn docstring lines of the form `name: …`, which describe arguments, into a list."""
    known = set(inspect.signature(thing).parameters) if inspect.isfunction(thing) else set()
    rewritten: list[str] = []
    inside = False
    for line in lines:
        names, colon, text = line.partition(": ")
        if colon and set(names.split(", ")) <= known:
            rewritten += ([] if inside else [""]) + [f"* ``{names}``: {text}"]
            inside = True
        elif inside and line and not re.match(r"\s|[a-z_]+\(", line):
            rewritten.append("  " + line)
        else:
            rewritten += [""] * inside + [line]
            inside = False
    lines[:] = rewritten


def setup(app: Any) -> None:
    """Register the directive and the event handlers with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_math_block, None))
    app.add_directive("mermaid", Mermaid)
    app.connect("builder-inited", write_generated)
    app.connect("doctree-read", render_indices)
    app.connect("autodoc-process-docstring", list_parameters)
