"""The torch.compile switch: the same logits where it works, a clear error where it cannot."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.helpers.tiny_checkpoints import random_model
from twotemp.engine import run
from twotemp.errors import UserError
from twotemp.models.load import compile_body, load
from twotemp.policies import policy
from twotemp.records import Request


def test_a_compiler_that_is_missing_is_an_error_that_says_so(monkeypatch):
    def broken(self, **options):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand a long trace")

    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    with pytest.raises(UserError, match=r"No working C\+\+ compiler found\); load without compile"):
        load("tiny", device="cpu", compile=True)


@pytest.mark.slow
def test_torch_itself_says_so_where_there_is_no_compiler():
    import torch._inductor.config

    torch._dynamo.reset()
    without = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True})
    with without, pytest.raises(UserError, match=r"torch\.compile does not work here"):
        load("tiny", device="cpu", compile=True)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_the_compiled_model_is_the_same_model():
    plain, compiled = load("tiny", device="cpu"), load("tiny", device="cpu", compile=True)
    ids = torch.full((3, 20), plain.mask_id)
    ids[:, :7] = torch.arange(21).view(3, 7) + 10
    real = torch.ones_like(ids, dtype=torch.bool)
    real[0, 15:] = False  # padded and unpadded, two sizes
    with torch.inference_mode():
        for some in (ids, ids[:1, :12]):
            attention = None if len(some) == 1 else real
            want = some == plain.mask_id
            found = compiled.logits(some, attention, want)
            torch.testing.assert_close(found, plain.logits(some, attention, want), atol=1e-3, rtol=1e-4)
    requests = [Request("q", (10, 11, 12), policy("ct"), 8, 4, index=i) for i in range(2)]
    assert {s.index for s in run(compiled, requests, cache="dual")} == {0, 1}


@pytest.mark.parametrize("cache", [None, pytest.param("dual", marks=pytest.mark.slow)])
def test_the_body_is_a_few_whole_graphs_for_all_batches_and_widths(monkeypatch, cache):
    """Dynamo traces it, and a backend that compiles nothing counts the graphs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs, honest = [], torch.nn.Module.compile

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **options: honest(self, backend=backend, **options)
    )
    model = random_model("llada")
    compile_body(model)
    for rows, size in ((1, 3), (3, 5), (2, 9), (4, 4)):
        prompts = [tuple(range(10, 10 + size + row % 2)) for row in range(rows)]
        wanted = [Request(str(row), prompt, policy("tct"), 8, 4) for row, prompt in enumerate(prompts)]
        assert len(list(run(model, wanted, cache=cache))) == rows
    assert not torch._dynamo.utils.counters["graph_break"]
    assert 1 <= len(graphs) <= 5
    torch._dynamo.reset()
