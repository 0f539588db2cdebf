"""Replayed forward passes: the same samples, recorded once per batch; a stand-in for CUDA's graphs records."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from tests.helpers.engine_requests import by_key
from tests.helpers.random_models import MODELS
from twotemp.cli import app
from twotemp.engine import run
from twotemp.engine.graphs import CudaGraphs, ReplayedForward
from twotemp.errors import UserError
from twotemp.policies import policy
from twotemp.records import Request

MODEL = MODELS["llada"]


class RecordingStub:
    """Replays by calling again, into the memory of the first result."""

    def __init__(self) -> None:
        self.captured, self.replayed = 0, 0

    def capture(self, run):
        self.captured += 1
        result = run().clone()

        def replay() -> None:
            self.replayed += 1
            result.copy_(run())

        result.fill_(torch.nan)  # as memory that no kernel has written yet
        return replay, result


def requests_of(count: int) -> list[Request]:
    return [Request(str(i), (2, 3, 4) + (5,) * (i % 3), policy("tct"), 8, 4) for i in range(count)]


def test_replayed_passes_draw_the_same_samples_and_are_recorded_once():
    graphs, wanted = RecordingStub(), requests_of(7)
    plain = by_key(run(MODEL, wanted, batch_size=3, columns=14))
    found = by_key(run(MODEL, wanted, batch_size=3, columns=14, graphs=graphs))
    assert {key: s.tokens for key, s in found.items()} == {key: s.tokens for key, s in plain.items()}
    assert graphs.captured == 1
    assert graphs.replayed > 8


def test_a_pass_that_cannot_be_recorded_is_run_as_it_is(caplog):
    class Refusing:
        calls = 0

        def capture(self, run):
            self.calls += 1
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    graphs, wanted = Refusing(), requests_of(3)
    plain = by_key(run(MODEL, wanted, batch_size=3, columns=14))
    found = by_key(run(MODEL, wanted, batch_size=3, columns=14, graphs=graphs))
    assert {key: s.tokens for key, s in found.items()} == {key: s.tokens for key, s in plain.items()}
    assert graphs.calls == 1
    assert "cannot be recorded (operation not permitted when stream is capturing); continuing" in caplog.text


def test_inputs_are_copied_and_the_result_is_overwritten():
    forward = ReplayedForward(lambda a, b: a + 2 * b, RecordingStub())
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    first = forward(one, two)
    assert first.item() == 5
    second = forward(two, one)
    assert second.item() == 4
    assert first is second
    assert (one.item(), two.item()) == (1, 2)


def test_graphs_need_one_shape():
    with pytest.raises(UserError, match="set columns and batch_size"):
        run(MODEL, requests_of(1), batch_size=2, graphs=RecordingStub())
    done = CliRunner().invoke(app, ["sample", "--cuda-graphs", "20 10 15 -> 45"])
    assert "give --batch-size" in str(done.exception)


def test_the_command_replays_with_a_shape_that_holds_every_row(monkeypatch):
    graphs = RecordingStub()
    monkeypatch.setattr(CudaGraphs, "capture", lambda self, run: graphs.capture(run))
    asked = ["sample", "--json", "--length", "8", "-n", "3", "--batch-size", "2", "--device", "cpu"]
    prompts = ["20 10 15 -> 45", "3 7 12 5 -> 33"]
    replayed = CliRunner().invoke(app, [*asked, "--cuda-graphs", *prompts])
    assert replayed.exit_code == 0, replayed.output
    assert graphs.captured >= 1
    plain = CliRunner().invoke(app, [*asked, *prompts])
    texts = [sorted(line.split('"text"')[1] for line in out.stdout.splitlines()) for out in (plain, replayed)]
    assert texts[0] == texts[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_graph():
    from twotemp.models.load import load

    model = load("tiny", device="cuda")
    wanted = [Request(str(i), (5, 6, 7 + i), policy("tct"), 8, 4) for i in range(4)]
    plain = by_key(run(model, wanted, batch_size=2, columns=11))
    found = by_key(run(model, wanted, batch_size=2, columns=11, graphs=CudaGraphs()))
    assert {key: s.tokens for key, s in found.items()} == {key: s.tokens for key, s in plain.items()}
