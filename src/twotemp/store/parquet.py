"""Export a run as one Parquet file, for pandas, polars, duckdb and others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from twotemp.errors import UserError
from twotemp.folders import replacing
from twotemp.serialization import json_text
from twotemp.store.rows import row_key
from twotemp.store.run import Cell, Store

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
