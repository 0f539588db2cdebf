"""Which samples a cell may hold, which of two rows counts, and what is said of a cell that is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.store_cells import cell, expected, rows
from tests.helpers.store_worker import CONFIG, GRADER, draw, evaluate
from twotemp.errors import UserError
from twotemp.folders import claim
from twotemp.records import Grade, Key
from twotemp.store import Cell, Config, Store

__all__ = ["cell"]  # the fixture

HOUR = 3_600_000_000_000
KEY = Key("a", 0, CONFIG.seed)


# Configurations.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 16}, "length: 8, now 16"),
        ({"fingerprint": "else"}, "fingerprint: 'f1nger', now 'else'"),
        ({"data": "else"}, "data: 'd1g3st'"),
        ({"options": {"cache": "dual"}}, "options.cache: None, now 'dual'"),
        ({"policy": replace(CONFIG.policy, t_pos=0.2)}, r"policy\.t_pos: 0\.1, now 0\.2"),
        ({"seed": 8}, "seed: 7, now 8"),
    ],
)
def test_another_configuration_is_refused_and_nothing_is_lost(cell: Cell, change: dict, message: str):
    evaluate(cell, 1)
    store = Store.open(cell.path.parent)
    with pytest.raises(UserError, match=message) as caught:
        store.cell("toy.tct", replace(CONFIG, **change))
    assert "--out" in str(caught.value)
    assert rows(store["toy.tct"]) == expected(1)


def test_samples_of_another_policy_or_seed_are_refused(cell: Cell):
    with cell.writer() as writer:
        for change in ({"policy": replace(CONFIG.policy, t_pos=0.5)}, {"seed": 1}):
            with pytest.raises(UserError, match="another policy or seed"):
                writer.samples([replace(draw("a", 0), **change)])
    assert not list(cell.path.glob("samples-*"))


def test_a_run_holds_several_cells(tmp_path: Path):
    store = Store.create(tmp_path)
    names = ["gsm8k.ar", "gsm8k.tct:t_pos=0.1,threshold=0.6"]
    for name, seed in zip(names, (1, 2)):
        config = replace(CONFIG, seed=seed)
        with store.cell(name, config).writer() as writer:
            writer.samples([draw("a", 0, config)])
    assert [c.name for c in store.cells()] == names
    assert [next(c.samples()).seed for c in store.cells()] == [1, 2]
    with pytest.raises(UserError, match="cell's name"):
        store.cell("../outside", CONFIG)


def test_config_round_trip_and_unknown_fields():
    data = json.loads(json.dumps(CONFIG.to_dict()))
    assert Config.from_dict(data) == CONFIG
    with pytest.raises(UserError, match="did you mean 'length'"):
        Config.from_dict({**data, "lenght": 3})
    with pytest.raises(UserError, match="lacks seed"):
        Config.from_dict({k: v for k, v in data.items() if k != "seed"})
    with pytest.raises(UserError, match="'dtype' must be"):
        replace(CONFIG, options={"dtype": [1]})


def test_another_version_continues_a_cell(cell: Cell):
    """The version that began a cell is recorded; it is not part of what the cell is."""
    evaluate(cell, 1)
    later = Store.open(cell.path.parent).cell("toy.tct", replace(CONFIG, version="9.9"))
    evaluate(later, 2)
    assert rows(later) == expected(2)
    assert later.config.version == "test"


def test_rows_of_two_versions_can_be_merged(tmp_path: Path):
    one, other = (
        Store.create(tmp_path / version).cell("toy", replace(CONFIG, version=version))
        for version in ("1", "2")
    )
    with one.writer() as writer:
        writer.samples([draw("a", 0)])
    (file,) = one.path.glob("samples-*")
    (other.path / file.name).write_bytes(file.read_bytes())
    assert list(other.samples()) == list(one.samples())


def test_compiled_samples_are_separate_and_unset_options_do_not_count(cell: Cell):
    """CONFIG has no options, as a cell of a version that did not know an option."""
    store = Store.open(cell.path.parent)
    for options in ({"compile": False}, {"cache": None, "trace": False}):
        assert store.cell("toy.tct", replace(CONFIG, options=options)).config == CONFIG
    with pytest.raises(UserError, match=r"options\.compile: None, now True"):
        store.cell("toy.tct", replace(CONFIG, options={"compile": True}))
    with pytest.raises(UserError, match=r"options\.shift: None, now 0"):
        store.cell("toy.tct", replace(CONFIG, options={"shift": 0}))


# The last one written wins.


@pytest.mark.parametrize("slow", [-HOUR, HOUR])
def test_a_later_verdict_counts_whatever_the_clocks_say(
    cell: Cell, slow: int, monkeypatch: pytest.MonkeyPatch
):
    """Each writer is another process's, on machines whose clocks differ by an hour, in turns."""
    now = time.time_ns()
    run = cell.path.parent
    for turn, outcome in enumerate(("failed", "timeout", "passed", "failed", "passed")):
        monkeypatch.setattr(time, "time_ns", lambda turn=turn: now + turn + slow * (turn % 2))
        mine = Store.open(run)["toy.tct"]
        with mine.writer() as writer:
            writer.samples([replace(draw("a", 0), text=f"draft {turn}")])
            writer.grades(GRADER, [(KEY, Grade(outcome))])  # type: ignore[arg-type]
        reader = Store.open(run)["toy.tct"]
        assert reader.grades(GRADER)[KEY].outcome == outcome
        assert [s.text for s in reader.samples()] == [f"draft {turn}"]


