"""Grade a file of generated text: one JSON row per generation in, one verdict per row out, in the same order."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from twotemp.errors import UserError
from twotemp.folders import replacing
from twotemp.graders.base import Grader, grades
from twotemp.records import Outcome, Problem
from twotemp.serialization import json_text


def grade_file(problems: Sequence[Problem], generations: Path, out: Path, grader: Grader) -> Counter[Outcome]:
    """Grade a file and count the outcomes.

    Args:
        problems: The problems of the task.
        generations: JSON rows with `generation`, and `id` (of a problem) or `index` (into `problems`, which must then
            be complete). If a row has both, the id is used if such a problem exists.
        out: The file to write; it appears when it is complete. Either file may end in .gz.
        grader: The grader.
    """
    rows = _read(generations)
    by_id = {problem.id: problem for problem in problems}
    items = [(_problem(row, problems, by_id, f"{generations}:{n}"), row["generation"]) for n, row in rows]
    counts: Counter[Outcome] = Counter()
    with replacing(out) as partial, _open(partial, "wt", zipped=out.suffix == ".gz") as file:
        for (_, row), grade in zip(rows, grades(grader, items)):
            counts[grade.outcome] += 1
            verdict: dict[str, Any] = {key: row[key] for key in ("id", "index") if key in row}
            verdict |= {"verdict": grade.outcome, "answer": grade.answer, "rule": grade.rule}
            file.write(json_text(verdict | {"detail": grade.detail}) + "\n")
    return counts


def _open(path: Path, mode: str, zipped: bool) -> IO[str]:
    # A model may write bytes that are not UTF-8; they must not stop the grading of the other rows.
    file = (gzip.open if zipped else open)(path, mode, encoding="utf-8", errors="replace")
    return cast(IO[str], file)


def _read(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows with their line numbers."""
    rows = []
    try:
        with _open(path, "rt", zipped=path.suffix == ".gz") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append((number, _row(line, f"{path}:{number}")))
    except (OSError, EOFError) as error:
        raise UserError(
            f"cannot read {path}: {error}; give a JSONL file, or one compressed as .gz"
        ) from error
    return rows


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); every line must be one JSON object") from error
    if not isinstance(row, dict) or not isinstance(row.get("generation"), str):
        raise UserError(f"{where}: a row needs the text to grade as a string in `generation`")
    return row


def _problem(
    row: dict[str, Any], problems: Sequence[Problem], by_id: dict[str, Problem], where: str
) -> Problem:
    name, index = row.get("id"), row.get("index")
    if name is not None and (problem := by_id.get(str(name))) is not None:
        return problem
    if isinstance(index, int) and not isinstance(index, bool):
        if 0 <= index < len(problems):
            return problems[index]
        raise UserError(f"{where}: index {index} is not one of the {len(problems)} problems (from 0)")
    if name is None:
        raise UserError(f"{where}: a row needs the `id` or the `index` of the problem it answers")
    raise UserError(f"{where}: no problem has the id {name!r}; check --task, or give an `index` instead")
