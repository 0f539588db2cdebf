"""Append-only, resumable storage of samples, grades and scores; `run` documents the layout on disk."""

from twotemp.records import Key
from twotemp.store.rows import Config, Table, row_key
from twotemp.store.run import Cell, Store, Writer, export

__all__ = ["Cell", "Config", "Key", "Store", "Table", "Writer", "export", "row_key"]
