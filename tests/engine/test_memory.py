"""The default batch size counts what a row needs and what is free, and says which of the two it was."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.helpers.toy import ToyModel
from tests.helpers.toy_task import micro_model
from twotemp.engine import run, scheduler
from twotemp.engine.scheduler import MOST_ROWS, fit_batch, row_bytes
from twotemp.models import weight_loading
from twotemp.policies import policy
from twotemp.records import Request

MEGABYTE = 2**20


def requests_of(count: int = 1, *, name: str = "lc", length: int = 8, block: int | None = 4) -> list[Request]:
    return [Request(str(i), (1, 2, 3), policy(name), length, block) for i in range(count)]


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets the free memory in bytes."""
    return lambda amount: monkeypatch.setattr(scheduler, "free_bytes", lambda device: amount)


def test_the_batch_is_no_larger_than_the_run_and_says_why(free, caplog):
    model = ToyModel()
    free(2**40)
    assert fit_batch(model, requests_of(1), None) == (1, "all requests")
    assert fit_batch(model, requests_of(MOST_ROWS), None) == (MOST_ROWS, "all requests")
    assert fit_batch(model, requests_of(MOST_ROWS + 1), None) == (
        MOST_ROWS,
        "the default maximum",
    )
    free(2 * 3 * row_bytes(model, requests_of(), None))
    assert fit_batch(model, requests_of(9), None) == (3, "the estimate of what fits into free memory")
    free(0)
    assert fit_batch(model, requests_of(9), None)[0] == 1
    with caplog.at_level(logging.INFO, "twotemp"):
        list(run(model, requests_of(1)))
    assert "batch size 1: all requests (set batch_size to change it)" in caplog.text


def test_a_block_is_no_wider_than_the_row():
    model = ToyModel()
    narrow, wide = (row_bytes(model, requests_of(block=block), None) for block in (11, 1000))
    assert narrow == wide


def test_caches_and_klass_are_counted():
    model, columns = micro_model(), 3 + 8
    plain = row_bytes(model, requests_of(), None)
    cache = model.new_cache(1, columns - 1)  # it has one column more than it is asked for
    held = sum(layer.nbytes for layer in (*cache._keys, *cache._values))
    assert row_bytes(model, requests_of(), "dual") - plain == held
    grid = 4 * 4 * model.vocab_size  # [W, V] in float32
    assert row_bytes(model, requests_of(name="klass"), None) - plain >= 2 * grid


# --- what is free


def _group(folder: Path, limit: str, current: int, reclaimable: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {reclaimable}\n")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Linux machine with 900 MB available, whose control groups lie below the folder."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemFree: 2 kB\nMemAvailable: {900 * 1024} kB\n")
    (tmp_path / "own").write_text("1:name=systemd:/x\n0::/outer/inner\n")
    monkeypatch.setattr(weight_loading, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(weight_loading, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(weight_loading, "_CGROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def free_megabytes() -> float:
    return weight_loading.free_bytes(torch.device("cpu")) / MEGABYTE


def test_what_is_available_is_free(machine):
    assert free_megabytes() == 900
    _group(machine / "outer" / "inner", "max", 5 * MEGABYTE, 0)
    assert free_megabytes() == 900


def test_a_control_group_limits_also_from_further_out(machine):
    _group(machine / "outer" / "inner", str(500 * MEGABYTE), 300 * MEGABYTE, 100 * MEGABYTE)
    assert free_megabytes() == 300, "page cache that can be dropped is free"
    _group(machine / "outer", str(200 * MEGABYTE), 150 * MEGABYTE, 0)
    assert free_megabytes() == 50


def test_without_proc_half_of_the_memory_counts_as_free(machine, monkeypatch):
    monkeypatch.setattr(weight_loading, "_MEMINFO", machine / "nothing")
    monkeypatch.setattr(weight_loading, "_OWN_CGROUP", machine / "nothing")
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": MEGABYTE}
    monkeypatch.setattr(weight_loading.os, "sysconf", sizes.__getitem__)  # macOS has no SC_AVPHYS_PAGES
    assert free_megabytes() == 500
