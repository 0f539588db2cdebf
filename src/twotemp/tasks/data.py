"""Problems from files: the rows of published benchmarks.

Rows come from the hub or a local file and must be the published ones. Rows are compared, not bytes: the same
questions come as parquet or jsonl, compressed or not.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from twotemp.errors import UserError, unknown
from twotemp.records import Problem
from twotemp.serialization import read_yaml, record
from twotemp.tasks.base import ProblemSet, Task

DataRow = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class PublishedFile:
    """One file of a benchmark as its authors published it."""

    file: str  # its path on the hub, or where else it is published
    fields: tuple[str, ...]
    rows: int
    hub: str = ""  # dataset id; "": not on the hub
    sha256: str = ""  # of the published jsonl file; "": not known
    rows_sha256: str = ""  # of its rows, `digest_rows`; "": not known, compare the bytes of the file
    key: str | None = None  # the field that identifies a row; None: its index in the file
    keys: range | None = None  # the keys of this split, if there are files with all splits
    split: str = "test"


def _published_files() -> dict[str, PublishedFile]:
    path = Path(__file__).with_name("published.yaml")
    files = {}
    for name, entry in read_yaml(path, "list of published files").items():
        keys = {"keys": range(*entry["keys"])} if "keys" in entry else {}
        files[name] = record(
            PublishedFile, {**entry, "fields": tuple(entry["fields"]), **keys}, f"{path}, {name}"
        )
    return files


PUBLISHED = _published_files()


@dataclass(frozen=True)
class Subset:
    """Some rows of a published file: their indices, as a function of the number of rows."""

    published: PublishedFile
    indices: Callable[[int], Sequence[int]] = range


@dataclass(frozen=True)
class LoadedRows:
    """The rows of a data file."""

    rows: list[DataRow]
    digest: str  # the published sha256 if the rows are the published ones, else that of the file
    source: str


def load_rows(published: PublishedFile, data: Path | None, allow_altered: bool = False) -> LoadedRows:
    """Load the rows in file order; rows that differ from the published ones raise a UserError unless allowed."""
    path = _download(published) if data is None else Path(data)
    source = published.hub if data is None else path.name
    rows = _read(path)
    _check_fields(published, path, rows)
    rows = [
        {name: row[name] for name in published.fields}
        for row in rows
        if published.key is None or published.keys is None or row[published.key] in published.keys
    ]
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    digest, expected = (
        (digest_rows(rows), published.rows_sha256) if published.rows_sha256 else (content, published.sha256)
    )
    if len(rows) == published.rows and digest == (expected or digest):
        return LoadedRows(rows, published.sha256 or content, source)
    if not allow_altered:
        raise UserError(
            f"{path} is not {published.hub or published.file} as published: {len(rows)} rows (published: "
            f"{published.rows}) with sha256 {digest}, expected {expected or 'any'}. Use the published file, or "
            "accept these rows with --allow-altered-data (allow_altered=True)"
        )
    return LoadedRows(rows, content, f"{source} (altered)")


def pick(kind: str, name: str | None, choices: Mapping[str, T]) -> T:
    """Return the choice of this name; the first if the name is None."""
    if name is None:
        return next(iter(choices.values()))
    if name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


# Maps a row to the text of the user's turn and the beginning of the assistant's turn.
PromptTemplate = Callable[[DataRow], tuple[str, str]]


def benchmark(
    name: str,
    description: str,
    grader: str,
    published: PublishedFile,
    prompts: Mapping[str, PromptTemplate],
    reference: Callable[[DataRow], Mapping[str, Any]],
    subsets: Mapping[str, Subset] | None = None,
) -> Task:
    """Return a task on the rows of published files.

    Args:
        name: Of the task.
        description: Of the task.
        grader: The name of its grader.
        published: The file of its questions.
        prompts: Prompt templates by name, the default first.
        reference: Returns what the grader needs of a row.
        subsets: By name, the default first; None: all rows of the file.
    """
    named = subsets or {"full": Subset(published)}

    def load(
        data: Path | None, prompt: str | None, subset: str | None, allow_altered: bool = False
    ) -> ProblemSet:
        template = pick(f"prompt of {name}", prompt, prompts)
        part = pick(f"subset of {name}", subset, named)
        file = part.published
        loaded = load_rows(file, data, allow_altered)
        indices = part.indices(len(loaded.rows))
        if max(indices) >= len(loaded.rows):
            raise UserError(
                f"subset {subset!r} needs all {file.rows} questions of {name}; the file has {len(loaded.rows)}"
            )
        problems = []
        for index in indices:
            row = loaded.rows[index]
            text, prefill = template(row)
            key = f"{name}/{file.split}/{index}" if file.key is None else str(row[file.key])
            problems.append(Problem(key, name, text, reference(row), prefill))
        return ProblemSet(tuple(problems), loaded.digest, loaded.source)

    return Task(name, description, grader, 256, load, prompts=tuple(prompts), subsets=tuple(named))


def digest_rows(rows: Sequence[DataRow]) -> str:
    """Return the sha256 of the rows as JSON lines with sorted keys: the same for every file format."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":")) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _download(published: PublishedFile) -> Path:
    if not published.hub:
        raise UserError(f"give the file {published.file} with --data; it is not on the hub")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(published.hub, published.file, repo_type="dataset"))
    except Exception as error:  # no network, no cache, a proxy: the hub's client has an exception for each
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot get {published.file} of the dataset {published.hub} from the hub ({reason}); connect, or give a "
            f"file with the fields {', '.join(published.fields)}: --data FILE (.jsonl, .json, .parquet, also .gz)"
        ) from error


def _read(path: Path) -> list[DataRow]:
    if not path.is_file():
        raise UserError(f"there is no data file {path}; correct --data, or leave it out to use the hub")
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        if path.suffixes[:1] == [".csv"]:
            return [dict(row) for row in csv.DictReader(io.StringIO(text))]
        if text.lstrip().startswith("["):
            rows: list[DataRow] = json.loads(text)
            return rows
        # Not splitlines: it also splits at characters that may occur in a JSON string.
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, EOFError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} cannot be read ({error}); it must be .jsonl, .json, .csv or .parquet, or one of the first three "
            "as .gz"
        ) from error


def _read_parquet(path: Path) -> list[DataRow]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(
            "reading parquet needs pyarrow: pip install 'twotemp[analysis]', or give a .jsonl file with --data"
        ) from error
    rows: list[DataRow] = parquet.read_table(path).to_pylist()
    return rows


def _check_fields(published: PublishedFile, path: Path, rows: list[DataRow]) -> None:
    if not rows:
        raise UserError(f"{path} is empty; give the complete file, or leave --data out to use the hub")
    seen: dict[Any, int] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: not a JSON object; {published.hub} has one per question")
        if missing := [name for name in published.fields if name not in row]:
            raise UserError(
                f"{path}, row {number}: no field {', '.join(missing)} (there are {', '.join(row)}); "
                f"use the field names of {published.hub}: {', '.join(published.fields)}"
            )
        if published.key is not None and (first := seen.setdefault(row[published.key], number)) != number:
            raise UserError(
                f"{path}: rows {first} and {number} have the same {published.key} {row[published.key]!r}; remove one"
            )
