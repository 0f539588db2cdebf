"""HumanEval+, MBPP+, AIME, and d1's Sudoku and Countdown: rows, prompts and references."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from twotemp import tasks
from twotemp.errors import UserError
from twotemp.tasks.more_benchmarks import restore

PLUS = {
    "task_id": "HumanEval/0",
    "prompt": 'def add(a, b):\n    """Return the sum."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "base_input": [[1, 2]],
    "plus_input": [[10**20, -1], [0, 0]],
    "atol": 0,
}


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def test_a_row_of_humaneval_plus_keeps_every_input(tmp_path: Path) -> None:
    path = write(tmp_path, [PLUS])
    (problem,) = tasks.get("humaneval-plus").problems(data=path, allow_altered=True).problems
    assert problem.reference["inputs"] == [[1, 2], [10**20, -1], [0, 0]]
    assert problem.reference["solution"].endswith("return a + b\n")
    assert "def add" in problem.prompt


def test_an_altered_file_is_refused_by_the_digest_of_its_bytes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="272720b90ac3"):
        tasks.get("humaneval-plus").problems(data=write(tmp_path, [PLUS]))


def test_a_file_that_is_not_on_the_hub_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"MbppPlus.jsonl.gz .* with --data"):
        tasks.get("mbpp-plus").problems()


@pytest.mark.parametrize(
    ("assertion", "stored", "original"),
    [
        ("assert f((3, 4), (5,)) == 1", [[1, 2], [3]], [(1, 2), (3,)]),
        (
            "assert f([(1, 'a'), (2, 'b')]) == 1",
            [[[7, "c"], [8, "d"], [9, "e"]]],
            [[(7, "c"), (8, "d"), (9, "e")]],
        ),
        ("assert f([(1, 2)], 3) == 1", [[[4, 5], [6, 7]], 3], [[(4, 5), (6, 7)], 3]),
        ("assert f([{1, 2}]) == 1", [[[3, 4]]], [[{3, 4}]]),
        ("assert f(1.0, 2+1j) == 1", [2.0, "(1+3j)"], [2.0, 1 + 3j]),
        ("assert f({'a': (1, 2)}, 3) == 1", [{"b": [4, 5]}, 6], [{"b": (4, 5)}, 6]),
        ("assert f([1, 2], 'x') == 1", [[3], "y"], [[3], "y"]),
    ],
)
def test_types_that_json_lost_are_restored(assertion: str, stored: list[Any], original: list[Any]) -> None:
    assert restore([stored], assertion, "f") == [original]


def test_restoring_leaves_other_numbers_of_arguments_alone() -> None:
    assert restore([[[1], 2]], "assert f((1,)) == 1", "f") == [[[1], 2]]


def test_the_sudoku_of_d1_is_read_from_its_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["Puzzle", "Solution"], ["3102200002100320", "3142243142131324"]])
    loaded = tasks.get("sudoku-d1").problems(data=path, allow_altered=True, subset="full")
    (problem,) = loaded.problems
    assert problem.reference == {"puzzle": "3102200002100320"}
    assert problem.prompt.endswith("Solve the following Sudoku puzzle: 3102200002100320\n")


def test_the_countdown_of_d1_names_numbers_and_target(tmp_path: Path) -> None:
    path = write(tmp_path, [{"input": "30,100,93", "output": "23"}])
    (problem,) = tasks.get("countdown-d1").problems(data=path, allow_altered=True).problems
    assert problem.prompt.endswith("Numbers: [30, 100, 93]\nTarget: 23")
    assert problem.reference == {"numbers": [30, 100, 93], "target": 23}


def test_aime_without_a_known_digest_must_have_all_its_questions(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {k}?", "answer": str(k)} for k in range(30)]
    loaded = tasks.get("aime25").problems(data=write(tmp_path, rows))
    assert len(loaded.problems) == 30
    assert len(loaded.digest) == 64
    with pytest.raises(UserError, match="29 rows"):
        tasks.get("aime25").problems(data=write(tmp_path, rows[1:]))
