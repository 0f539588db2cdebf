"""Grading beside drawing: the device does not wait, nothing is lost, a grader's errors are raised; other backends."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import toy_task
from tests.helpers.fake_workers import FreeText
from tests.helpers.toy import ToyModel
from tests.helpers.toy_runs import PLAN, evaluate, rows
from twotemp.backends.local import LocalBackend
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, TaskChoice, work
from twotemp.policies import parse
from twotemp.records import Sample
from twotemp.store import Store, Writer

pytestmark = pytest.mark.usefixtures("toy_tasks")


@pytest.fixture(scope="module")
def model():
    return toy_task.micro_model()


class Busy:
    """Takes its time, and knows how long it took: on a busy machine a nap is longer than asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.total = seconds, 0.0

    def nap(self) -> None:
        started = time.perf_counter()
        time.sleep(self.seconds)
        self.total += time.perf_counter() - started


class SlowBackend(Busy):
    """Takes its time over every sample."""

    name, fingerprint, workers, text = "slow", "0", 1, FreeText()

    def sample(self, requests):
        for r in requests:
            self.nap()
            row = (r.id, r.index, r.seed, r.policy, r.prompt, (2,), (1,), 1, 1, 1, self.seconds, "length")
            yield Sample(*row, text=str(r.index), tag=r.tag)


def slow_grader(busy: Busy):
    class Slow(toy_task.ToyGrader):
        def grade(self, items):
            for grade in super().grade(items):
                busy.nap()
                yield grade

    return Slow


