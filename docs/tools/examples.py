"""Find and run the blocks of code in the documentation, for the tutorials and the tests.

A block of shell or Python is run unless a comment before it says why not: `<!-- not run: needs a GPU -->`. A block
without a language is shell; formulas, listings and output are `text`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("shell", "bash", "sh", "")

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]*?) -->\n+)?"
    r"(?:^(?P<margin> *)```(?P<language>[^\n`]*)\n(?P<fenced>.*?)^(?P=margin)```[ ]*$"
    r"|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+))",
    flags=re.S | re.M,
)


@dataclass(frozen=True)
class CodeBlock:
    """A block of code in a page."""

    page: str  # its path in the repository
    line: int
    language: str
    code: str
    not_run: str | None  # the reason why it is not run

    @property
    def shell(self) -> bool:
        """Tell whether the block is shell."""
        return self.language in SHELL

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return README, CONTRIBUTING, SECURITY and the pages of the site that are not generated."""
    site = [p for p in (ROOT / "docs").rglob("*.md") if not {"generated", "_build"} & set(p.parts)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(site)]


def blocks(page: Path) -> Iterator[CodeBlock]:
    """Yield the blocks of a page."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        fenced = match["fenced"] is not None
        margin = match["margin"] if fenced else "    "
        code = re.sub(f"^{margin}", "", match["fenced"] if fenced else match["indented"], flags=re.M)
        line = text.count("\n", 0, match.start("fenced" if fenced else "indented")) + 1
        language = (match["language"] or "").strip()
        yield CodeBlock(str(page.relative_to(ROOT)), line, language, code, match["why"])


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return _BLOCK.sub("", page.read_text())


def commands(code: str) -> list[list[str]]:
    """Return the simple commands of a block as words, without here-documents and with continued lines joined."""
    code = re.sub(r"<<'(\w+)'[^\n]*\n.*?^\1$", "", code, flags=re.S | re.M).replace("\\\n", " ")
    code = re.sub(r"\$\(\(.*?\)\)", "1", code)  # an arithmetic expansion is some number
    simple = []
    for line in code.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # prose or a formula, not shell
            continue
        part: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;()"):
                simple += [part] if part else []
                part = []
            else:
                part.append(word)
    return [words for part in simple if (words := _plain(part))]


def _plain(words: list[str]) -> list[str]:
    """Return the words of a command without its redirections."""
    kept: list[str] = []
    skip = False
    for word in words:
        if set(word) <= set("<>") and word:
            skip = True
        elif not skip:
            kept.append(word)
        else:
            skip = False
    return kept


def run_shell(code: str, folder: Path, main: str = "from twotemp.cli import main; main()") -> str:
    """Run a block in a folder and return its output.

    The commands `twotemp` and `python` use this interpreter; `main` is the code that starts twotemp.
    """
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    for name, arguments in {"twotemp": f"-c {shlex.quote(main)}", "python": ""}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "COLUMNS": "100",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RuntimeError(f"{code}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout
