"""The store must never lose a whole batch, never let half of one in, and never mix two configurations."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.killing import kill_at_random
from tests.helpers.store_cells import cell, expected, rows
from tests.helpers.store_worker import CONFIG, GRADER, QUESTIONS, draw, evaluate, judge
from twotemp import metrics
from twotemp.errors import UserError
from twotemp.folders.files import FrameFile, read_batches
from twotemp.records import Grade
from twotemp.store import Cell, Config, Key, Store, export

__all__ = ["cell"]  # the fixture

ROOT = Path(__file__).resolve().parents[2]


def worker(run: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.helpers.store_worker", str(run), *map(str, arguments)]


# --- writing and reading --------------------------------------------------------------------------------------


def test_samples_come_back_as_they_were(cell: Cell):
    samples = [draw(q, i) for q in QUESTIONS for i in range(3)]
    samples[0] = replace(samples[0], trace=None, text="")
    canvas = replace(
        samples[1].trace, accepted=tuple(range(-1, len(samples[1].tokens) - 1))
    )  # of a model without masks
    samples[1] = replace(samples[1], trace=canvas)
    with cell.writer() as writer:
        writer.samples(samples[:10])
        writer.samples(samples[10:])
    assert list(cell.samples()) == samples


def test_infinite_temperature_survives(tmp_path: Path):
    policy = replace(CONFIG.policy, name="random", t_pos=math.inf)
    config = replace(CONFIG, policy=policy)
    cell = Store.create(tmp_path).cell("toy.random", config)
    with cell.writer() as writer:
        writer.samples([draw("a", 0, config)])
    again = Store.open(tmp_path)["toy.random"]
    assert again.config == config
    assert next(again.samples()).policy.t_pos == math.inf
    assert "Infinity" not in (again.path / "cell.json").read_text()


def test_missing_lists_only_samples_that_are_not_stored(cell: Cell):
    assert cell.missing(["a", "b"], range(2)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    with cell.writer() as writer:
        writer.samples([draw("a", 1), draw("b", 0)])
    assert cell.missing(["a", "b"], range(2)) == [("a", 0), ("b", 1)]
    assert cell.missing(["a"], range(3)) == [("a", 0), ("a", 2)]


def test_a_larger_n_adds_only_what_is_missing(cell: Cell):
    evaluate(cell, 2)
    before = {path: path.read_bytes() for path in cell.path.iterdir()}
    evaluate(cell, 2)
    assert set(before) == set(cell.path.iterdir())
    evaluate(cell, 4)
    assert rows(cell) == expected(4)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert sum(len(batch) for path in cell.path.glob("samples-*") for batch in read_batches(path)) == 24


def test_the_last_writer_wins(cell: Cell):
    with cell.writer() as first, cell.writer() as second:
        second.samples([replace(draw("a", 0), text="new")])
        first.samples([replace(draw("a", 0), text="old"), draw("a", 1)])
        key = Key("a", 0, CONFIG.seed)
        first.grades(GRADER, [(key, Grade("failed"))])
        first.grades(GRADER, [(key, Grade("passed"))])
        assert cell.grades(GRADER)[key].passed
        second.grades(GRADER, [(key, Grade("timeout"))])
    assert {s.index: s.text for s in cell.samples()}[0] == "new"
    assert len(list(cell.samples())) == 2
    assert cell.grades(GRADER)[key].outcome == "timeout"


def test_one_writer_does_not_write_a_sample_twice(cell: Cell):
    with cell.writer() as writer:
        with pytest.raises(UserError, match="drawn twice"):
            writer.samples([draw("a", 0), draw("a", 0)])
        writer.samples([draw("a", 0)])
        with pytest.raises(UserError, match="drawn twice"):
            writer.samples([draw("a", 0)])


def test_grades_and_scores_are_kept_separately(cell: Cell):
    key = Key("a", 0, CONFIG.seed)
    with cell.writer() as writer:
        writer.samples([draw("a", 0)])
        writer.grades("maths-2 (math-verify 0.9.0)", [(key, Grade("passed", "1/2", "boxed"))])
        writer.grades("d1", [(key, Grade("failed", None, "", "no answer"))])
        writer.scores("nvidia/AceMath-7B-RM", [(key, -3.25)])
        with pytest.raises(UserError, match="nan"):
            writer.scores("nvidia/AceMath-7B-RM", [(key, math.nan)])
    assert cell.graders() == ["d1", "maths-2 (math-verify 0.9.0)"]
    assert cell.grades("maths-2 (math-verify 0.9.0)") == {key: Grade("passed", "1/2", "boxed")}
    assert cell.grades("d1")[key].detail == "no answer"
    assert cell.scorers() == ["nvidia/AceMath-7B-RM"]
    assert cell.scores("nvidia/AceMath-7B-RM") == {key: -3.25}
    assert cell.scores("other") == {}


def test_pending_samples_are_ungraded_or_were_never_graded(cell: Cell):
    samples = [draw("a", i) for i in range(4)]
    outcomes = ["passed", "ungraded", "timeout"]
    with cell.writer() as writer:
        writer.samples(samples)
        writer.grades(GRADER, [(s.key, Grade(o)) for s, o in zip(samples, outcomes)])  # type: ignore[arg-type]
    assert [s.index for s in cell.pending(GRADER)] == [1, 3]
    assert len(list(cell.pending("another"))) == 4


def test_the_table_fits_the_metrics(cell: Cell):
    evaluate(cell, 4)
    with cell.writer() as writer:
        writer.grades(GRADER, [(Key(QUESTIONS[0], 2, CONFIG.seed), Grade("ungraded"))])
        writer.samples([draw(QUESTIONS[1], 9)])
    table = cell.table(GRADER)
    assert table.questions == tuple(QUESTIONS)
    assert (table.ungraded, table.pending) == (1, 1)
    assert table.n.tolist() == [3, 4, 4, 4, 4, 4]
    assert table.index[0].tolist() == [0, 1, 3]
    for q, question in enumerate(QUESTIONS):
        samples = [draw(question, int(i)) for i in table.index[q]]
        assert table.passed[q].tolist() == [judge(s).passed for s in samples]
        assert table.answers[q] == tuple(judge(s).answer for s in samples)
        assert table.nfe[q].tolist() == [s.nfe for s in samples]
        assert table.forwards[q].tolist() == [s.forwards for s in samples]
        assert table.tokens[q].tolist() == [8] * len(samples)
    values = metrics.pass_at_k(table.n, table.correct, [1, 4])
    assert np.isnan(values[0, 1])
    assert values[1:, 0] == pytest.approx([p.mean() for p in table.passed[1:]])


def test_a_table_without_grades_names_the_fix(cell: Cell):
    evaluate(cell, 1)
    with pytest.raises(
        UserError, match=r"no grades by 'd1' \(there are: toy-grader 1.0\); run `twotemp regrade"
    ):
        cell.table("d1")


# --- torn, damaged, foreign -----------------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_gives_its_whole_batches(tmp_path: Path):
    path = tmp_path / "a.jsonl.zst"
    batches = [
        [{"i": i, "text": "x" * i} for i in range(3)],
        [{"i": 9}],
        [{"i": 4, "text": os.urandom(40).hex()}],
    ]
    ends = [0]
    file = FrameFile(path)
    for batch in batches:
        file.append(batch)
        ends.append(path.stat().st_size)
    file.close()
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends[1:])
        assert list(read_batches(path)) == batches[:whole], cut


def test_batches_larger_than_the_read_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("twotemp.folders.files._PIECE", 7)
    file = FrameFile(tmp_path / "a.jsonl.zst")
    batches = [[{"text": os.urandom(50).hex()}] for _ in range(5)]
    for batch in batches:
        file.append(batch)
    file.close()
    assert list(read_batches(tmp_path / "a.jsonl.zst")) == batches


@pytest.mark.parametrize("place", [0.0, 0.4, 0.9])
def test_damage_is_an_error_that_names_the_cut(cell: Cell, place: float):
    with cell.writer() as writer:
        for i in range(6):
            writer.samples([draw("a", i)])
    (path,) = cell.path.glob("samples-*")
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"damaged at byte (\d+), after (\d+) whole batches") as caught:
        list(cell.samples())
    command = str(caught.value).split("`")[1]
    whole = int(str(caught.value).split(" whole batches")[0].split()[-1])
    subprocess.run(command, shell=True, check=True)  # the fix the message names
    assert [s.index for s in cell.samples()] == list(range(whole))
    evaluate(cell, 2)
    assert not cell.missing(QUESTIONS, range(2))


def test_a_file_of_another_run_is_not_mixed_in(tmp_path: Path):
    one = Store.create(tmp_path / "one").cell("toy", CONFIG)
    other = Store.create(tmp_path / "other").cell("toy", replace(CONFIG, length=16))
    with one.writer() as writer:
        writer.samples([draw("a", 0)])
    shutil.copy(next(one.path.glob("samples-*")), other.path)
    with pytest.raises(UserError, match="belongs to another configuration"):
        list(other.samples())
    twin = Store.create(tmp_path / "twin").cell("toy", CONFIG)  # but runs of one configuration can be merged
    shutil.copy(next(one.path.glob("samples-*")), twin.path)
    assert list(twin.samples()) == list(one.samples())


def test_foreign_folders_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"no run\.json"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="something other than a run"):
        Store.create(tmp_path)
    with pytest.raises(UserError, match="something other than a run"):
        Store.create(tmp_path / "notes.txt")
    for content, message in [
        ('{"format": "other"}', "not written by twotemp"),
        ("[1]", "not written by twotemp"),
        ("{", "cannot be read"),
        ('{"format": "twotemp run", "version": 99, "twotemp": "9.9"}', "by twotemp 9.9, in another format"),
    ]:
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(UserError, match=message):
            Store.create(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("change", ["{", "{}", '{"task": "x", "surprise": 1}'])
def test_a_damaged_configuration_is_named(cell: Cell, change: str):
    (cell.path / "cell.json").write_text(change)
    with pytest.raises(UserError, match=r"cell\.json"):
        Store.open(cell.path.parent).cells()


def test_unknown_cells_name_the_nearest(cell: Cell):
    with pytest.raises(UserError, match=r"did you mean 'toy\.tct'"):
        Store.open(cell.path.parent)["toy.tlc"]


# --- full disks, kills, several processes ---------------------------------------------------------------------


def test_a_full_disk_loses_nothing_and_the_run_continues(cell: Cell, monkeypatch: pytest.MonkeyPatch):
    """Half of a batch fits, then the disk is full; later there is room again, for the same writer."""
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 100:
            return real(fd, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with cell.writer() as writer:
        writer.samples([draw("a", 0)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(UserError, match=r"No space left on device.*free some space"):
                writer.samples([draw("a", 1), draw("a", 2)])
        assert [s.index for s in cell.samples()] == [0]
        writer.samples([draw("a", 2)])
    assert [s.index for s in cell.samples()] == [0, 2]


def test_ctrl_c_while_writing_leaves_no_half_batch(cell: Cell, monkeypatch: pytest.MonkeyPatch):
    real = os.write

    def interrupted(fd: int, data: bytes) -> int:
        real(fd, data[:50])
        raise KeyboardInterrupt

    with cell.writer() as writer:
        writer.samples([draw("a", 0)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.samples([draw("a", 1)])
        writer.samples([draw("a", 1)])
    assert [s.index for s in cell.samples()] == [0, 1]


def test_a_real_limit_on_file_size(tmp_path: Path):
    """The kernel refuses to write beyond 4 kB; the worker ends with our message, and a second one finishes."""
    code = """
