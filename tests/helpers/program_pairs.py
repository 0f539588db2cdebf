"""Programs with their tests, written as text: `program_pairs.txt` says how."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    name: str
    code: str
    tests: str
    holds: bool = True


def read(name: str) -> list[Pair]:
    """One pair for all tests that hold, and one for each that does not."""
    _, *entries = (Path(__file__).parent / f"{name}.txt").read_text().strip("\n").split("\n\n")
    common: dict[str, str] = {}
    found = []
    for entry in entries:
        title, *lines = entry.splitlines()
        code = "\n".join(common.get(line, line) for line in lines if line[:2] not in ("> ", "! "))
        right = [line[2:] for line in lines if line.startswith("> ")]
        wrong = [line[2:] for line in lines if line.startswith("! ")]
        if title.startswith("@"):
            common[title] = code
        if right:
            found.append(Pair(title, code, "\n".join(right)))
        # A test of several lines: those after the first begin with what cannot begin one.
        starts = [i for i, line in enumerate(wrong) if not line.startswith(("except", "    "))]
        for start, end in zip(starts, [*starts[1:], len(wrong)]):
            # What the tests that hold have defined is there too, as in a file of tests.
            found.append(Pair(f"{title}, wrong", code, "\n".join((*right, *wrong[start:end])), holds=False))
    return found