def test_a_new_writer_comes_after_every_number_that_is_there(cell: Cell):
    with cell.writer() as writer:
        writer.grades(GRADER, [(KEY, Grade("failed"))])
    (file,) = cell.path.glob("grades-*")
    fast = time.time_ns() + HOUR
    file.rename(file.with_name(f"{file.name.rsplit('-', 1)[0]}-{fast:020d}.7.0123abcd.jsonl.zst"))
    with Store.open(cell.path.parent)["toy.tct"].writer() as writer:
        writer.grades(GRADER, [(KEY, Grade("passed"))])
    assert cell.grades(GRADER)[KEY].passed


def test_concurrent_writers_use_different_files(cell: Cell):
    run = cell.path.parent
    writers = [Store.open(run)["toy.tct"].writer() for _ in range(3)]
    for index, writer in enumerate(writers):
        writer.samples([draw("a", index)])
        writer.close()
    assert sorted(s.index for s in cell.samples()) == [0, 1, 2]


# Damage.


def test_damaged_cells_are_named(tmp_path: Path):
    store = Store.create(tmp_path)
    for name in ("whole", "bare", "unread", "empty", "emptied"):
        evaluate(store.cell(name, CONFIG), 1)
    (tmp_path / "bare" / "cell.json").unlink()
    (tmp_path / "unread" / "cell.json").write_text("{")
    for file in (tmp_path / "empty").glob("samples-*"):
        file.unlink()
    for file in (tmp_path / "emptied").iterdir():
        file.unlink()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "passk.md").write_text("a table")
    found = store.damage()
    assert sorted(found) == ["bare", "emptied", "empty", "unread"]
    assert "has no cell.json" in found["bare"]
    assert "has no cell.json" in found["emptied"]
    assert "cannot be read" in found["unread"]
    assert "has no samples" in found["empty"]


def test_a_cell_without_its_configuration_is_damaged_not_unknown(cell: Cell):
    evaluate(cell, 1)
    (cell.path / "cell.json").unlink()
    store = Store.open(cell.path.parent)
    for ask in (lambda: store["toy.tct"], lambda: store.cell("toy.tct", CONFIG)):
        with pytest.raises(UserError, match=r"toy\.tct has no cell\.json.*restore it"):
            ask()


def test_leftovers_of_a_kill_are_removed_at_the_next_start(tmp_path: Path):
    """The process dies between writing the cell's folder and giving it its name."""
    code = """
import os, sys
from pathlib import Path
from tests.helpers.store_worker import CONFIG
from twotemp.store import Store

store = Store.create(sys.argv[1])
Path.replace = Path.rename = lambda self, target: os._exit(9)
store.cell("toy.tct", CONFIG)
"""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=root, check=False)
    assert list(tmp_path.glob(".tmp-*"))
    assert Store.open(tmp_path).cells() == []
    Store.create(tmp_path).cell("toy.tct", CONFIG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "toy.tct"]


def test_a_read_only_folder_is_reported(cell: Cell, monkeypatch: pytest.MonkeyPatch):
    def read_only(path, flags, *rest):
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return opened(path, flags, *rest)

    opened = os.open
    monkeypatch.setattr(os, "open", read_only)
    with (
        cell.writer() as writer,
        pytest.raises(UserError, match=r"Read-only file system; choose a folder that you may write to"),
    ):
        writer.samples([draw("a", 0)])


def test_an_unreadable_file_is_reported(cell: Cell, monkeypatch: pytest.MonkeyPatch):
    evaluate(cell, 1)

    def forbidden(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(
        UserError, match=r"cannot read .*samples-.*Permission denied; .*change its permissions"
    ):
        list(cell.samples())


def test_samples_are_not_mixed_into_another_kind_of_run(tmp_path: Path):
    claim(tmp_path, "grpo", {"task": "toy", "settings": {}})
    before = (tmp_path / "run.json").read_text()
    with pytest.raises(UserError, match=r"is a run of `twotemp grpo`; a run of `twotemp eval` is needed"):
        Store.create(tmp_path)
    assert (tmp_path / "run.json").read_text() == before