import resource, sys
from tests.helpers.store_worker import CONFIG, evaluate
from twotemp.errors import UserError
from twotemp.store import Store

cell = Store.create(sys.argv[1]).cell("toy.tct", CONFIG)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    evaluate(cell, 8)
except UserError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    cell = Store.open(tmp_path)["toy.tct"]
    stored = rows(cell)
    assert 0 < len(stored) < 48
    assert all(path.stat().st_size <= 4096 for path in cell.path.iterdir())
    evaluate(cell, 8)
    assert rows(cell) == expected(8)


def test_killed_twenty_times_it_equals_an_uninterrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_processes: None
):
    monkeypatch.chdir(ROOT)
    run, n = tmp_path / "killed", 60
    hits = kill_at_random(worker(run, n), kills=20, longest=0.05, ready="ready", seed=1)
    subprocess.run(worker(run, n), check=True, capture_output=True)
    subprocess.run(worker(tmp_path / "whole", n), check=True, capture_output=True)
    killed, whole = (Store.open(tmp_path / name)["toy.tct"] for name in ("killed", "whole"))
    assert hits >= 3
    assert rows(killed) == rows(whole) == expected(n)
    assert not list(killed.pending(GRADER))


def test_several_processes_write_one_cell(tmp_path: Path, forked_processes: None):
    processes = [
        subprocess.Popen(worker(tmp_path / "run", 20, shard, 4), cwd=ROOT, stdout=subprocess.DEVNULL)
        for shard in range(4)
    ]
    assert [p.wait() for p in processes] == [0] * 4
    cell = Store.open(tmp_path / "run")["toy.tct"]
    assert rows(cell) == expected(20)
    assert len(list(cell.path.glob("samples-*"))) == 4


def test_two_processes_that_disagree_cannot_both_make_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other process is first, between our look and our rename."""
    real = Path.replace
    other = replace(CONFIG, length=16)
    store = Store.create(tmp_path)

    def late(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", real)
        store.cell("toy", other)
        return real(self, target)

    monkeypatch.setattr(Path, "replace", late)
    with pytest.raises(UserError, match="a cell with other settings"):
        store.cell("toy", CONFIG)
    assert store["toy"].config == other
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "toy"]


# --- export ---------------------------------------------------------------------------------------------------


def test_export_has_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra: pip install 'twotemp[analysis]'")
    monkeypatch.setattr("twotemp.store.run._GROUP", 7)
    store = Store.create(tmp_path / "run")
    cell = store.cell("toy.tct", CONFIG)
    evaluate(cell, 3)
    store.cell("toy.empty", replace(CONFIG, seed=1))
    with cell.writer() as writer:
        writer.grades("second", [(Key(QUESTIONS[0], 0, CONFIG.seed), Grade("failed"))])
        writer.scores("rm", [(Key(QUESTIONS[0], 0, CONFIG.seed), 0.5)])
    assert export(tmp_path / "run", tmp_path / "run.parquet") == 18
    table = pq.read_table(tmp_path / "run.parquet")
    found = {(r["question"], r["index"]): r for r in table.to_pylist()}
    for (question, index), row in found.items():
        sample = draw(question, index)
        assert (row["text"], tuple(row["tokens"]), row["nfe"]) == (sample.text, sample.tokens, sample.nfe)
        assert tuple(row["trace"]["confidence"]) == sample.trace.confidence
        assert (row["cell"], row["policy"], row["model"]) == ("toy.tct", "tct", "tiny")
    first = found[QUESTIONS[0], 0]
    assert {g["grader"]: g["outcome"] for g in first["grades"]}["second"] == "failed"
    assert first["scores"] == [{"model": "rm", "score": 0.5}]
    configs = json.loads(table.schema.metadata[b"twotemp"])
    assert Config.from_dict(configs["toy.tct"]) == CONFIG
    assert not list(tmp_path.glob(".tmp*"))


def test_export_without_pyarrow_names_the_extra(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"twotemp\[analysis\]"):
        export(cell.path.parent, tmp_path / "x.parquet")
