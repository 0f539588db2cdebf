"""Folders that outlive a process: whole files, what may be continued, logs, and what a disk says."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from twotemp import __version__, folders
from twotemp.errors import UserError
from twotemp.folders import (
    Log,
    claim,
    continued,
    disk_errors,
    expect,
    kind_of,
    only_writer,
    read_log,
    write_run,
)
from twotemp.policies import policy
from twotemp.records import Policy
from twotemp.serialization import from_json, json_text, record, to_json

# Whole or not at all.


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("mine")])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, failure):
    path = tmp_path / "a.txt"
    folders.write_text(path, "old")

    def fails() -> None:
        with folders.replacing(path) as partial:
            partial.write_text("half")
            raise failure

    with pytest.raises(UserError if isinstance(failure, OSError) else type(failure)):
        fails()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_folder_appears_with_all_it_holds(tmp_path: Path):
    with folders.replacing(tmp_path / "made") as partial:
        (partial / "below").mkdir(parents=True)
        (partial / "below" / "a").write_text("1")
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "below" / "a").read_text() == "1"
    with pytest.raises(UserError, match="in the way"), folders.replacing(tmp_path / "made") as partial:
        partial.mkdir()
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


def test_only_leftovers_of_dead_processes_are_removed(tmp_path: Path):
    code = """
import os, sys
from pathlib import Path
from twotemp.folders import replacing

with replacing(Path(sys.argv[1]) / "a.json") as partial:
    partial.write_text("half")
    os._exit(9)
"""
    claim(tmp_path, "training", {})
    (tmp_path / "checkpoints").mkdir()
    for folder in (tmp_path, tmp_path / "checkpoints"):
        subprocess.run([sys.executable, "-c", code, folder], check=False)
    assert len(list(tmp_path.rglob(".tmp-*"))) == 2
    elsewhere = [tmp_path / ".tmp-another-host.7-0123abcd.json", tmp_path / ".tmp-7-run.json"]
    for old, path in enumerate((*elsewhere, tmp_path / ".tmp-left-behind")):
        path.write_text("")
        os.utime(path, (0, 0) if old == 2 else None)
    with folders.replacing(tmp_path / "mine") as partial:
        partial.write_text("still being written")
        claim(tmp_path, "training", {})
        assert sorted(tmp_path.rglob(".tmp-*")) == sorted([partial, *elsewhere])


def test_a_folder_has_one_writer_until_it_ends_or_is_killed(tmp_path: Path):
    code = """
import sys
from pathlib import Path
from twotemp.folders import only_writer

with only_writer(Path(sys.argv[1])):
    print("writing", flush=True)
    sys.stdin.read()
