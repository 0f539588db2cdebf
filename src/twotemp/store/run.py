"""A run on disk: raw samples first, then what graders and reward models say about them.

    RUN/run.json                                   what this folder is
    RUN/<cell>/cell.json                           the complete configuration of one (task, policy) cell
    RUN/<cell>/samples-<writer>.jsonl.zst          raw samples
    RUN/<cell>/grades-<grader>-<writer>.jsonl.zst  verdicts, by grader (name with version)
    RUN/<cell>/scores-<model>-<writer>.jsonl.zst   rewards, by reward model

A row's key is (cell's configuration hash, question, sample index, seed); where a key occurs twice the last one
written wins. Files are only ever added or appended to by the process that made them, so any number of processes
may write a run, also on several machines, while others read it.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from twotemp.errors import UserError, unknown
from twotemp.records import Grade, Sample
from twotemp.store.config import Config, Key
from twotemp.store.frames import FrameFile, disk_errors, read_batches, sync_folder, write_once
from twotemp.store.table import Table, build_table

FORMAT = {"format": "twotemp run", "version": 1}
_CELL_NAME = re.compile(r"[A-Za-z0-9][\w.,:=@+-]*")
_SUFFIX = ".jsonl.zst"


class Store:
    """A run folder: `Store.create` to write (a folder that exists is continued), `Store.open` to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | str) -> Store:
        path = Path(path)
        if not (path / "run.json").exists():
            if path.exists() and (not path.is_dir() or any(not _temporary(p) for p in path.iterdir())):
                raise UserError(f"{path} holds something else than a run; choose a new or an empty folder")
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"cannot make the folder {path}: {error.strerror}; choose another one"
                ) from error
            write_once(path / "run.json", FORMAT)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path | str) -> Store:
        path = Path(path)
        if not (path / "run.json").exists():
            raise UserError(f"{path} is not a run: it has no run.json; give the folder named by --out")
        found = _read_json(path / "run.json")
        if found.get("format") != FORMAT["format"]:
            raise UserError(f"{path / 'run.json'} was not written by twotemp; give the folder named by --out")
        if found.get("version") != FORMAT["version"]:
            raise UserError(
                f"{path} has store version {found.get('version')!r} and this twotemp reads {FORMAT['version']}; "
                f"install the twotemp that wrote it"
            )
        return cls(path)

    def cell(self, name: str, config: Config) -> Cell:
        """The cell of this name, made if need be. The same name with another configuration is an error."""
        if not _CELL_NAME.fullmatch(name):
            raise UserError(f"a cell's name must be letters, digits and any of . , : = @ + - _, not {name!r}")
        folder = self.path / name
        if not folder.exists():
            # The folder appears with its configuration inside or not at all; of two processes, one is first.
            draft = self.path / f".tmp-{uuid.uuid4().hex}"
            with disk_errors(draft):
                draft.mkdir()
                write_once(draft / "cell.json", config.to_dict())
                try:
                    draft.rename(folder)
                    sync_folder(self.path)
                except OSError:
                    (draft / "cell.json").unlink()
                    draft.rmdir()
                    if not folder.exists():
                        raise
        cell = self[name]
        if changes := config.differences(cell.config):
            raise UserError(
                f"{folder} holds samples of another configuration ({'; '.join(changes)}). Nothing was changed: use "
                f"the same settings to continue it, or another folder (--out) for the new ones"
            )
        return cell

    def cells(self) -> list[Cell]:
        return [
            self[p.parent.name] for p in sorted(self.path.glob("*/cell.json")) if not _temporary(p.parent)
        ]

    def __getitem__(self, name: str) -> Cell:
        path = self.path / name / "cell.json"
        if not path.exists():
            raise unknown(
                f"cell of {self.path}", name, [c.parent.name for c in self.path.glob("*/cell.json")]
            )
        try:
            return Cell(self.path / name, Config.from_dict(_read_json(path)))
        except (UserError, TypeError, KeyError) as error:
            raise UserError(f"{path} is damaged ({error}); restore it from a copy") from error


