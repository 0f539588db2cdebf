"""Run directories on disk: atomic files, logs that a kill cannot tear, and run.json.

Everything is written to a temporary path, synced and renamed (`replacing`), or appended in whole pieces (`Log`,
`FrameFile`). run.json records what a directory holds and how it was made; `claim` continues it or refuses. If a run
must have one writer, `only_writer` refuses a second one.
"""

from twotemp.folders.files import (
    Log,
    defer_interrupt,
    disk_errors,
    make_folder,
    only_writer,
    read_json,
    read_log,
    replacing,
    write_json,
    write_text,
)
from twotemp.folders.identity import KINDS, RunKind, claim, continued, expect, kind_of, read_run, write_run

__all__ = [
    "KINDS",
    "Log",
    "RunKind",
    "claim",
    "continued",
    "defer_interrupt",
    "disk_errors",
    "expect",
    "kind_of",
    "make_folder",
    "only_writer",
    "read_json",
    "read_log",
    "read_run",
    "replacing",
    "write_json",
    "write_run",
    "write_text",
]
