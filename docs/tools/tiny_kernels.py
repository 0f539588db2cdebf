"""Assemble what the playground without a server computes with: `make pages` (needs wasmtime)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from wasmtime import wat2wasm

PAGES = Path(str(files("twotemp.report"))) / "pages"


def assemble() -> bytes:
    """Return the WebAssembly module of `tiny_kernels.wat`."""
    return bytes(wat2wasm((PAGES / "tiny_kernels.wat").read_text("utf-8")))


if __name__ == "__main__":
    (PAGES / "tiny_kernels.wasm").write_bytes(assemble())