class Cell:
    """The samples of one (task, policy) cell, and what was said about them."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.name = path.name
        self.config = config

    def writer(self) -> Writer:
        return Writer(self)

    def samples(self) -> Iterator[Sample]:
        """Every sample once, read batch by batch; later writers first, in no other order."""
        return (Sample.from_dict(row) for row in self.sample_rows())

    def sample_rows(self) -> Iterator[dict[str, Any]]:
        """As `samples`, as plain data: `Sample.from_dict` of each row is the sample."""
        policy = self.config.policy.to_dict()
        for row in self._newest(json.loads):
            del row["written"]
            yield {**row, "policy": policy}

    def light_rows(self) -> Iterator[dict[str, Any]]:
        """Key, costs and text of every sample, without its tokens and trace: ten times faster to read."""
        return self._newest(_light)

    def missing(self, questions: Iterable[str], n: int) -> list[tuple[str, int]]:
        """(question, sample index) of what is still to draw for n samples a question, question by question."""
        have = {(row["request"], row["index"]) for row in self.light_rows()}
        return [(q, i) for q in questions for i in range(n) if (q, i) not in have]

    def _newest(self, parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        seen: set[Key] = set()
        # Newest file first: then the first row of a key is the last one written, as no file has a key twice.
        for path in reversed(self._files("samples")):
            for row in self._rows(path, parse):
                key = Key(row["request"], row["index"], row["seed"])
                if key not in seen:
                    seen.add(key)
                    yield row

    def graders(self) -> list[str]:
        """Names of the graders that judged samples of this cell."""
        return sorted({unquote(path.name.split("-")[1]) for path in self._files("grades")})

    def grades(self, grader: str) -> dict[Key, Grade]:
        return {
            _row_key(row): Grade(row["outcome"], row["answer"], row["rule"], row["detail"])
            for path in self._files("grades", grader)
            for row in self._rows(path)
        }

    def pending(self, grader: str) -> Iterator[Sample]:
        """Samples this grader has yet to judge: never seen (a run that was killed), or `ungraded` last time."""
        done = {key for key, grade in self.grades(grader).items() if grade.outcome != "ungraded"}
        return (sample for sample in self.samples() if Key.of(sample) not in done)

    def scorers(self) -> list[str]:
        """Names of the reward models that scored samples of this cell."""
        return sorted({unquote(path.name.split("-")[1]) for path in self._files("scores")})

    def scores(self, model: str) -> dict[Key, float]:
        return {
            _row_key(row): row["score"] for path in self._files("scores", model) for row in self._rows(path)
        }

    def table(self, grader: str) -> Table:
        """The judged samples as arrays, question by question."""
        if grader not in self.graders():
            known = ", ".join(self.graders()) or "none"
            raise UserError(
                f"{self.path} has no grades by {grader!r} (there are: {known}); "
                f"run `twotemp regrade {self.path.parent}`"
            )
        return build_table(self.light_rows(), self.grades(grader))

    def _files(self, kind: str, name: str | None = None) -> list[Path]:
        """Files of one kind, oldest writer first."""
        middle = "*" if name is None else _slug(name)
        return sorted(
            self.path.glob(f"{kind}-{middle}-*{_SUFFIX}" if kind != "samples" else f"samples-*{_SUFFIX}"),
            key=lambda path: path.name.rsplit("-", 1)[1],
        )

    def _rows(
        self, path: Path, parse: Callable[[bytes], dict[str, Any]] = json.loads
    ) -> Iterator[dict[str, Any]]:
        mine = self.config.hash
        for batch in read_batches(path, parse):
            for row in batch:
                if not isinstance(row, dict) or row.pop("cell", None) != mine:
                    raise UserError(
                        f"{path} belongs to another configuration than {self.path / 'cell.json'}; "
                        f"move the file back to its own run"
                    )
                yield row


class Writer:
    """Adds to a cell. Every call is one batch: on the disk, whole, when it returns."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        # Names sort by the time of opening (the last writer wins) and never meet.
        self._name = f"{time.time_ns():020d}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self._open: dict[str, FrameFile] = {}
        self._written: set[Key] = set()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def samples(self, samples: Iterable[Sample]) -> None:
        config = self._cell.config
        keys: set[Key] = set()
        rows = []
        for sample in samples:
            key = Key.of(sample)
            if sample.policy != config.policy or sample.seed != config.seed:
                raise UserError(
                    f"{key} was drawn with another policy or seed than cell {self._cell.name} has"
                )
            if key in self._written or key in keys:
                raise UserError(f"{key} of cell {self._cell.name} was drawn twice; draw what `missing` lists")
            keys.add(key)
            rows.append(_sample_row(sample))
        self._append("samples", rows)
        self._written |= keys

    def grades(self, grader: str, grades: Iterable[tuple[Key, Grade]]) -> None:
        self._append(f"grades-{_slug(grader)}", [{**k._asdict(), **asdict(g)} for k, g in grades])

    def scores(self, model: str, scores: Iterable[tuple[Key, float]]) -> None:
        rows = [{**k._asdict(), "score": float(s)} for k, s in scores]
        for row in rows:
            if not math.isfinite(row["score"]):
                raise UserError(
                    f"{model} scored sample {row['sample']} of {row['question']!r} with {row['score']}"
                )
        self._append(f"scores-{_slug(model)}", rows)

    def _append(self, kind: str, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        if kind not in self._open:
            self._open[kind] = FrameFile(self._cell.path / f"{kind}-{self._name}{_SUFFIX}")
        cell = self._cell.config.hash
        self._open[kind].append({"cell": cell, **row} for row in rows)


def _sample_row(sample: Sample) -> dict[str, Any]:
    """A sample as it is stored: without its policy, which is the cell's, and what is long at the end (`_light`)."""
    row = sample.to_dict()
    del row["policy"]
    long = {name: row.pop(name) for name in ("prompt", "positions", "tokens", "trace")}
    return {**row, "written": len(sample.tokens), **long}


def _light(line: bytes) -> dict[str, Any]:
    """A sample's row up to its long fields. The mark cannot stand inside a string: there, quotes are escaped."""
    return json.loads(line.partition(b',"prompt":')[0] + b"}")


def _row_key(row: dict[str, Any]) -> Key:
    return Key(row["question"], row["sample"], row["seed"])


def _slug(name: str) -> str:
    """A grader's or model's name as part of a file name that is split at dashes; `unquote` undoes it."""
    return quote(name, safe="").replace("-", "%2D")


def _temporary(path: Path) -> bool:
    return path.name.startswith(".tmp-")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} was not written by twotemp; give the folder named by --out")
    return data
