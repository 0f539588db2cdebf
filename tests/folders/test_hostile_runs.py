"""Run directories from other people: whatever they contain, readers report damage and neither crash nor hang."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.helpers.store_worker import CONFIG, GRADER, evaluate
from twotemp.analysis import survey
from twotemp.cli.trace import _read_samples
from twotemp.errors import UserError
from twotemp.evaluation.plan import policies_in, read_experiment
from twotemp.evaluation.work import DATA, IMPORTED, imported, problems_of
from twotemp.folders import expect, read_log
from twotemp.folders.files import SUFFIX, TEMPORARY, FrameFile, read_batches, sweep
from twotemp.report.run_data import _natural
from twotemp.report.tuning import STANDINGS
from twotemp.report.viewer import _race_blocks
from twotemp.store import Cell, Store, export

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    cell = Store.create(tmp_path / "run").cell("toy.tct", CONFIG)
    evaluate(cell, 1)
    return cell


def file_of(cell: Cell, kind: str) -> Path:
    return next(cell.path.glob(f"{kind}-*{SUFFIX}"))


def compress(lines: list[bytes]) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(line + b"\n" for line in lines))


def change(path: Path, name: str, value: object) -> None:
    """Change one field of the first row of a file; `...` removes it."""
    rows = [row for batch in read_batches(path) for row in batch]
    rows[0][name] = value
    if value is ...:
        del rows[0][name]
    path.write_bytes(compress([json.dumps(row, separators=(",", ":")).encode() for row in rows]))


def read_everything(cell: Cell) -> None:
    """Read a cell in all the ways that commands do."""
    list(cell.samples())
    cell.table(GRADER)
    cell.scores("rm 1")


# --- decompression bombs ------------------------------------------------------------------------------------


def test_a_small_file_that_expands_to_gigabytes_is_damaged(tmp_path: Path):
    """In a process with too little memory for the text."""
    file = tmp_path / f"samples-bomb{SUFFIX}"
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
    zeros = bytes(1 << 26)
    with file.open("wb") as out:
        for _ in range(40):  # 2.7 GB
            out.write(compressor.compress(zeros))
        out.write(compressor.flush())
    assert file.stat().st_size < 300_000
    code = (
        "import sys; from pathlib import Path; from twotemp.errors import UserError\n"
        "from twotemp.folders.files import read_batches\n"
        "try: list(read_batches(Path(sys.argv[1])))\n"
        "except UserError as error: print(error)"
    )
    limit = 1 << 30
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert "is damaged at byte 0" in done.stdout


def test_a_batch_longer_than_a_frame_is_written_as_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("twotemp.folders.files.MAX_FRAME", 1000)
    rows = [{"number": number, "text": "x" * 300} for number in range(10)]
    file = FrameFile(tmp_path / f"a{SUFFIX}")
    file.append(rows)
    file.close()
    batches = list(read_batches(tmp_path / f"a{SUFFIX}"))
    assert [row for batch in batches for row in batch] == rows
    assert max(map(len, batches)) == 3


# --- rows ---------------------------------------------------------------------------------------------------

SAMPLE_CHANGES = [
    *(("request", value) for value in (["q"], {"q": 1}, None, 3, ...)),
    *(("seed", value) for value in ([1], {}, "0", None, 10**30, ...)),
    *(("index", value) for value in ([1], 1.5, 10**30)),
    *(("nfe", value) for value in ("many", None, [1], 10**30)),
    *(("seconds", value) for value in ("long", None, [])),
    *(("text", value) for value in (5, ["a"])),
    *(("tokens", value) for value in (None, 3, "abc", [[1]], ["a"], [10**30], [1])),
    *(("positions", value) for value in ([], {"a": 1})),
    *(("trace", value) for value in ([], 5, {"steps": 3}, {"steps": [], "confidence": [], "entropy": []})),
    ("more", 1),
]


@pytest.mark.parametrize(("name", "value"), SAMPLE_CHANGES, ids=[f"{n}={v!r:.20}" for n, v in SAMPLE_CHANGES])
def test_a_sample_with_a_wrong_field_is_damage(cell: Cell, name: str, value: object):
    change(file_of(cell, "samples"), name, value)
    with pytest.raises(UserError, match="is damaged"):
        read_everything(cell)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", [1]),
        ("outcome", "great"),
        ("outcome", ["passed"]),
        ("answer", 5),
        ("detail", None),
        ("rule", ...),
    ],
)
def test_a_grade_with_a_wrong_field_is_damage(cell: Cell, name: str, value: object):
    change(file_of(cell, "grades"), name, value)
    with pytest.raises(UserError, match="is damaged"):
        read_everything(cell)


@pytest.mark.parametrize("value", ["high", None, [1], float("nan")])
def test_a_score_that_is_not_a_number_is_damage(cell: Cell, value: object):
    key = next(cell.samples()).key
    with cell.writer() as writer:
        writer.scores("rm 1", [(key, 0.5)])
    change(file_of(cell, "scores"), "score", value)
    with pytest.raises(UserError, match="is damaged"):
        read_everything(cell)


@pytest.mark.parametrize("line", [DEEP, b"[]", b"5", b"null", b'"text"', b"\xff\xfe", b"{}"], ids=len)
def test_a_row_that_is_not_an_object_is_damage(cell: Cell, line: bytes):
    file_of(cell, "samples").write_bytes(compress([line]))
    with pytest.raises(UserError, match="is damaged"):
        read_everything(cell)


def test_a_damaged_cell_is_a_gap_of_the_report(cell: Cell):
    other = Store.open(cell.path.parent).cell("toy.other", CONFIG)
    evaluate(other, 1)
    change(file_of(cell, "samples"), "seed", [1])
    found = survey([cell.path.parent], GRADER)
    assert [graded.path for graded in found.cells] == [other.path]
    assert "is damaged" in found.gaps[0]


def test_a_damaged_row_is_not_exported(cell: Cell, tmp_path: Path):
    pytest.importorskip("pyarrow", reason="needs the extra: pip install 'twotemp[analysis]'")
    change(file_of(cell, "samples"), "tokens", "abc")
    with pytest.raises(UserError, match="is damaged"):
        export(cell.path.parent, tmp_path / "run.parquet")
    assert not (tmp_path / "run.parquet").exists()


# --- configurations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", ["toy"]),
        ("seed", "0"),
        ("options", [1]),
        ("options", 3),
        ("policy", []),
        ("length", float("nan")),
    ],
)
def test_a_wrong_configuration_is_damage(cell: Cell, name: str, value: object):
    path = cell.path / "cell.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(UserError, match="is damaged"):
        Store.open(cell.path.parent).cells()


def test_a_deeply_nested_configuration_is_refused(cell: Cell):
    (cell.path / "cell.json").write_bytes(DEEP)
    with pytest.raises(UserError, match="cannot be read"):
        Store.open(cell.path.parent).cells()


@pytest.mark.parametrize(
    "content", [b"[]", b'{"toy": 5}', b'{"toy": {"file": []}}', b'{"toy": {}}', DEEP], ids=len
)
def test_a_wrong_list_of_data_files_is_refused(cell: Cell, content: bytes):
    (cell.path.parent / DATA).write_bytes(content)
    with pytest.raises(UserError, match=r"data\.json (is damaged|cannot be read)"):
        problems_of(cell)


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"problems": [5]}', b'{"problems": [{"id": []}]}', DEEP])
def test_wrong_imported_problems_are_damage(tmp_path: Path, content: bytes):
    (tmp_path / IMPORTED).write_bytes(content)
    task = imported("toy", tmp_path)
    assert task is not None
    with pytest.raises(UserError, match="is damaged"):
        task.problems()


# --- FIFOs: opening one would wait for its writer ---------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["samples", "grades"])
def test_a_fifo_in_place_of_rows_is_damage(cell: Cell, kind: str):
    file = file_of(cell, kind)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match="is not a regular file"):
        read_everything(cell)


@pytest.mark.timeout(20)
def test_a_fifo_in_place_of_a_description_is_refused(cell: Cell):
    run = cell.path.parent
    (cell.path / "cell.json").unlink()
    os.mkfifo(cell.path / "cell.json")
    with pytest.raises(UserError, match="not a regular file"):
        Store.open(run).cells()
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    with pytest.raises(UserError, match="not a regular file"):
        expect(run, "evaluation")
    os.mkfifo(run / "log.jsonl")
    with pytest.raises(UserError, match="not a regular file"):
        read_log(run / "log.jsonl")


# --- links, names and other files -------------------------------------------------------------------------------


def test_nothing_is_removed_through_a_link_or_for_an_impossible_process(tmp_path: Path):
    """A run that someone packed may hold links, and temporary files of processes with any number."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    for folder in (outside / f"{TEMPORARY}theirs", run):
        folder.mkdir(parents=True)
    os.utime(outside / f"{TEMPORARY}theirs", (0, 0))
    (run / "cell").symlink_to(outside)
    (run / f"{TEMPORARY}{platform.node()[:64]}.{10**30}-{'0' * 8}").touch()
    sweep(run)
    assert (outside / f"{TEMPORARY}theirs").exists()


