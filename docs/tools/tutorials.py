"""Runs the tutorials and keeps what they print: `python docs/tools/tutorials.py [PAGE ...]`.

A tutorial is a page whose blocks of Python and shell are run in order, in one empty folder and one namespace. A
block of `text` right after one is what it printed; a picture that the page shows is one that its code made.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

from examples import run_shell

FOLDER = Path(__file__).resolve().parents[1] / "tutorials"
_STEP = re.compile(r"^```(python|shell)\n(.*?)^```\n(\n```text\n.*?^```\n)?", flags=re.S | re.M)


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")


def steps(page: str) -> list[str]:
    """The blocks that `run` runs."""
    return [found[2] for found in _STEP.finditer(page)]


def run(page: str, folder: Path, shorter: Mapping[str, str] | None = None) -> str:
    """The page with what its blocks print now. `shorter`: replacements in the code, for tests."""
    variables: dict[str, object] = {}

    def step(found: re.Match[str]) -> str:
        language, code, kept = found.groups()
        wanted = code
        for long, short in (shorter or {}).items():
            wanted = wanted.replace(long, short)
        printed = _python(wanted, variables, folder) if language == "python" else run_shell(wanted, folder)
        shown = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
        return f"```{language}\n{code}```\n" + (f"\n```text\n{shown}\n```\n" if kept else "")

    return _STEP.sub(step, page)


def _python(code: str, variables: dict[str, object], folder: Path) -> str:
    with chdir(folder), redirect_stdout(StringIO()) as printed:
        exec(compile(code, "tutorial", "exec"), variables)
    return printed.getvalue()


def pictures(page: str) -> list[str]:
    return re.findall(r"!\[[^]]*\]\(([^)/]+)\)", page)


def main(wanted: list[str]) -> None:
    for path in [FOLDER / f"{name}.md" for name in wanted or names()]:
        with tempfile.TemporaryDirectory() as folder:
            text = run(path.read_text(), Path(folder))
            for picture in pictures(text):
                shutil.copy(Path(folder, picture), FOLDER / picture)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
