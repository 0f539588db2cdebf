"""Generated blocks of Markdown. A document says where one belongs; its text is made from stored results.

<!-- generated: NAME -->
...
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)


def names(text: str) -> list[str]:
    """Of the blocks in a document, in order."""
    return [match[2] for match in BLOCK.finditer(text)]


def rewritten(text: str, make: Callable[[str], str]) -> str:
    """The document with every block as `make(its name)` has it."""
    return BLOCK.sub(lambda match: match[1] + make(match[2]).strip("\n") + "\n" + match[4], text)


# --- how results are spelled ----------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int | None = None) -> str:
    """Markdown; the last `numbers` columns (all but the first, unless told) are set to the right."""
    right = len(head) - 1 if numbers is None else numbers
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows))


def signed(value: float, digits: int = 1) -> str:
    """`+0.5`, `−1.0`, and `0.0` for what rounds to zero."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else f"{0:.{digits}f}"


def spelled(difference: dict[str, float], digits: int = 1) -> str:
    """`+4.0 (−2.0 to +10.0)`."""
    mean, low, high = (signed(difference[end], digits) for end in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def where(differences: Sequence[dict[str, float | str]]) -> str:
    """Return on which tasks the interval of a difference is above 0: "on all tasks", "on a, but not on b"."""
    held = [str(pair["task"]) for pair in differences if float(pair["low"]) > 0]
    rest = [str(pair["task"]) for pair in differences if float(pair["low"]) <= 0]
    if not rest:
        return "on all tasks"
    return f"on {listed(held)}, but not on {listed(rest)}" if held else "on none of the tasks"