def test_a_question_with_thousands_of_digits_can_be_sorted():
    names = ["t/10", "t/9", "t/" + "9" * 5000, "t/x", "t"]
    assert sorted(names, key=_natural) == ["t", "t/9", "t/10", "t/" + "9" * 5000, "t/x"]


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"standings": [5]}', '{"standings": [{"candidate": "x"}]}', "["]
)
def test_a_wrong_race_is_damage(tmp_path: Path, content: str):
    (tmp_path / STANDINGS).write_text(content)
    with pytest.raises(UserError, match=r"cannot be read|unknown policy"):
        _race_blocks(tmp_path)


def test_a_deeply_nested_sample_is_damage(tmp_path: Path):
    (tmp_path / "samples.jsonl").write_bytes(DEEP)
    with pytest.raises(UserError, match="line 1 is not a sample"):
        _read_samples(tmp_path / "samples.jsonl")


LAUGHS = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    "text",
    [
        f"n: {'[' * 600}{']' * 600}",
        "n: 2024-13-45",
        "n: !!int x",
        "n: !!timestamp x",
        f"n: {'9' * 5000}",
        "n: !!python/object/apply:os.getpid []",
        "a0: &a0 [x]\n" + LAUGHS + "policies: *a11\nn: *a11",
    ],
    ids=range(7),
)
@pytest.mark.timeout(20)
def test_wrong_yaml_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "tuned.yaml"
    file.write_text(text)
    for read in (policies_in, read_experiment):
        with pytest.raises(UserError, match=r"cannot be read as YAML|has an alias") as raised:
            read(file)
        assert len(str(raised.value)) < 500