def ratio(out: Path, samples: int, drawing: float, judging: float, monkeypatch) -> float:
    """What an evaluation takes, to the larger of drawing and grading alone."""
    backend, busy = SlowBackend(drawing), Busy(judging)
    monkeypatch.setattr(toy_task, "ToyGrader", slow_grader(busy))
    plan = Plan((TaskChoice("toy"),), (parse("ar"), parse("tct")), n=samples // 8, questions=4)
    with Evaluation(plan, out) as prepared:
        started = time.perf_counter()
        store = prepared.run_with(backend)
        seconds = time.perf_counter() - started
    assert sum(len(cell.grades("toy 1")) for cell in store.cells()) == samples
    return seconds / max(backend.total, busy.total)


def test_grading_runs_while_samples_are_drawn(tmp_path, monkeypatch):
    """One after the other would take twice as long."""
    assert ratio(tmp_path / "run", 80, 0.02, 0.02, monkeypatch) < 1.6


@pytest.mark.slow
@pytest.mark.parametrize(("drawing", "judging"), [(0.02, 0.02), (0.005, 0.02), (0.04, 0.02)])
def test_a_slow_grader_costs_no_more_than_the_slower_of_the_two(tmp_path, monkeypatch, drawing, judging):
    assert ratio(tmp_path / "run", 320, drawing, judging, monkeypatch) < 1.15


def test_drawing_waits_when_too_much_is_ungraded(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "MOST_WAITING", 4)
    monkeypatch.setattr("twotemp.evaluation.runner.WRITE_SAMPLES", 4)
    monkeypatch.setattr(
        "twotemp.evaluation.runner.LARGEST_WRITING_SHARE", math.inf
    )  # no write waits for the disk
    most = []

    class Watching(slow_grader(Busy(0.005))):
        def grade(self, items):
            most.append(len(items))
            return super().grade(items)

    monkeypatch.setattr(toy_task, "ToyGrader", Watching)
    plan = Plan((TaskChoice("toy"),), (parse("ar"),), n=10, questions=4)
    with Evaluation(plan, tmp_path / "run") as prepared:
        prepared.run_with(SlowBackend(0.0))
    assert sum(most) == 40
    assert max(most) <= 8


def test_a_slow_disk_is_written_to_less_often(tmp_path, monkeypatch):
    """Samples come faster than they can be made durable: writes grow, up to a chunk."""
    monkeypatch.setattr("twotemp.evaluation.runner.WRITE_SAMPLES", 4)
    sizes, original = [], Writer.samples

    def slow(self, samples):
        time.sleep(0.05)
        sizes.append(len(samples))
        original(self, samples)

    monkeypatch.setattr(Writer, "samples", slow)
    plan = Plan((TaskChoice("toy"),), (parse("ar"),), n=50, questions=4)
    with Evaluation(plan, tmp_path / "run") as prepared:
        prepared.run_with(SlowBackend(0.002))
    assert sum(sizes) == 200
    assert sizes[0] == 4
    assert max(sizes) > 20


def failing(moment: int, fail, seen: list[int]):
    """A grader that does something else at its so-manieth verdict, and is slow before and after."""

    class Failing(toy_task.ToyGrader):
        def grade(self, items):
            for grade in super().grade(items):
                time.sleep(0.005)
                seen[0] += 1
                if seen[0] == moment:
                    fail()
                yield grade

    return Failing


def broken() -> None:
    raise RuntimeError("the grader is broken")


def run_with(backend: SlowBackend, out: Path) -> Store:
    with Evaluation(PLAN, out) as prepared:
        return prepared.run_with(backend)


# Drawing is still going on when the grader fails, or everything is drawn and waits to be graded.
SLOW, QUICK = 0.02, 0.0


@pytest.mark.parametrize("drawing", [SLOW, QUICK])
@pytest.mark.parametrize(
    ("fail", "error"),
    [(broken, UserError), (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt)],
)
def test_a_graders_error_or_ctrl_c_stops_the_run_and_loses_nothing(
    tmp_path, monkeypatch, drawing, fail, error
):
    whole = rows(run_with(SlowBackend(0.0), tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(toy_task, "ToyGrader", failing(10, fail, seen := [0]))
        backend = SlowBackend(drawing)
        with pytest.raises(error):
            run_with(backend, tmp_path / "run")
    judged = seen[0]
    time.sleep(0.05)
    assert seen[0] == judged, "no grading continues after the end of the run"
    part = rows(tmp_path / "run")
    assert (len(part) < len(whole)) == (drawing == SLOW), "drawing stops when grading does"
    assert sum(grade is not None for _, grade in part.values()) < len(whole) - 30
    run_with(SlowBackend(0.0), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert {key: (s.text, g) for key, (s, g) in found.items()} == {
        key: (s.text, g) for key, (s, g) in whole.items()
    }


def test_samples_an_earlier_run_could_not_grade_are_graded_once(tmp_path, monkeypatch):
    """While it is graded new samples are stored in the same cells."""
    judged = []

    class Counting(slow_grader(Busy(0.003))):
        def grade(self, items):
            judged.extend(items)
            return super().grade(items)

    with monkeypatch.context() as patch:
        patch.setattr(work.Grading, "put", lambda self, work, samples: None)
        with Evaluation(replace(PLAN, n=2), tmp_path / "run") as prepared:
            prepared.run_with(SlowBackend(0.0))
    assert all(grade is None for _, grade in rows(tmp_path / "run").values())
    monkeypatch.setattr(toy_task, "ToyGrader", Counting)
    run_with(SlowBackend(0.0), tmp_path / "run")
    assert len(judged) == 72
    assert all(grade is not None for _, grade in rows(tmp_path / "run").values())


# --- backends -------------------------------------------------------------------------------------------------


def test_a_backend_of_another_kind_makes_the_same_run(model, tmp_path):
    class Backwards(LocalBackend):
        """Samples in another order."""

        def sample(self, requests):
            return reversed(list(super().sample(requests)))

    with Evaluation(PLAN, tmp_path / "run") as prepared:
        prepared.run_with(Backwards(model))
    assert rows(tmp_path / "run") == rows(evaluate(model, PLAN, tmp_path / "whole"))


class WithText(ToyModel):
    """A plain denoiser: neither config nor tensors nor a chat format."""

    tokenizer = None

    def __init__(self, tokenizer, seed: int = 0) -> None:
        super().__init__(vocab=len(tokenizer), seed=seed)
        self.tokenizer = tokenizer
        self.mask_id = tokenizer.convert_tokens_to_ids("<|mdm_mask|>")
        self.forbidden_ids = (self.mask_id,)


def test_a_plain_denoiser_can_be_evaluated(model, tmp_path):
    plain = WithText(model.tokenizer)
    first = rows(evaluate(plain, PLAN, tmp_path / "run"))
    assert len(first) == 72
    assert rows(evaluate(WithText(model.tokenizer), PLAN, tmp_path / "run")) == first
    with pytest.raises(UserError, match="fingerprint"):
        evaluate(WithText(model.tokenizer, seed=1), PLAN, tmp_path / "run")


def test_a_model_without_a_chat_format_is_asked_in_plain_text(model, tmp_path):
    plain = toy_task.micro_model()
    plain.tokenizer.chat_template = None
    store = evaluate(plain, PLAN, tmp_path / "run")
    prompts = {sample.prompt for cell in store.cells() for sample in cell.samples()}
    assert tuple(plain.tokens("0 + 1 =")) in prompts
    with pytest.raises(UserError, match="no chat format"):
        evaluate(plain, replace(PLAN, chat=True), tmp_path / "chat")


def test_plain_text_can_be_asked_for_and_never_mixes_with_chat(model, tmp_path):
    evaluate(model, replace(PLAN, chat=False), tmp_path / "run")
    prompts = {s.prompt for cell in Store.open(tmp_path / "run").cells() for s in cell.samples()}
    assert tuple(model.tokens("0 + 1 =")) in prompts
    with pytest.raises(UserError, match="with other settings"):
        evaluate(model, PLAN, tmp_path / "run")
