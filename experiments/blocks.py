"""Blocks of Markdown in the documents that are generated from stored results. A block looks like this:

<!-- generated: NAME -->
...
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)


def names(text: str) -> list[str]:
    """Return the names of the blocks in a document, in order."""
    return [match[2] for match in BLOCK.finditer(text)]


def rewritten(text: str, make: Callable[[str], str]) -> str:
    """Return the document with the text of every block replaced by `make(name)`."""
    return BLOCK.sub(lambda match: match[1] + make(match[2]).strip("\n") + "\n" + match[4], text)


# --- formatting -----------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int | None = None) -> str:
    """Return a Markdown table whose last `numbers` columns (by default all but the first) are right-aligned."""
    right = len(head) - 1 if numbers is None else numbers
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows))


def signed(value: float, digits: int = 1) -> str:
    """Format a number with its sign: `+0.5`, `−1.0`, and `0.0` if it rounds to zero."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def with_interval(difference: dict[str, float], digits: int = 1) -> str:
    """Format a difference with its interval: `+4.0 (−2.0 to +10.0)`."""
    mean, low, high = (signed(difference[end], digits) for end in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def listed(items: Sequence[str]) -> str:
    """Join items as in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def where(differences: Sequence[dict[str, float | str]]) -> str:
    """Say on which tasks the interval of a difference is above 0: "on all tasks", "on a, but not on b"."""
    ahead = [str(difference["task"]) for difference in differences if float(difference["low"]) > 0]
    others = [str(difference["task"]) for difference in differences if float(difference["low"]) <= 0]
    if not others:
        return "on all tasks"
    return f"on {listed(ahead)}, but not on {listed(others)}" if ahead else "on none of the tasks"
