"""Extract the final answer or the program from a text by text rules; the rule that applied is recorded.

Nothing is compared or parsed. The rules fit what masked diffusion models write: boxes copied from the prompt as
placeholders, boxes that are not closed because the canvas ended, lost backslashes. Every scan is linear, since the
text may be anything.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

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


# A fence may be in a list, be longer than three, consist of tildes, and have attributes after the language.
_OPENING = re.compile(r"(?:^([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)|)(`{3,}|(?<![^\s])~{3,})(?!`)([^\n]*)", re.M)
_LANGUAGE = re.compile(
    r"[ \t]*([\w+#.-]*)[ \t]*((?:\{[^\n}]*\}|[\w-]+=(?:\"[^\"\n]*\"|'[^'\n]*'|\S*)|[ \t])*)\r?"
)
_PYTHON = ("", "py", "python", "python3")
_STARTS = re.compile(r"[ \t]*(?:@|async[ \t]|def[ \t]|class[ \t]|import[ \t]|from[ \t]|\w+[ \t]*=)")
_DEFINITION = re.compile(r"(?:@|async[ \t]|def[ \t]|class[ \t]|import[ \t]|from[ \t])")
_STRING = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|#.*")
_TWO_NAMES = re.compile(r"\b([^\W\d]\w*)[ \t]+(?=([^\W\d]\w*))")
_MOST_BLOCKS = 100  # thousands of fences on one line would take quadratic time
_KEYWORDS = {*keyword.kwlist, *keyword.softkwlist, "print"}


class _Block(NamedTuple):
    code: str
    language: str
    closed: bool


def find_code(text: str, names: Sequence[str], body: bool = False) -> tuple[str, str]:
    """Return the code in a text, and the rule that found it:

    `entry`       the first fenced block that defines one of `names`, after the imports and helpers before it
    `fence`       the first fenced block that may be Python
    `open fence`  a fence that was never closed
    `prose`       no fence: the lines between sentences, up to those that define one of `names`
    `raw`         the whole text
    `body`        `raw` or `fence` without a definition, indented, if the body of a function is acceptable (`body`)
    """
    text = until_end(text)
    defines = re.compile(
        rf"^([ \t]*)(?:(?:async[ \t]+)?def|class)[ \t]+(?:{'|'.join(map(re.escape, names))})\b", re.M
    )
    blocks = list(islice(_blocks(text), _MOST_BLOCKS))
    helpers: list[str] = []
    for block in blocks:
        if defines.search(block.code):
            return "\n\n".join((*helpers, _dedented(block.code))), "entry"
        if _only_definitions(block.code):
            helpers.append(block.code)
    if blocks:
        block = next((b for b in blocks if b.language.lower() in _PYTHON), blocks[0])
        code, rule = block.code, "fence" if block.closed else "open fence"
    elif defines.search(text) and (between := _without_prose(text, defines)) is not None:
        return between, "prose"
    else:
        code, rule = text.lstrip("\r\n").rstrip(), "raw"
    if body and (indented := _as_body(code)) is not None:
        return indented, "body"
    return code, rule


def _blocks(text: str) -> Iterator[_Block]:
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        margin, fence, rest = opening.groups()
        inline = rest.find(fence)
        if inline >= 0:
            yield _Block(rest[:inline].strip(), "", True)
            position = opening.start(3) + inline + len(fence)
            continue
        info = _LANGUAGE.match(rest)
        assert info is not None
        # Code on the line of the fence belongs to the block; then the first word need not be a language.
        if info.end() == len(rest):
            first = ""
        else:
            first = rest[info.end(1) :] if info[1].lower() in _PYTHON[1:] else rest
        run = f"{fence[0]}{{{len(fence)},}}"
        closing = re.compile(rf"\n[ \t]*{run}|{run}[ \t]*\r?$", re.M).search(text, opening.end())
        end = closing.start() if closing else len(text)
        code = _without_margin(text[opening.end() + 1 : end], len(margin or ""))
        yield _Block(f"{first.strip()}\n{code}".strip("\r\n").rstrip(), info[1], closing is not None)
        if closing is None:
            return
        position = closing.end()


def _only_definitions(code: str) -> bool:
    lines = [line for line in code.splitlines() if line[:1] not in ("", " ", "\t", "#", ")")]
    return bool(lines) and all(map(_DEFINITION.match, lines))


def _without_margin(code: str, margin: int) -> str:
    """Remove the indentation of a list item."""
    return re.sub(rf"^[ \t]{{1,{margin}}}", "", code, flags=re.M) if margin else code


def _dedented(code: str) -> str:
    """Dedent a program that is indented as a whole; leave a body that precedes a definition."""
    first = next((line for line in code.splitlines() if line.strip()), "")
    return textwrap.dedent(code) if _STARTS.match(first) and first[0] in " \t" else code


def _without_prose(text: str, defines: re.Pattern[str]) -> str | None:
    """Return the lines between sentences, up to those that define a name; None if there is no sentence."""
    runs: list[list[str]] = [[]]
    sentences = False
    in_string = False
    for line in text.splitlines():
        if not in_string and _is_prose(line):
            sentences = True
            runs.append([])
            continue
        in_string ^= (line.count('"""') + line.count("'''")) % 2 == 1
        runs[-1].append(line)
    if not sentences:
        return None
    parts = []
    for run in runs:
        code = _dedented("\n".join(run).strip("\r\n").rstrip())
        if any(_STARTS.match(line) for line in run):
            parts.append(code)
        if defines.search(code):
            return "\n\n".join(parts)
    return None


def _is_prose(line: str) -> bool:
    """Return whether a line is prose: two adjacent names, a full stop after a word, or a single word with a colon."""
    if line[:1] in (" ", "\t", "#", "@", ""):
        return False
    line = _STRING.sub(" 0 ", line)
    pairs = _TWO_NAMES.findall(line)
    if any(not {*pair} & _KEYWORDS for pair in pairs) or re.search(r"[^\W\d][.!?][ \t\r]*$", line):
        return True
    word = re.fullmatch(r"[*_]*([A-Za-z]+)[*_]*:[*_]*[ \t\r]*", line)
    return word is not None and word[1] not in _KEYWORDS


def _as_body(code: str) -> str | None:
    """Return the code as an indented function body; None if it is not an unindented body."""
    lines = code.splitlines()
    full = [line for line in lines if line.strip()]
    if not full or full[0][0] in " \t":
        return None
    depths = [len(line) - len(line.lstrip()) for line in full[1:]]
    least = min(depths, default=0)
    # The first line alone may have lost its indentation, for instance when the text was stripped.
    if least and (depths[0] > least or not full[0].rstrip().endswith(":")):
        return " " * least + code.lstrip("\r\n")
    if not _returns_outside_a_function(full) and any(_DEFINITION.match(line) for line in full):
        return None
    return textwrap.indent(code, "    ")


def _returns_outside_a_function(lines: list[str]) -> bool:
    outermost = ""
    for line in lines:
        if line[0] not in " \t":
            outermost = line
        if re.match(r"[ \t]*(?:return|yield)\b", line) and not _DEFINITION.match(outermost):
            return True
    return False
