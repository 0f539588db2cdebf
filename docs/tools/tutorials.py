"""Run the tutorials and update their output: `python docs/tools/tutorials.py [PAGE ...]`.

The blocks of Python and shell of a tutorial run in order, in one empty folder and one namespace. A block of `text`
right after a block of code is its output; the pictures of the page are files that its code writes.
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
    """Return the names of all tutorials."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")


def steps(page: str) -> list[str]:
    """Return the code of the blocks that `run` runs."""
    return [match[2] for match in _STEP.finditer(page)]


def run(page: str, folder: Path, shorter: Mapping[str, str] | None = None) -> str:
    """Run a page and return it with the new output.

    Args:
        page: the Markdown of the tutorial.
        folder: an empty folder to run in.
        shorter: replacements in the code that make it faster, for tests.
    """
    variables: dict[str, object] = {}

    def step(match: re.Match[str]) -> str:
        language, code, output = match.groups()
        executed = code
        for long, short in (shorter or {}).items():
            executed = executed.replace(long, short)
        python = language == "python"
        printed = _python(executed, variables, folder) if python else run_shell(executed, folder)
        text = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
        return f"```{language}\n{code}```\n" + (f"\n```text\n{text}\n```\n" if output else "")

    return _STEP.sub(step, page)


def _python(code: str, variables: dict[str, object], folder: Path) -> str:
    """Run a block of Python and return its output."""
    with chdir(folder), redirect_stdout(StringIO()) as printed:
        exec(compile(code, "tutorial", "exec"), variables)
    return printed.getvalue()


def pictures(page: str) -> list[str]:
    """Return the files that a page shows as pictures."""
    return re.findall(r"!\[[^]]*\]\(([^)/]+)\)", page)


def main(selected: list[str]) -> None:
    """Update these tutorials, or all of them."""
    for path in [FOLDER / f"{name}.md" for name in selected or names()]:
        with tempfile.TemporaryDirectory() as folder:
            text = run(path.read_text(), Path(folder))
            for picture in pictures(text):
                shutil.copy(Path(folder, picture), FOLDER / picture)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
