"""Append-only, resumable storage of samples, grades and scores; `run` documents the layout on disk."""

from twotemp.records import Key
from twotemp.store.config import Config
from twotemp.store.parquet import export
from twotemp.store.rows import row_key
from twotemp.store.run import Cell, Store, Writer
from twotemp.store.table import Table

__all__ = ["Cell", "Config", "Key", "Store", "Table", "Writer", "export", "row_key"]
