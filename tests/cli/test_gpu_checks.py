"""`twotemp doctor --gpu`, with a stand-in for torch.cuda; the real one where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from twotemp.cli.model_checks import gpu_checks
from twotemp.models.transformer import Transformer


class StandIn:
    """Stands in for torch.cuda; a wait in a step that forbids it raises."""

    def __init__(self, there: bool = True) -> None:
        self.there, self.modes = there, []

    def is_available(self) -> bool:
        return self.there

    def get_device_name(self, index: int) -> str:
        return "a stand-in"

    def synchronize(self) -> None:
        assert self.modes[-1:] != ["error"]

    def set_sync_debug_mode(self, mode: str) -> None:
        self.modes.append(mode)


def test_the_checks_of_a_gpu():
    cuda = StandIn()
    found = {name: (state, detail) for name, state, detail in gpu_checks("tiny", "cpu", cuda)}
    assert {state for state, _ in found.values()} == {"ok"}
    assert found["gpu"][1].startswith("a stand-in, torch")
    assert "float32, attention sdpa" in found["formats"][1]
    assert "ms for 4 rows" in found["pass"][1]
    assert "rows of 64 + 32 tokens" in found["rows"][1]
    assert cuda.modes == ["error", "default"]


def test_a_step_that_waits_is_reported_and_the_mode_is_reset(monkeypatch):
    cuda, honest = StandIn(), Transformer.logits

    def waiting(self, *arguments):
        if cuda.modes[-1:] == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation")
        return honest(self, *arguments)

    monkeypatch.setattr(Transformer, "logits", waiting)
    *_, (name, state, detail) = gpu_checks("tiny", "cpu", cuda)
    assert (name, state) == ("waits", "broken")
    assert "synchronizing CUDA operation" in detail
    assert cuda.modes == ["error", "default"]


def test_without_a_gpu_it_says_so():
    ((name, state, detail),) = gpu_checks("tiny", "cpu", StandIn(there=False))
    assert (name, state) == ("gpu", "missing")
    assert "no CUDA device" in detail


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu():
    assert {state for _, state, _ in gpu_checks("tiny")} == {"ok"}
