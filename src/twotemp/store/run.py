"""A run on disk: raw samples, their grades and their rewards.

    RUN/run.json                                   the kind of run, and the format
    RUN/<cell>/cell.json                           the complete configuration of one (task, policy) cell
    RUN/<cell>/samples-<writer>.jsonl.zst          raw samples
    RUN/<cell>/grades-<grader>-<writer>.jsonl.zst  grades, by grader (name with version)
    RUN/<cell>/scores-<model>-<writer>.jsonl.zst   rewards, by reward model

A row's key is (request, index, seed) within its cell. If a key occurs twice, the row of the later writer counts.
Writers are numbered, not dated: each takes a higher number than all that it finds in the cell. Only the process that
created a file appends to it, so any number of processes, on several machines, may write a run while others read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from twotemp.errors import UserError, unknown
from twotemp.folders import claim, expect, read_json, replacing, write_json
from twotemp.folders.files import SUFFIX, FrameFile, is_temporary, next_number, read_batches, writer_name
from twotemp.folders.identity import differences, refuse
from twotemp.records import Grade, Key, Sample
from twotemp.serialization import json_text
from twotemp.store.rows import (
    Config,
    Table,
    build_table,
    digest,
    identity,
    parse_grade,
    parse_light,
    parse_sample,
    parse_score,
    row_key,
    sample_row,
)

_CELL = "cell.json"
_CELL_NAME = re.compile(r"[A-Za-z0-9][\w.,:=@+-]*")


class Store:
    """A run directory: `Store.create` to write (an existing run is continued), `Store.open` to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | str) -> Store:
        """Create a run, or continue the one in this directory."""
        claim(Path(path), "evaluation", {})
        return cls(Path(path))

    @classmethod
    def open(cls, path: Path | str) -> Store:
        """Open an existing run."""
        expect(Path(path), "evaluation")
        return cls(Path(path))

    def cell(self, name: str, config: Config) -> Cell:
        """Return the cell of this name, creating it if necessary.

        A cell of the same name with another configuration raises a UserError.
        """
        if not _CELL_NAME.fullmatch(name):
            raise UserError(f"a cell's name must be letters, digits and any of . , : = @ + - _, not {name!r}")
        folder = self.path / name
        if not folder.exists():
            # The folder appears with its configuration inside or not at all; if two processes race, one wins.
            try:
                with replacing(folder) as draft:
                    draft.mkdir()
                    write_json(draft / _CELL, config.to_dict())
            except UserError:
                if not folder.exists():
                    raise
        cell = self[name]
        refuse(folder, "a cell", differences(identity(cell.config.to_dict()), identity(config.to_dict())))
        return cell

    def cells(self, without: Collection[str] = ()) -> list[Cell]:
        """Return all cells but those in `without`, which are damaged."""
        folders = [path.parent for path in sorted(self.path.glob(f"*/{_CELL}"))]
        return [self[f.name] for f in folders if f.name not in without and not is_temporary(f)]

    def damage(self) -> dict[str, str]:
        """Return the cells that cannot be reported: name -> what is wrong with them."""
        problems = {}
        for folder in sorted(
            path for path in self.path.iterdir() if path.is_dir() and not is_temporary(path)
        ):
            names = [path.name for path in folder.iterdir()]
            files = [name for name in names if name.endswith(SUFFIX)]
            if _CELL in names:
                try:
                    self[folder.name]
                except UserError as error:
                    problems[folder.name] = str(error)
                else:
                    if not any(name.startswith("samples-") for name in files):
                        problems[folder.name] = (
                            f"{folder} has no samples: run the same command again to draw them"
                        )
            elif files or not names:
                problems[folder.name] = self._no_configuration(folder)
        return problems

    def __getitem__(self, name: str) -> Cell:
        folder = self.path / name
        if not (folder / _CELL).exists():
            if folder.is_dir():
                raise UserError(self._no_configuration(folder))
            raise unknown(f"cell of {self.path}", name, [c.parent.name for c in self.path.glob(f"*/{_CELL}")])
        stored = read_json(folder / _CELL)
        try:
            return Cell(folder, Config.from_dict(stored), digest(identity(stored)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{folder / _CELL} is damaged ({error}); restore it from a copy") from error

    @staticmethod
    def _no_configuration(folder: Path) -> str:
        return (
            f"{folder} has no {_CELL}, so it is unknown how its samples were drawn: restore it from a copy, or "
            "remove the folder and run the same command again"
        )


class Cell:
    """The samples of one (task, policy) cell, with their grades and scores."""

    def __init__(self, path: Path, config: Config, config_digest: str) -> None:
        self.path = path
        self.name = path.name
        self.config = config
        self.config_digest = config_digest  # in every row, so that rows of another configuration are noticed
        self._last = 0

    def writer(self) -> Writer:
        """Return a writer whose rows replace those of all earlier writers."""
        self._last = max(self._last + 1, next_number(self.path))
        return Writer(self, self._last)

    def samples(self) -> Iterator[Sample]:
        """Yield every sample once, batch by batch: later writers first, otherwise unordered."""
        return (Sample.from_dict(row) for row in self.sample_rows())

    def sample_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the samples as JSON data for `Sample.from_dict`."""
        policy = self.config.policy.to_dict()
        for row in self._newest(parse_sample):
            del row["written"]
            yield {**row, "policy": policy}

    def light_rows(self) -> Iterator[dict[str, Any]]:
        """Yield key, costs and text of every sample, without tokens and trace: ten times faster to read."""
        return self._newest(parse_light)

    def missing(self, questions: Iterable[str], indices: Sequence[int]) -> list[tuple[str, int]]:
        """Return (question, sample index) of the samples that are still to draw, question by question."""
        have = {(row["request"], row["index"]) for row in self.light_rows()}
        return [(q, i) for q in questions for i in indices if (q, i) not in have]

    def _newest(self, parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        seen: set[Key] = set()
        # Newest file first: no file has a key twice, so the first row of a key is the last one written.
        for path in reversed(self._files("samples")):
            for row in self._rows(path, parse):
                key = row_key(row)
                if key not in seen:
                    seen.add(key)
                    yield row

    def graders(self) -> list[str]:
        """Return the names of the graders that graded samples of this cell."""
        return self._names("grades")

    def grades(self, grader: str) -> dict[Key, Grade]:
        """Return the grades by this grader."""
        return {
            row_key(row): Grade(row["outcome"], row["answer"], row["rule"], row["detail"])
            for path in self._files("grades", grader)
            for row in self._rows(path, parse_grade)
        }

    def pending(self, grader: str) -> Iterator[Sample]:
        """Yield the samples this grader has not graded: never seen (the run was killed), or `ungraded` last time."""
        done = {key for key, grade in self.grades(grader).items() if grade.outcome != "ungraded"}
        return (sample for sample in self.samples() if sample.key not in done)

    def scorers(self) -> list[str]:
        """Return the names of the reward models that scored samples of this cell."""
        return self._names("scores")

    def scores(self, model: str) -> dict[Key, float]:
        """Return the scores by this reward model."""
        return {
            row_key(row): row["score"]
            for path in self._files("scores", model)
            for row in self._rows(path, parse_score)
        }

    def table(self, grader: str) -> Table:
        """Return the graded samples as arrays, question by question."""
        if grader not in self.graders():
            known = ", ".join(self.graders()) or "none"
            raise UserError(
                f"{self.path} has no grades by {grader!r} (there are: {known}); "
                f"run `twotemp regrade {self.path.parent}`"
            )
        return build_table(self.light_rows(), self.grades(grader))

    def _names(self, kind: str) -> list[str]:
        return sorted({unquote(path.name.split("-")[1]) for path in self._files(kind)})

    def _files(self, kind: str, name: str | None = None) -> list[Path]:
        """Return the files of one kind, oldest writer first."""
        middle = "*" if name is None else _slug(name)
        return sorted(
            self.path.glob(f"{kind}-{middle}-*{SUFFIX}" if kind != "samples" else f"samples-*{SUFFIX}"),
            key=lambda path: path.name.rsplit("-", 1)[1],
        )

    def _rows(self, path: Path, parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for batch in read_batches(path, parse):
            for row in batch:
                if row.pop("cell", None) != self.config_digest:
                    raise UserError(
                        f"{path} belongs to another configuration than {self.path / _CELL}; "
                        f"move the file back to its own run"
                    )
                yield row


class Writer(AbstractContextManager["Writer"]):
    """Adds rows to a cell. Every call writes one batch, which is completely on disk when the call returns."""

    def __init__(self, cell: Cell, number: int) -> None:
        self._cell = cell
        self._name = writer_name(number)
        self._open: dict[str, FrameFile] = {}
        self._written: set[Key] = set()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def __contains__(self, key: Key) -> bool:
        """Return whether this writer has stored the sample."""
        return key in self._written

    def samples(self, samples: Iterable[Sample]) -> None:
        """Store samples."""
        config = self._cell.config
        keys: set[Key] = set()
        rows = []
        for sample in samples:
            key = sample.key
            if sample.policy != config.policy or sample.seed != config.seed:
                raise UserError(
                    f"{key} was drawn with another policy or seed than cell {self._cell.name} has"
                )
            if key in self or key in keys:
                raise UserError(f"{key} of cell {self._cell.name} was drawn twice; draw what `missing` lists")
            keys.add(key)
            rows.append(sample_row(sample))
        self._append("samples", rows)
        self._written |= keys

    def grades(self, grader: str, grades: Iterable[tuple[Key, Grade]]) -> None:
        """Store grades of samples."""
        self._append(f"grades-{_slug(grader)}", [{**k._asdict(), **asdict(g)} for k, g in grades])

    def scores(self, model: str, scores: Iterable[tuple[Key, float]]) -> None:
        """Store scores of samples."""
        rows = []
        for key, score in scores:
            if not math.isfinite(score):
                raise UserError(f"{model} scored {key} with {score}; check the reward model")
            rows.append({**key._asdict(), "score": float(score)})
        self._append(f"scores-{_slug(model)}", rows)

    def _append(self, kind: str, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        if kind not in self._open:
            self._open[kind] = FrameFile(self._cell.path / f"{kind}-{self._name}")
        self._open[kind].append({"cell": self._cell.config_digest, **row} for row in rows)


def _slug(name: str) -> str:
    """Return a name for a part of a file name that is split at dashes; `unquote` reverses it."""
    return quote(name, safe="").replace("-", "%2D")


_GROUP = 5000  # rows of a row group


def export(run: Path | str, path: Path | str) -> int:
    """Write all samples of a run with their grades and scores, one row per sample; return the number of rows.

    The configuration is in the columns `cell` to `fingerprint` and, complete, in the file's metadata (key
    `twotemp`). `grades` and `scores` are lists, as a sample may have been graded by several graders.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError("export needs pyarrow: pip install 'twotemp[analysis]'") from error
    cells = Store.open(run).cells()
    configs = json_text({cell.name: cell.config.to_dict() for cell in cells})
    schema = _schema(pa).with_metadata({"twotemp": configs})
    total = 0
    with (
        replacing(Path(path)) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for cell in cells:
            rows = _rows(cell)
            while group := list(islice(rows, _GROUP)):
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
                total += len(group)
    return total


def _schema(pa: Any) -> Any:
    text, small, real = pa.string(), pa.int32(), pa.float64()
    names = ("cell", "task", "policy", "model", "fingerprint", "question")
    grade = pa.struct([(name, text) for name in ("grader", "outcome", "answer", "rule", "detail")])
    trace = pa.struct(
        [
            ("steps", pa.list_(small)),
            ("confidence", pa.list_(real)),
            ("entropy", pa.list_(real)),
            ("edits", pa.list_(pa.list_(small))),
            ("accepted", pa.list_(small)),
        ]
    )
    return pa.schema(
        [(name, text) for name in names]
        + [("index", small), ("seed", pa.int64()), ("text", text), ("finish", text)]
        + [("nfe", small), ("forwards", small), ("processed", pa.int64()), ("seconds", real)]
        + [(name, pa.list_(small)) for name in ("prompt", "positions", "tokens")]
        + [("trace", trace), ("grades", pa.list_(grade))]
        + [("scores", pa.list_(pa.struct([("model", text), ("score", real)])))]
    )


def _rows(cell: Cell) -> Iterator[dict[str, Any]]:
    grades = {name: cell.grades(name) for name in cell.graders()}
    scores = {name: cell.scores(name) for name in cell.scorers()}
    config = cell.config
    shared = {"cell": cell.name, "task": config.task, "policy": config.policy.name}
    shared |= {"model": config.model, "fingerprint": config.fingerprint}
    for row in cell.sample_rows():
        key = row_key(row)
        yield {
            **row,
            **shared,
            "question": key.request,
            "grades": [{"grader": g, **vars(by[key])} for g, by in grades.items() if key in by],
            "scores": [{"model": m, "score": by[key]} for m, by in scores.items() if key in by],
        }
