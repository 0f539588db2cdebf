"""The default batch size counts what a row needs and what is free, and says which of the two it was."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.helpers.engine_steps import batch_of, step
from tests.helpers.large_models import PeakMemory, large_model
from tests.helpers.toy import ToyModel
from tests.helpers.toy_task import micro_model
from twotemp.engine import run, scheduler
from twotemp.engine.rows import Rows
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


SHAPES = [(name, cache) for name in ("LLaDA-8B", "Dream-7B") for cache in (None, "prefix", "dual")]
SHAPES += [("SDAR-4B", None), ("LLaDA2.0-mini", None)]


@pytest.mark.parametrize(("name", "cache"), SHAPES)
def test_the_estimate_is_a_little_more_than_the_peak_of_published_sizes(monkeypatch, name, cache):
    """Of three steps in bfloat16; attention counts as a fused kernel, as on a GPU: its result alone."""
    fused = lambda query, key, value, **options: torch.empty_like(query)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    monkeypatch.setattr(Rows, "sync", lambda self, healthy: True)
    model = large_model(name)
    for trace in (False, True):
        wanted = [
            Request(str(size), (2,) * size, policy("tct"), 256, model.block_size or 32, trace=trace)
            for size in (200, 160)
        ]
        with torch.inference_mode(), PeakMemory(model) as memory:
            batch = batch_of(model, wanted, cache)
            step(batch)  # the whole row
            step(batch)  # only the block, where there is a cache
            batch.rows.state.cached[0] = -1
            step(batch)  # some of both
        assert 1.0 <= len(wanted) * row_bytes(model, wanted, cache) / memory.peak <= 1.6


def test_a_card_of_24_gb_holds_more_than_a_dozen_cached_rows_of_llada(free):
    """With 7.5 GB left beside the weights; an estimate in float32 without regard to the layers said 3."""
    model = large_model("LLaDA-8B")
    model.device = torch.device("cuda")  # only its name is read
    free(7_500_000_000)
    wanted = [Request(str(i), (2,) * 200, policy("tct"), 256, 32) for i in range(64)]
    assert 12 <= fit_batch(model, wanted, "dual")[0] <= 25


# --- what is free


def test_memory_that_torch_holds_unused_on_a_gpu_is_free(monkeypatch):
    sizes = {"mem_get_info": (100, 900), "memory_reserved": 70, "memory_allocated": 50}
    for name, size in sizes.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size)
    assert weight_loading.free_bytes(torch.device("cuda")) == 120


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


def test_free_memory_is_what_the_kernel_calls_available(machine):
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
