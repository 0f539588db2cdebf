"""Read programs and their tests from text files; `program_pairs.txt` describes the format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """A program and tests of it, which hold or not."""

    name: str
    code: str
    tests: str
    holds: bool = True


def read(name: str) -> list[Pair]:
    """Return one pair for all tests that hold, and one for each test that does not."""
    _, *entries = (Path(__file__).parent / f"{name}.txt").read_text().strip("\n").split("\n\n")
    common: dict[str, str] = {}
    pairs = []
    for entry in entries:
        title, *lines = entry.splitlines()
        code = "\n".join(common.get(line, line) for line in lines if line[:2] not in ("> ", "! "))
        right = [line[2:] for line in lines if line.startswith("> ")]
        wrong = [line[2:] for line in lines if line.startswith("! ")]
        if title.startswith("@"):
            common[title] = code
        if right:
            pairs.append(Pair(title, code, "\n".join(right)))
        # Lines that cannot begin a test continue the one before.
        starts = [i for i, line in enumerate(wrong) if not line.startswith(("except", "    "))]
        for start, end in zip(starts, [*starts[1:], len(wrong)]):
            # The tests that hold come first, because a failing test may use names that they define.
            pairs.append(Pair(f"{title}, wrong", code, "\n".join((*right, *wrong[start:end])), holds=False))
    return pairs
