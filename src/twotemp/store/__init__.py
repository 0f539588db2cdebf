"""Append-only, resumable storage of samples and of what was said about them; `run` has the layout on disk."""

from twotemp.store.config import Config, Key
from twotemp.store.parquet import export
from twotemp.store.run import Cell, Store, Writer
from twotemp.store.table import Table

__all__ = ["Cell", "Config", "Key", "Store", "Table", "Writer", "export"]