"""
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        with (
            pytest.raises(UserError, match=r"another process is writing .*run; wait until it has finished"),
            only_writer(folder),
        ):
            pass
        with only_writer(tmp_path):  # the folder around it is another one
            pass
        other.kill()
        other.wait()
        with only_writer(folder):
            pass
    with pytest.raises(KeyboardInterrupt), only_writer(folder):
        raise KeyboardInterrupt
    with only_writer(folder):
        pass


def test_a_file_system_without_locks_refuses_no_process(tmp_path: Path, monkeypatch):
    asked = []

    def none(*_: object) -> None:
        asked.append(1)
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", none)
    with only_writer(tmp_path), only_writer(tmp_path):
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "free some space and run the same command again"),
        (errno.EFBIG, "free some space"),
        (errno.EROFS, "choose a folder that you may write to"),
        (errno.EACCES, "change its permissions"),
        (errno.ENOENT, "below does not exist"),
        (errno.ENOTDIR, "a file is where a folder is needed"),
        (errno.EIO, "check the disk"),
    ],
)
def test_each_disk_error_names_its_fix(tmp_path: Path, code: int, fix: str):
    path = tmp_path / "below" / "a.json"
    with pytest.raises(UserError, match=f"cannot write {path}: .*{fix}") as caught, disk_errors(path):
        raise OSError(code, "?")
    assert ("free some space" in str(caught.value)) == (code in (errno.ENOSPC, errno.EFBIG))


def test_a_disk_that_is_full_for_safetensors_is_full(tmp_path: Path):
    class SafetensorError(Exception):
        pass

    with pytest.raises(UserError, match="free some space"), disk_errors(tmp_path / "a"):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), disk_errors(tmp_path / "a"):
        raise SafetensorError("header too large")


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=f"{tmp_path / 'no'} does not exist"):
        folders.write_text(tmp_path / "no" / "such" / "a.txt", "")


# Numbers JSON does not have.


def test_numbers_json_does_not_have(tmp_path: Path):
    data = {
        "a": math.inf,
        "b": [-math.inf, math.nan, 1.5],
        "c": {"d": (math.nan,)},
        "text": "inf",
        "none": None,
    }
    plain = {"a": "inf", "b": ["-inf", None, 1.5], "c": {"d": [None]}, "text": "inf", "none": None}
    assert to_json(data) == plain
    folders.write_json(tmp_path / "a.json", data)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for text in (json_text(data), json_text(data, compact=True), (tmp_path / "a.json").read_text()):
        assert json.loads(text, parse_constant=refuse) == plain
    assert [from_json(x) for x in ("inf", "-inf", 2)] == [math.inf, -math.inf, 2.0]
    assert math.isnan(from_json(None))


def test_a_policy_is_json_as_it_is():
    random = policy("random")
    assert random.to_dict()["t_pos"] == "inf"
    assert Policy.from_dict(json.loads(json.dumps(random.to_dict(), allow_nan=False))) == random


def test_the_command_line_prints_json():
    from twotemp.cli import app

    result = CliRunner().invoke(app, "sample --policy random -n 2 --length 6 --json 3".split())
    assert result.exit_code == 0, result.output
    for line in result.stdout.splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["policy"]["t_pos"] == "inf"


@dataclass
class Made:
    a: int
    b: int = 2


def test_a_wrong_record_in_a_file_is_named():
    assert record(Made, {"a": 1}, "x.yaml") == Made(1)
    with pytest.raises(UserError, match=r"unknown key in x\.yaml 'c'"):
        record(Made, {"a": 1, "c": 3}, "x.yaml")
    with pytest.raises(UserError, match=r"x\.yaml lacks a"):
        record(Made, {"b": 1}, "x.yaml")


# Whose folder it is.

RUN = {"model": "m", "settings": {"seed": 0, "rate": math.inf, "batch": 8}}


def changed(**settings: float) -> dict[str, object]:
    return {**RUN, "settings": {**RUN["settings"], **settings}}


def go_on(folder: Path, identity: dict[str, object], step: int = 0) -> None:
    rules = {"free": ["settings.batch"], "adjustable": ["settings.rate"]}
    write_run(folder, continued(folder, "grpo", identity, step=step, **rules))


def test_only_the_same_run_continues_and_changes_are_recorded(tmp_path: Path):
    claim(tmp_path, "grpo", RUN)
    before = (tmp_path / "run.json").stat().st_mtime_ns
    claim(tmp_path, "grpo", RUN, step=4)
    assert (tmp_path / "run.json").stat().st_mtime_ns == before
    said = r"settings\.batch: 8, now 4; settings\.rate: 'inf', now 1\.0; settings\.seed: 0, now 1\)"
    with pytest.raises(UserError, match=said):
        claim(tmp_path, "grpo", changed(seed=1, batch=4, rate=1.0))
    with pytest.raises(UserError, match=r"\(settings\.seed: 0, now 1\)\. Nothing was changed"):
        go_on(tmp_path, changed(seed=1, batch=4, rate=1.0))
    assert (tmp_path / "run.json").stat().st_mtime_ns == before
    go_on(tmp_path, changed(batch=4), step=5)
    go_on(tmp_path, changed(rate=1.0), step=6)
    go_on(tmp_path, changed(rate=1.0), step=7)
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["changes"] == [{"after step": 6, "settings.rate": 1.0}]
    assert (found["kind"], found["twotemp"], found["settings"]["batch"]) == ("grpo", __version__, 8)
    claim(tmp_path, "grpo", {"model": "n", "settings": {}}, step=None)  # nothing was done yet
    assert folders.read_run(tmp_path)["model"] == "n"


def test_a_folder_of_another_kind_or_of_something_else_is_left_alone(tmp_path: Path):
    claim(tmp_path / "run", "evaluation", {})
    for step in (0, None):
        with pytest.raises(UserError, match=r"is a run of `twotemp eval`; a run of `twotemp grpo` is needed"):
            claim(tmp_path / "run", "grpo", RUN, step=step)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    with pytest.raises(UserError, match=r"something other than a run \(todo\.txt\)"):
        claim(tmp_path / "notes", "grpo", RUN)
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["run.json", "todo.txt"]


def test_of_two_processes_that_make_a_run_neither_is_refused(tmp_path: Path, monkeypatch):
    """The other one makes the whole run, a cell too, just before we look into the folder."""
    look = Path.iterdir

    def late(self: Path):
        monkeypatch.setattr(Path, "iterdir", look)
        claim(self, "evaluation", {})
        (self / "cell").mkdir()
        return look(self)

    monkeypatch.setattr(Path, "iterdir", late)
    claim(tmp_path, "evaluation", {})


def test_the_kind_of_a_folder(tmp_path: Path):
    for kind in folders.KINDS:
        claim(tmp_path / kind, kind, {})
        assert kind_of(tmp_path / kind) == kind
        assert expect(tmp_path / kind, "grpo", kind) == kind
    assert kind_of(tmp_path) is None
    (tmp_path / "settings.json").write_text("null")  # written by another program
    assert kind_of(tmp_path) is None
    with pytest.raises(UserError, match=r"no run\.json; it holds evaluation, forks, grpo, search, training"):
        expect(tmp_path, "evaluation")
    (tmp_path / "evaluation" / "a@b").mkdir()
    (tmp_path / "evaluation" / "a@b" / "cell.json").write_text("{}")
    with pytest.raises(UserError, match=f"one cell of a run; give the run: {tmp_path / 'evaluation'}"):
        expect(tmp_path / "evaluation" / "a@b", "evaluation")
    folders.write_json(tmp_path / "grpo" / "run.json", {**folders.identity.FORMAT, "kind": "x"})
    with pytest.raises(UserError, match=r"'x', which twotemp .* does not know"):
        kind_of(tmp_path / "grpo")
    for kind in (["x"], {"x": 1}, None):
        folders.write_json(tmp_path / "grpo" / "run.json", {**folders.identity.FORMAT, "kind": kind})
        with pytest.raises(UserError, match=r"which twotemp .* does not know"):
            kind_of(tmp_path / "grpo")
    (tmp_path / "grpo" / "run.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        kind_of(tmp_path / "grpo")


@pytest.mark.parametrize(
    ("described", "writer"),
    [
        ({"format": "twotemp run", "version": 1}, "0.1.0"),
        ({"twotemp": "0.1.0", "settings": {}, "task": "countdown-3"}, "0.1.0"),
        ({"format": "twotemp run", "version": 1, "kind": "evaluation", "twotemp": "0.2.0"}, "0.2.0"),
        ({**folders.identity.FORMAT, "version": 99, "kind": "evaluation", "twotemp": "9.9"}, "9.9"),
    ],
)
def test_a_run_of_another_format_is_refused_with_the_version_that_wrote_it(
    tmp_path: Path, described: dict[str, Any], writer: str
):
    folders.write_json(tmp_path / "run.json", described)
    for call in (kind_of, lambda path: claim(path, "evaluation", {})):
        with pytest.raises(
            UserError, match=f"written by twotemp {re.escape(writer)}, .*choose another folder"
        ):
            call(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text()) == described


@pytest.mark.parametrize("command", ["select", "regrade", "export", "report"])
def test_commands_name_the_kind_of_folder_they_were_given(command: str, tmp_path: Path):
    from twotemp.cli import app

    claim(tmp_path / "run", "training", {})
    more = [str(tmp_path / "a.parquet")] if command == "export" else []
    result = CliRunner().invoke(app, [command, str(tmp_path / "run"), *more])
    assert result.exit_code
    assert "is a run of `python -m recipes`" in str(result.exception)


# Logs.


def test_a_log_cut_at_any_byte_keeps_its_whole_lines(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    log = Log(path, keep=lambda row: True)
    rows = [{"step": step, "text": "é\n\u2028" * (step == 1)} for step in range(3)]
    for row in rows:
        log.add(row)
    assert log.rows == rows
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = data[:cut].count(b"\n")
        assert read_log(path) == rows[:whole], cut
        again = Log(path, keep=lambda row: row["step"] != 1)
        again.add({"step": 9})
        assert read_log(path) == [row for row in rows[:whole] if row["step"] != 1] + [{"step": 9}]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch):
    log = Log(tmp_path / "a.jsonl", keep=lambda row: True)
    log.add({"step": 1})
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 4:
            return real(fd, data[:4])
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(UserError, match="free some space"):
            log.add({"step": 2})
    log.add({"step": 3})
    assert read_log(log.path) == log.rows == [{"step": 1}, {"step": 3}]


def test_damage_inside_a_log_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"a\.jsonl is damaged in line 2"):
        read_log(tmp_path / "a.jsonl")


# Training.


@pytest.mark.parametrize("torn", [False, True])
def test_a_training_log_continues_with_its_run(tmp_path: Path, monkeypatch, torn: bool):
    """Checkpoints fall between two lines of the log; tokens and losses are those of an uninterrupted run."""
    from recipes import checkpoints, loop
    from tests.helpers.micro_recipe import MICRO

    recipe = replace(MICRO, checkpoint_every=3, log_every=2)
    loop.train(recipe, tmp_path / "whole")
    real, kill = checkpoints.write, iter([False, True])

    def write(*given) -> None:
        if next(kill):
            raise KeyboardInterrupt
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", write)
        with pytest.raises(KeyboardInterrupt):
            loop.train(recipe, tmp_path / "parts")
    if torn:
        with (tmp_path / "parts" / "log.jsonl").open("a") as file:
            file.write('{"step": 7, "obj')
    loop.train(recipe, tmp_path / "parts")
    whole, parts = (read_log(tmp_path / name / "log.jsonl") for name in ("whole", "parts"))
    assert [{**row, "seconds": 0} for row in parts] == [{**row, "seconds": 0} for row in whole]
    assert kind_of(tmp_path / "parts") == "training"


def test_sweeping_does_not_open_files_of_running_processes(tmp_path, monkeypatch):
    """Between a listing and a look inside, another process may rename it to its place."""
    with folders.replacing(tmp_path / "cell") as draft:
        draft.mkdir()
        scan = os.scandir

        def gone(path="."):
            if Path(path).name == draft.name:
                raise FileNotFoundError(path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", gone)
        claim(tmp_path, "evaluation", {})
        monkeypatch.undo()
        assert draft.is_dir()
    assert (tmp_path / "cell").is_dir()
