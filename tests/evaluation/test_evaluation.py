"""The runner: nothing is drawn twice, nothing finished is lost, and how a run was stopped leaves no mark on it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import toy_task
from tests.helpers.toy_runs import PLAN, POLICIES, Rows, evaluate, rows
from twotemp import engine, tasks
from twotemp.analysis import read
from twotemp.backends import local
from twotemp.backends.local import LocalBackend
from twotemp.engine import run as engine_run
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, Progress, TaskChoice, regrade, runner, work
from twotemp.folders.files import FrameFile, read_batches
from twotemp.models.load import load
from twotemp.policies import parse, parse_portfolio
from twotemp.records import Grade, Request
from twotemp.sampling import requests as sampling_requests
from twotemp.store import Store

pytestmark = pytest.mark.usefixtures("toy_tasks")


@pytest.fixture(scope="module")
def model():
    return toy_task.micro_model()


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Rows:
    """PLAN run without interruption."""
    with pytest.MonkeyPatch.context() as patch:
        toy_task.install(patch)
        return rows(evaluate(model, PLAN, tmp_path_factory.mktemp("whole") / "run"))


def never(*args, **kwargs):
    raise AssertionError("this was not to be called")


# --- what is drawn --------------------------------------------------------------------------------------------


def test_every_sample_is_stored_graded_and_equal_to_the_engines(model, whole):
    assert len(whole) == 2 * 4 * 3 * len(POLICIES)
    assert {name for name, _ in whole} == {
        f"{task}@{spec}" for task in ("toy", "toy-b") for spec in ("ar", "tlc", "tct:threshold=0.3")
    }
    problems = {p.id: p for p in toy_task.load().problems}
    for (name, key), (sample, grade) in whole.items():
        if name == "toy@tlc":
            problem = problems[key.request]
            assert grade is not None
            assert grade.passed == toy_task.right(problem, sample.text)
            ids = tuple(model.encode(problem.prompt))
            request = Request(key.request, ids, POLICIES[1], length=toy_task.LENGTH, index=key.index)
            (alone,) = engine_run(model, [request])
            assert (alone.tokens, alone.nfe) == (sample.tokens, sample.nfe)
    assert 0 < sum(grade.passed for _, grade in whole.values() if grade) < len(whole)


def test_started_again_it_draws_nothing(model, tmp_path, monkeypatch):
    evaluate(model, PLAN, tmp_path / "run")
    monkeypatch.setattr(engine, "events", never)
    states: list[Progress] = []
    evaluate(model, PLAN, tmp_path / "run", on_progress=states.append)
    last = states[-1]
    assert (last.samples, last.questions) == (last.all_samples, last.all_questions) == (72, 8)
    assert last.passed["ar"][1] == 24


def test_a_larger_n_adds_only_what_is_missing(model, tmp_path, monkeypatch, whole):
    evaluate(model, replace(PLAN, n=2), tmp_path / "run")
    drawn = []

    def spy(backend, requests):
        drawn.extend(wanted := list(requests))
        return original(backend, wanted)

    original = LocalBackend.sample
    monkeypatch.setattr(LocalBackend, "sample", spy)
    evaluate(model, PLAN, tmp_path / "run")
    assert {r.index for r in drawn} == {2}
    assert len(drawn) == 2 * 4 * len(POLICIES)
    assert rows(tmp_path / "run") == whole


def test_more_questions_and_policies_may_be_added(model, tmp_path, whole):
    evaluate(model, replace(PLAN, questions=2, policies=POLICIES[:1]), tmp_path / "run")
    evaluate(model, PLAN, tmp_path / "run")
    assert rows(tmp_path / "run") == whole


def test_a_portfolio_draws_only_its_places_and_what_its_components_lack(model, tmp_path, monkeypatch, whole):
    portfolio = parse_portfolio("ar + tlc")
    first = rows(evaluate(model, replace(PLAN, policies=(portfolio,)), tmp_path / "run"))
    assert {(name.partition("@")[2], key.index) for name, key in first} == {("ar", 0), ("tlc", 1), ("tlc", 2)}
    assert first.items() <= whole.items()
    evaluate(model, replace(PLAN, policies=(*POLICIES, portfolio)), tmp_path / "run")
    assert rows(tmp_path / "run") == whole
    monkeypatch.setattr(engine, "events", never)
    other = parse_portfolio("1*tct:threshold=0.3 + 1*ar")
    evaluate(model, replace(PLAN, policies=(other, portfolio)), tmp_path / "run")
    assert work.portfolios_of(tmp_path / "run") == [portfolio, other]


def test_samples_that_repel_each_other_are_the_same_after_any_stop_and_stored_once(
    model, tmp_path, monkeypatch
):
    """A larger n and a stop in the midst of a group: the group is drawn again, what is there already not stored."""
    plan = replace(PLAN, policies=(parse("odd:t_token=1.5"), parse("tlc")), n=4)
    expected = rows(evaluate(model, plan, tmp_path / "whole"))
    for module in (work, local):
        monkeypatch.setattr(module, "CHUNK", 12)
    evaluate(model, replace(plan, n=1), tmp_path / "run")
    drawn: list[Request] = []

    def stumbling(backend, requests):
        drawn.extend(wanted := list(requests))
        found = list(original(backend, wanted))
        odd = [sample for sample in found if sample.policy.repel]
        yield from odd[: 1 + len(odd) // 2]
        raise KeyboardInterrupt

    original = LocalBackend.sample
    monkeypatch.setattr(LocalBackend, "sample", stumbling)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, replace(plan, n=3), tmp_path / "run")
    monkeypatch.setattr(LocalBackend, "sample", original)
    assert {request.index for request in drawn if request.policy.repel} == {0, 1, 2}
    assert {request.index for request in drawn if not request.policy.repel} == {1, 2}
    states: list[Progress] = []
    evaluate(model, plan, tmp_path / "run", on_progress=states.append)
    assert rows(tmp_path / "run") == expected
    assert states[-1].samples == states[-1].all_samples == len(expected)
    written = (batch for file in (tmp_path / "run").glob("*/samples-*") for batch in read_batches(file))
    assert sum(map(len, written)) == len(expected)


def test_tasks_take_turns_and_a_question_keeps_its_policies_together(model, tmp_path, monkeypatch):
    for module in (work, local):
        monkeypatch.setattr(module, "CHUNK", 9)
    order = []
    original = engine.events

    def spy(model, requests, **options):
        requests = list(requests)
        order.append(
            ({len(r.prompt) for r in requests}, {r.id for r in requests}, {r.policy.name for r in requests})
        )
        return original(model, requests, **options)

    monkeypatch.setattr(engine, "events", spy)
    evaluate(model, PLAN, tmp_path / "run")
    assert [ids for _, ids, _ in order] == [{f"toy/{i}"} for i in range(4) for _ in range(2)]
    assert all(names == {"ar", "tlc", "tct"} for _, _, names in order)
    assert order[0][0] != order[1][0], "the two tasks' prompts differ in length"


def test_shards_are_disjoint_and_make_the_whole(model, tmp_path, whole):
    evaluate(model, PLAN, tmp_path / "run", shard=(2, 3))
    part = rows(tmp_path / "run")
    assert {key.request for _, key in part} == {"toy/1"}
    for number in (1, 3):
        evaluate(model, PLAN, tmp_path / "run", shard=(number, 3))
    assert rows(tmp_path / "run") == whole


@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_batch_size_changes_nothing(model, tmp_path, whole, batch_size):
    found = rows(evaluate(model, PLAN, tmp_path / "run", batch_size=batch_size))
    assert {k: (s.tokens, g) for k, (s, g) in found.items()} == {
        k: (s.tokens, g) for k, (s, g) in whole.items()
    }


# --- interruptions --------------------------------------------------------------------------------------------


def stopped_after(count: int, error: BaseException):
    original = LocalBackend.sample

    def stream(backend, requests):
        for number, sample in enumerate(original(backend, requests)):
            if number == count:
                raise error
            yield sample

    return stream


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_finished_samples_are_stored_when_the_run_is_interrupted(model, tmp_path, whole, error):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBackend, "sample", stopped_after(5, error))
        with pytest.raises(type(error)):
            evaluate(model, PLAN, tmp_path / "run")
    part = rows(tmp_path / "run")
    assert len(part) == 5
    assert all(whole[key][0] == sample for key, (sample, _) in part.items())
    evaluate(model, PLAN, tmp_path / "run")
    assert rows(tmp_path / "run") == whole


def test_ctrl_c_during_a_write_writes_every_row_once(model, tmp_path, monkeypatch, whole):
    """Between the making of a file and its first batch, or between a batch and our noting that it is there."""
    for name, moment in (("__init__", 2), ("append", 1), ("append", 3)):
        original, calls = getattr(FrameFile, name), []

        def interrupted(self, *given, original=original, calls=calls, moment=moment):
            original(self, *given)
            calls.append(1)
            if len(calls) == moment:
                signal.raise_signal(signal.SIGINT)

        run = tmp_path / f"{name}-{moment}"
        with monkeypatch.context() as patch:
            patch.setattr(runner, "WRITE_SAMPLES", 8)
            patch.setattr(work.Grading, "put", lambda self, work, samples: None)
            patch.setattr(FrameFile, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                evaluate(model, PLAN, run)
        evaluate(model, PLAN, run)
        assert rows(run) == whole
        written = [row for file in run.glob("*/samples-*") for batch in read_batches(file) for row in batch]
        assert len(written) == len(whole)


def test_samples_are_stored_before_they_are_graded(model, tmp_path, monkeypatch, whole):
    with monkeypatch.context() as patch:
        patch.setattr(toy_task.ToyGrader, "grade", never)
        with pytest.raises(UserError, match="this was not to be called"):
            evaluate(model, PLAN, tmp_path / "run")
    part = rows(tmp_path / "run")
    assert part
    assert all(grade is None for _, grade in part.values())
    evaluate(model, PLAN, tmp_path / "run")
    assert rows(tmp_path / "run") == whole


def test_ungraded_is_counted_left_out_and_tried_again(model, tmp_path, monkeypatch, whole):
    def broken(self, items):
        return (Grade("ungraded", detail="our fault") for _ in items)

    with monkeypatch.context() as patch:
        patch.setattr(toy_task.ToyGrader, "grade", broken)
        evaluate(model, PLAN, tmp_path / "run")
    with pytest.raises(UserError, match="no graded sample"):
        read([tmp_path / "run"])
    monkeypatch.setattr(engine, "events", never)
    evaluate(model, PLAN, tmp_path / "run")
    assert rows(tmp_path / "run") == whole
    assert all(series.table.ungraded == 0 for series in read([tmp_path / "run"]))


def test_killed_at_twenty_random_moments_it_ends_up_the_same(model, tmp_path, monkeypatch):
    """Children of this warm process run the evaluation and are killed; then it is finished and compared."""
    plan = replace(PLAN, n=16)
    monkeypatch.setattr(local, "CHUNK", 40)
    monkeypatch.setattr(runner, "WRITE_SAMPLES", 8)
    expected = rows(evaluate(model, plan, tmp_path / "whole"))
    original = LocalBackend.sample
    forks = multiprocessing.get_context("fork")
    rng = random.Random(1)
    for _ in range(20):
        parent, end = forks.Pipe()

        def reporting(backend, requests, end=end):
            for sample in original(backend, requests):
                end.send("drawn")
                end.recv()  # go on: so that it cannot come to its end before it is killed
                yield sample

        def child(batch_size: int, stream=reporting) -> None:
            monkeypatch.setattr(LocalBackend, "sample", stream)
            evaluate(model, plan, tmp_path / "run", batch_size=batch_size)

        process = forks.Process(target=child, args=(rng.choice((3, 8, 64)),))
        process.start()
        # A moment is a random time after a random number of samples: the machine's speed does not matter.
        for _ in range(rng.randrange(25)):
            parent.recv()
            parent.send("go on")
        time.sleep(rng.uniform(0, 0.02))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended before it was killed"
    assert 0 < len(rows(tmp_path / "run")) < len(expected), "the kills came in the middle"
    evaluate(model, plan, tmp_path / "run")
    assert rows(tmp_path / "run") == expected


def test_a_full_disk_loses_nothing(model, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(runner, "WRITE_SAMPLES", 4)
    room = [6]
    write = os.write

    def full(fd: int, data) -> int:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(UserError, match=r"No space left on device.*free some space"):
            evaluate(model, PLAN, tmp_path / "run")
    part = rows(tmp_path / "run")
    assert part
    assert all(whole[key][0] == sample for key, (sample, _) in part.items())
    evaluate(model, PLAN, tmp_path / "run")
    assert rows(tmp_path / "run") == whole


def test_an_interruption_just_after_a_write_is_an_interruption(model, tmp_path, monkeypatch, whole):
    """Ctrl-C between writing samples and noting that they are written: they are not written twice."""
    from twotemp.store import Writer

    honest = Writer.samples

    def interrupted(self, samples):
        honest(self, samples)
        monkeypatch.setattr(Writer, "samples", honest)
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "samples", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, PLAN, tmp_path / "run")
    assert Writer.samples is honest, "the interruption came"
    assert rows(evaluate(model, PLAN, tmp_path / "run")) == whole


# --- grading again --------------------------------------------------------------------------------------------


def test_regrade_grades_only_samples_without_a_grade(model, tmp_path, monkeypatch):
    evaluate(model, PLAN, tmp_path / "run")
    assert sum(regrade(tmp_path / "run").values()) == 0
    assert sum(regrade(tmp_path / "run", again=True).values()) == 72

    class Newer(toy_task.ToyGrader):
        name = "toy 2"

        def grade(self, items):
            return (Grade("passed") for _ in items)

    monkeypatch.setattr(toy_task, "ToyGrader", Newer)
    assert sum(regrade(tmp_path / "run").values()) == 72
    for grader in (None, "toy 2"):  # the newer version, unless another one is asked for
        assert all(cell.curve.mean[0] == 1 for cell in read([tmp_path / "run"], grader=grader))
    assert all(s.curve.mean[0] < 1 for s in read([tmp_path / "run"], grader="toy 1"))


def test_a_grader_of_another_kind_of_task_is_named(tmp_path):
    choice = TaskChoice("countdown-3", questions=1)
    with Evaluation(Plan((choice,), (parse("lc"),), n=1), tmp_path / "run") as evaluation:
        evaluation.run(load("tiny"))
    with pytest.raises(UserError, match=r"'d1 1' cannot grade answers of countdown-3 \(KeyError: 'answer'\)"):
        regrade(tmp_path / "run", grader="d1")


def test_regrade_refuses_other_data(model, tmp_path, monkeypatch):
    evaluate(model, PLAN, tmp_path / "run")
    altered = replace(toy_task.load(), digest="another digest")
    monkeypatch.setattr(toy_task, "load", lambda **options: altered)
    toy_task.install(monkeypatch)
    with pytest.raises(UserError, match=r"other data.*--data toy=FILE"):
        regrade(tmp_path / "run", again=True)


# --- another run, a damaged run -------------------------------------------------------------------------------


def test_another_configuration_or_model_never_mixes_in(model, tmp_path, whole):
    evaluate(model, PLAN, tmp_path / "run")
    for changed in (
        replace(PLAN, seed=1),
        replace(PLAN, length=9),
        replace(PLAN, trace=True),
        replace(PLAN, cache="dual"),
    ):
        with pytest.raises(UserError, match=r"other settings .*--out"):
            evaluate(model, changed, tmp_path / "run")
    with pytest.raises(UserError, match="fingerprint"):
        evaluate(toy_task.micro_model(seed=1), PLAN, tmp_path / "run")
    assert rows(tmp_path / "run") == whole


def test_a_damaged_store_names_the_place_and_the_fix(model, tmp_path):
    evaluate(model, PLAN, tmp_path / "run")
    file = next((tmp_path / "run" / "toy@ar").glob("samples-*"))
    before = shutil.copy(file, tmp_path / "copy")
    data = bytearray(file.read_bytes())
    data[40] ^= 0xFF  # in the first batch, however many there are
    file.write_bytes(bytes(data) + Path(before).read_bytes())
    with pytest.raises(UserError, match=r"damaged at byte 0.*truncate"):
        evaluate(model, PLAN, tmp_path / "run")


def test_a_prompt_too_long_for_the_model_stores_nothing_wrong(model, tmp_path):
    with pytest.raises(UserError, match="exceed the context"):
        evaluate(model, replace(PLAN, length=128), tmp_path / "run")
    assert rows(tmp_path / "run") == {}


def test_rows_of_ar_end_at_eos_with_the_text_and_the_nfe_of_the_whole_row(tmp_path):
    model = load("tiny", device="cpu")
    problems = tasks.get("countdown-3").problems().problems[:4]
    plan = Plan((TaskChoice("countdown-3", questions=4),), (parse("ar"), parse("ct")), n=2, length=48)
    with Evaluation(plan, tmp_path) as evaluation:
        evaluation.run_with(LocalBackend(model))
    for cell in Store.open(tmp_path).cells():
        asks = [
            sampling_requests.PlannedSample(p, cell.config.policy, index)
            for p in problems
            for index in range(2)
        ]
        wanted = sampling_requests.problem_requests(model, asks, length=48)
        whole = {sample.key: sample for sample in LocalBackend(model).sample(wanted)}
        found = {sample.key: sample for sample in cell.samples()}
        assert {key: (s.text, s.nfe) for key, s in found.items()} == {
            key: (s.text, s.nfe) for key, s in whole.items()
        }
        fewer = sum(s.forwards for s in found.values()) < sum(s.forwards for s in whole.values())
        assert fewer == (cell.config.policy.name == "ar")
        assert all(s.written == s.forwards for s in found.values() if s.policy.name == "ar")
