"""Compose HTML pages from the files in `pages/`. Each page is one file that loads nothing from elsewhere.

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
_POLICY = "<!--policy-->"  # the place of the policy in a page that is opened as a file


def read(file: str, **parts: str) -> str:
    """Return a file of the folder `pages`, with its placeholders `/*NAME*/` replaced and its includes in place."""
    text = (files("twotemp.report") / "pages" / file).read_text("utf-8")
    for placeholder, part in parts.items():
        text = text.replace(f"/*{placeholder}*/", part)
    return _INCLUDE.sub(lambda match: read(match[1], **parts), text)


def compose(
    name: str,
    data: Any = None,
    chunks: Sequence[str] = (),
    *,
    rules: Sequence[str] = (),
    script: str = "",
    **parts: str,
) -> str:
    """Return a page.

    Args:
        name: `playground`, `trace` or `viewer`: which HTML and CSS files fill the frame, `page.html`.
        data: What the page's JSON block holds.
        chunks: What `chunk` returned; the page's script finds them by number.
        rules: What the page's policy allows beyond its style and script.
        script: A further source that the policy allows to run.
        **parts: Files that replace placeholders `/*NAME*/`.
    """
    included = {placeholder: f"/*include {file}*/" for placeholder, file in parts.items()}
    page = read("page.html", name=name, **included)
    policy = content_security_policy(page, *rules, script=script)
    page = page.replace(_POLICY, f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    page = page.replace("/*data*/", inside_script(data))
    elements = (
        f'<script type="application/gzip" data-chunk="{number}">{text}</script>\n'
        for number, text in enumerate(chunks)
    )
    return page.replace("<!--chunks-->", "".join(elements))


def content_security_policy(page: str, *more: str, script: str = "") -> str:
    """Return a policy that allows the page's own style and script, `script` and the rules in `more`."""
    allowed = [f"style-src {_hash(page, 'style')}", f"script-src {_hash(page, 'script')} {script}".rstrip()]
    return "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'", *more])


def inside_script(data: Any) -> str:
    """Return JSON that cannot close its script element, whatever its strings are."""
    text = json_text(data, compact=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def chunk(data: Any) -> str:
    """Return JSON data compressed and in base64, as `dom.js` reads it."""
    packed = gzip.compress(json_text(data, compact=True).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode()


def _hash(page: str, kind: str) -> str:
    (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
