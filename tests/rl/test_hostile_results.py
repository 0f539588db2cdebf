"""GRPO runs from other people: whatever they contain, readers report damage; they neither crash nor fill memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from twotemp import policy
from twotemp.errors import UserError
from twotemp.folders import claim, write_json
from twotemp.records import Grade, Problem
from twotemp.report import grpo
from twotemp.rl import results
from twotemp.rl.results import GreedyEvaluation, Point, StepRecord

STEP = StepRecord(
    **dict.fromkeys(StepRecord.__dataclass_fields__, 1) | {"loss": 0.5, "kl": None, "threshold": 0.9}
)
POINT = Point(threshold=0.6, accuracy=0.5, low=0.1, high=0.9, nfe=3.5, passed=(1.0, 0.0), nfes=(3, 4))
GROUP = {
    "problem": asdict(Problem("p", "t", "?", {"answer": "1"})),
    "texts": ["a", "b"],
    "grades": [asdict(Grade("passed", "1")), asdict(Grade("failed"))],
    "rewards": [1.0, None],
    "nfes": [3, 4],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    settings = {"policy": policy("tct").to_dict(), "iterations": 2}
    claim(tmp_path, "grpo", {"model": "tiny", "task": "countdown-3", "settings": settings})
    (tmp_path / results.STEPS).write_text(json.dumps(asdict(STEP)) + "\n")
    write_json(
        tmp_path / results.EVALUATIONS,
        [asdict(GreedyEvaluation(n, 1.5, ("p", "q"), (POINT,))) for n in (0, 1)],
    )
    (tmp_path / results.ROLLOUTS).mkdir()
    rollouts(tmp_path).write_bytes(gzip.compress(json.dumps([GROUP]).encode()))
    return tmp_path


def rollouts(run: Path) -> Path:
    return run / results.ROLLOUTS / "step-00000001-0.json.gz"


def read_everything(run: Path) -> None:
    for group in results.read_rollouts(run):
        assert len(group.texts) == 2
    read = grpo.read(run)
    for name in StepRecord.__dataclass_fields__:
        read.column(name)
    grpo.table([read])


def test_a_sound_run_is_read(run: Path) -> None:
    read_everything(run)
    assert grpo.read(run).records == (STEP,)
    assert grpo.read(run).evaluations[1] == GreedyEvaluation(1, 1.5, ("p", "q"), (POINT,))
    (group,) = results.read_rollouts(run)
    assert (group.rewards, group.grades[0].passed) == ((1.0, None), True)


WRONG: list[Any] = [None, True, "x", "0x10", "\ud800", -1, 10**400, [], [1], [[1, 2]], {}, {"a": 1}, ...]


def change(data: Any, path: tuple[str | int, ...], value: Any) -> None:
    *inner, last = path
    for key in inner:
        data = data[key]
    if value is ...:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize("value", WRONG, ids=map(repr, WRONG))
def test_wrong_values_are_reported(run: Path, value: Any) -> None:
    for name in StepRecord.__dataclass_fields__:
        row = asdict(STEP)
        change(row, (name,), value)
        (run / results.STEPS).write_text(json.dumps(row) + "\n")
        read_or_report(run)
    (run / results.STEPS).write_text(json.dumps(asdict(STEP)) + "\n")
    for path in (
        (0,),
        *((0, name) for name in GROUP),
        (0, "grades", 0),
        (0, "texts", 0),
        (0, "problem", "id"),
    ):
        data = json.loads(json.dumps([GROUP]))
        change(data, path, value)
        rollouts(run).write_bytes(gzip.compress(json.dumps(data).encode()))
        with contextlib.suppress(UserError):
            list(results.read_rollouts(run))
    rollouts(run).unlink()
    points = [(1, "points", 0, name) for name in asdict(POINT)]
    for path in (
        (1,),
        (1, "step"),
        (1, "seconds"),
        (1, "questions"),
        (1, "points"),
        (1, "points", 0),
        *points,
    ):
        data = json.loads(
            json.dumps([asdict(GreedyEvaluation(n, 1.5, ("p", "q"), (POINT,))) for n in (0, 1)])
        )
        change(data, path, value)
        write_json(run / results.EVALUATIONS, data)
        read_or_report(run)


def read_or_report(run: Path) -> None:
    with contextlib.suppress(UserError):
        read_everything(run)


def test_a_file_that_expands_without_bound_is_damaged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_UNZIPPED", 1 << 20)
    rollouts(run).write_bytes(gzip.compress(bytes(1 << 22)))
    assert rollouts(run).stat().st_size < 10_000
    with pytest.raises(UserError, match="expands without end"):
        list(results.read_rollouts(run))


def test_other_damage_of_rollouts(run: Path) -> None:
    file, sound = rollouts(run), rollouts(run).read_bytes()
    for content in (
        b"",
        b"x",
        sound[:-9],
        zlib.compress(b"[]"),
        sound[:20] + b"\xff" * 20,
        gzip.compress(b"[" * 10**5),
    ):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"damaged|cannot be read"):
            list(results.read_rollouts(run))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match="not a regular file"):
        list(results.read_rollouts(run))
    file.unlink()
    file.with_name("step-x-0.json.gz").write_bytes(sound)
    with pytest.raises(UserError, match="cannot be read"):
        list(results.read_rollouts(run))


@pytest.mark.parametrize("name", ["model", "settings"])
def test_a_damaged_description_is_reported(run: Path, name: str) -> None:
    described = json.loads((run / "run.json").read_text())
    del described[name]
    write_json(run / "run.json", described)
    with pytest.raises(UserError, match="cannot be read"):
        grpo.read(run)
