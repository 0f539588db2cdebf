"""Folders that outlive a process: whole files, logs that a kill cannot tear, and whose folder it is.

Everything is written beside its place, synced and renamed (`replacing`), or appended in whole pieces (`Log`,
`FrameFile`). run.json says what a folder holds and how it was made; `claim` continues it or refuses.
"""

from twotemp.folders.files import (
    disk_errors,
    make_folder,
    read_json,
    replacing,
    sweep,
    write_bytes,
    write_json,
    write_text,
)
from twotemp.folders.identity import KINDS, Kind, claim, continued, expect, kind_of, read_run, write_run
from twotemp.folders.log import Log, read_log
from twotemp.plain import from_json, json_text, to_json

__all__ = [
    "KINDS",
    "Kind",
    "Log",
    "claim",
    "continued",
    "disk_errors",
    "expect",
    "from_json",
    "json_text",
    "kind_of",
    "make_folder",
    "read_json",
    "read_log",
    "read_run",
    "replacing",
    "sweep",
    "to_json",
    "write_bytes",
    "write_json",
    "write_run",
    "write_text",
]
