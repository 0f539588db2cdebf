"""Extract the final answer from a text by text rules, without comparing it; the rule that applied is recorded.

The rules fit what masked diffusion models write: boxes copied from the prompt as placeholders, boxes that are not
closed because the canvas ended, lost backslashes. Every scan is linear, since the text may be anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ExtractionRule = Literal["boxed", "repaired", "tagged", "none"]

# A decoded text still contains them. Cutting here, rather than skipping special tokens, prevents grading what a
# diffusion model wrote *after* its end of text.
_END_OF_TEXT = re.compile(r"<\|(?:eot_id|endoftext|im_end)\|>")

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BROKEN_BOX = re.compile(r"\\?\.?\bboxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text, not structure
_LINE = re.compile(r"\s*([^\n<]*(?:<(?!/)[^\n<]*)*)")
_PLACEHOLDER = re.compile(r"(?:[\s.$]|\\[lc]?dots|\\text\{\s*\}|…)*")
_ANY_BOX = re.compile(r"\\?(?:boxed|fbox)\s*(?:\{[^{}\n]*\}?)?")
_REPAIR_LIMIT = 400  # characters scanned after a broken box; many on one line would take quadratic time
_TAGGED_LIMIT = 60  # characters; longer contents of <answer> are prose


@dataclass(frozen=True)
class Extracted:
    """An answer and the rule that found it."""

    answer: str | None
    rule: ExtractionRule


def until_end(text: str) -> str:
    """Return the text up to the first end-of-text marker (rule 1)."""
    return _END_OF_TEXT.split(text, maxsplit=1)[0]


def final_answer(text: str) -> Extracted:
    """Return the answer by rules 1 to 5; the first match wins:

    1. cut at the end of text;
    2. `boxed`: the last brace-balanced box that is not a placeholder, or
    3. `repaired`: the last broken box (unclosed, or its backslash lost),
       both first in the last <answer>, then in the whole text;
    4. `tagged`: a short single line in <answer>;
    5. `none`: no answer, which is wrong. "The last number in the text" would reward luck.
    """
    text = until_end(text)
    tagged = _last_tagged(text)
    regions = [text] if tagged is None else [tagged, text]
    for region in regions:
        if (answer := _last_box(region)) is not None:
            return Extracted(answer, "boxed")
        if (answer := _last_broken_box(region)) is not None:
            return Extracted(answer, "repaired")
    if tagged is not None and (answer := _short_line(tagged)) is not None:
        return Extracted(answer, "tagged")
    return Extracted(None, "none")


def _last_tagged(text: str) -> str | None:
    _, tag, inside = text.rpartition("<answer>")
    return inside.partition("</answer")[0] if tag else None


def _last_box(text: str) -> str | None:
    closing = _matching_braces(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = closing.get(box.end() - 1)
        if end is None or "</" in (content := text[box.end() : end]):  # closed only by a broken </answer}
            continue
        if not _placeholder(content):
            return content.strip()
    return None


def _matching_braces(text: str) -> dict[int, int]:
    """Return opening -> closing position of each brace; unclosed ones are absent."""
    closing: dict[int, int] = {}
    open_at: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_at.append(match.start())
        elif match[0] == "}" and open_at:
            closing[open_at.pop()] = match.start()
    return closing


def _last_broken_box(text: str) -> str | None:
    for box in reversed(list(_BROKEN_BOX.finditer(text))):
        line = _LINE.match(text, box.end(), box.end() + _REPAIR_LIMIT)
        content = _balanced(line[1]).strip().rstrip(">$").rstrip() if line else ""
        if not _placeholder(content):
            return content
    return None


def _balanced(line: str) -> str:
    """Return the line up to the first unmatched closing brace, with missing closing braces added."""
    depth = 0
    for match in _BRACE.finditer(line):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth < 0:
            return line[: match.start()]
    return line.rstrip(">$ ") + "}" * depth


def _placeholder(content: str) -> bool:
    return _PLACEHOLDER.fullmatch(content) is not None


def _short_line(inside: str) -> str | None:
    content = _ANY_BOX.sub("", inside).strip().strip("$").strip()
    if not content or len(content) > _TAGGED_LIMIT or "\n" in content or _placeholder(content):
        return None
    return content
