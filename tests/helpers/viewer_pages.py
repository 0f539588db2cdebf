"""Pages of the viewer: the data in their source, and a tab of a browser that shows one."""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
from typing import Any


def index_of(html: str) -> dict[str, Any]:
    """Return what a page of the viewer knows before a question is opened."""
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(data)


def chunks_of(html: str) -> list[dict[str, Any]]:
    """Return what a page of the viewer knows of each question."""
    packed = re.findall(r'<script type="application/gzip" data-chunk="\d+">(.*?)</script>', html)
    return [json.loads(gzip.decompress(base64.b64decode(chunk))) for chunk in packed]


class Tab:
    """A page, and what it asked for and complained about."""

    def __init__(self, browser, address: str, width: int = 1300, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.address = address.partition("#")[0]
        self.page.goto(address)
        self.until(lambda: self.page.locator("body").get_attribute("data-state") == "drawn")

    def until(self, reached) -> None:
        """Poll from here: the page's own policy forbids the `eval` that playwright would wait with."""
        for _ in range(400):
            if reached():
                return
            time.sleep(0.05)
        raise AssertionError("waited in vain")

    def close(self) -> None:
        assert self.errors == []
        assert all(url.startswith(self.address) for url in self.asked)
        assert self.page.evaluate("window.hacked") is None
        self.page.close()
