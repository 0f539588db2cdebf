"""Compose HTML pages of the files in `pages/`: each page is one file that loads nothing from elsewhere.

Data enter a page as JSON or as compressed JSON (`chunk`) in script elements that are never executed. The content
security policy allows exactly the page's own style and script, by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from twotemp.serialization import json_text

_INCLUDE = re.compile(r"/\*include (\S+)\*/\n?")
_POLICY = "<!--policy-->"  # where a page that is opened as a file has its policy


def read(name: str) -> str:
    """Return a file of the folder `pages`, with the files that it includes in place."""
    text = (files("twotemp.report") / "pages" / name).read_text("utf-8")
    return _INCLUDE.sub(lambda match: read(match[1]), text)


def compose(name: str, data: Any = None, chunks: Sequence[str] = (), **parts: str) -> str:
    """Return a page.

    Args:
        name: The template's file name.
        data: What the template's JSON block holds.
        chunks: What `chunk` returned; the page's script finds them by number.
        **parts: Files that replace the template's placeholders `/*NAME*/`.
    """
    page = (files("twotemp.report") / "pages" / name).read_text("utf-8")
    for placeholder, file in parts.items():
        page = page.replace(f"/*{placeholder}*/", f"/*include {file}*/")
    page = _INCLUDE.sub(lambda match: read(match[1]), page)
    page = page.replace(
        _POLICY, f'<meta http-equiv="Content-Security-Policy" content="{content_security_policy(page)}">'
    )
    page = page.replace("/*data*/", inside_script(data))
    elements = (
        f'<script type="application/gzip" data-chunk="{number}">{text}</script>\n'
        for number, text in enumerate(chunks)
    )
    return page.replace("<!--chunks-->", "".join(elements))


def content_security_policy(page: str, *more: str) -> str:
    """Return a policy that allows the page's own style and script, and `more`."""
    allowed = [f"{kind}-src {_hash(page, kind)}" for kind in ("style", "script")]
    return "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'", *more])


def inside_script(data: Any) -> str:
    """Return JSON that cannot close its script element, whatever its strings are."""
    text = json_text(data, compact=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def chunk(data: Any) -> str:
    """Return JSON data compressed and in base64, as `chunks.js` reads it."""
    packed = gzip.compress(json_text(data, compact=True).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode()


def _hash(page: str, kind: str) -> str:
    (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
