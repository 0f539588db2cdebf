"""Worker processes: no sample is lost, none comes twice, and each is what this process would have drawn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from tests.helpers import toy_task
from tests.helpers.fake_workers import FreeBackend, FreeText, Stumbling, broken, free, free_sample, micro
from tests.helpers.worker_runs import UNIT, run
from twotemp.backends import local
from twotemp.backends.local import LocalBackend
from twotemp.backends.pool import WorkerPool, cut
from twotemp.backends.process import ProcessTransport, worker_environment
from twotemp.errors import UserError
from twotemp.policies import parse
from twotemp.records import Request

pytestmark = pytest.mark.usefixtures("toy_tasks", "forked_processes")


@pytest.fixture
def marks(tmp_path) -> Path:
    (folder := tmp_path / "marks").mkdir()
    return folder


def pool(make, count: int = 2, text=None, **options) -> WorkerPool:
    return WorkerPool(ProcessTransport(make), count, text or FreeText(), **{"unit": UNIT, **options})


@pytest.mark.parametrize("how", ["kill", "hang", "stop", "crash"])
def test_nothing_is_lost_or_repeated_when_a_worker_fails(tmp_path, marks, how):
    with pool(Stumbling(marks, how), hang_seconds=2.0) as backend:
        found = run(backend, tmp_path / "run")
    assert len(list(marks.iterdir())) == 1, "it happened"
    assert backend.resent > 0
    assert found == run(FreeBackend(), tmp_path / "here")


def assert_same(found, expected) -> None:
    """Equal but for the rounding of traces, which depends on the batch."""
    assert found.keys() == expected.keys()
    for name, (sample, grade) in found.items():
        other, same = expected[name]
        assert (replace(sample, trace=None), grade) == (replace(other, trace=None), same)
        assert sample.trace is not None
        assert other.trace is not None
        assert sample.trace.steps == other.trace.steps
        assert sample.trace.confidence == pytest.approx(other.trace.confidence, abs=1e-5)
        assert sample.trace.entropy == pytest.approx(other.trace.entropy, abs=1e-5)


def test_a_killed_worker_changes_no_sample_of_a_real_engine(tmp_path, marks):
    model = toy_task.micro_model()
    expected = run(LocalBackend(model), tmp_path / "here")
    with pool(Stumbling(marks, "kill", make=micro), text=model) as backend:
        assert_same(run(backend, tmp_path / "run"), expected)
    assert len(list(marks.iterdir())) == 1
    assert backend.resent > 0
    assert_same(run(LocalBackend(model, batch_size=5), tmp_path / "other"), expected)


@pytest.mark.slow
def test_groups_are_the_same_on_workers(marks):
    """Samples that repel each other, in more units than one; those of a lost worker are drawn again together."""
    chosen, model = parse("odd:t_token=1.5"), toy_task.micro_model()
    wanted = [Request(f"q{n}", (10, 11 + n), chosen, 6, index=i) for n in range(6) for i in range(5)]
    expected = {sample.key: sample.tokens for sample in LocalBackend(model).sample(wanted)}
    with pool(Stumbling(marks, "kill", after=4, make=micro), text=model, unit=8) as backend:
        found = {sample.key: sample.tokens for sample in backend.sample(wanted)}
    assert len(list(marks.iterdir())) == 1
    assert found == expected


def requests(count: int, policy: str = "ar", tag: str = "") -> list[Request]:
    return [Request("q", (1, 2), parse(policy), length=8, index=index, tag=tag) for index in range(count)]


def test_requests_that_cost_three_workers_are_given_up_by_name(marks):
    with (
        pool(Stumbling(marks, "kill", times=9, after=1)) as backend,
        pytest.raises(
            UserError, match=r"3 workers in turn.*sample 0 of request 'q' with ar and 2 others.*SIGKILL"
        ),
    ):
        list(backend.sample(requests(3)))
    assert len(list(marks.iterdir())) == 3
    assert backend.resent == 9


def test_workers_that_cannot_load_the_model_are_given_up(marks):
    with (
        pool(Stumbling(marks, "kill", times=9, after=0), 1) as backend,
        pytest.raises(UserError, match="3 workers in turn were lost while they loaded the model"),
    ):
        backend.name  # noqa: B018
    assert len(list(marks.iterdir())) == 3


def test_a_worker_that_cannot_load_the_model_is_left_out_where_others_can(marks, caplog):
    with pool(Stumbling(marks, "kill", times=3, after=0), 2) as backend:
        found = list(backend.sample(requests(40)))
    assert len(list(marks.iterdir())) == 3
    assert sorted(sample.index for sample in found) == list(range(40))


def test_the_last_line_that_a_worker_printed_is_reported():
    with pool(broken, 1) as backend, pytest.raises(UserError, match="RuntimeError: the sky fell"):
        backend.name  # noqa: B018


def test_a_mistake_of_the_users_is_raised_at_once(marks):
    with (
        pool(Stumbling(marks, "mistake", times=9, after=1), 1) as backend,
        pytest.raises(UserError, match="write English"),
    ):
        list(backend.sample(requests(3)))
    assert len(list(marks.iterdir())) == 1
    assert backend.resent == 0


def test_after_a_mistake_the_next_requests_are_served(marks):
    """It fails with samples of its unit under way, and another unit behind it."""
    with pool(Stumbling(marks, "mistake", after=2), 1) as backend:
        with pytest.raises(UserError, match="write English"):
            list(backend.sample(requests(3 * UNIT, tag="old")))
        found = list(backend.sample(requests(3 * UNIT, "tlc", tag="new")))
    assert len(list(marks.iterdir())) == 1
    assert {sample.tag for sample in found} == {"new"}
    assert found == [free_sample(request) for request in requests(3 * UNIT, "tlc")]


def test_samples_of_an_abandoned_call_are_not_returned_by_the_next():
    with pool(free, 1) as backend:
        for _ in backend.sample(requests(40, tag="old")):
            break
        found = list(backend.sample(requests(20, "tlc", tag="new")))
    assert [sample.tag for sample in found] == ["new"] * 20
    assert {sample.policy.name for sample in found} == {"tlc"}


def test_requests_are_read_as_work_runs_out(monkeypatch):
    """More than a unit for each worker, and not all of them."""
    monkeypatch.setattr(local, "CHUNK", UNIT)
    read = []

    def endless():
        for number in range(10**9):
            read.append(number)
            yield Request(f"q{number}", (1, 2), parse("ar"), length=8)

    with pool(free, 2) as backend:
        found = backend.sample(endless())
        next(found)
        assert 2 * UNIT < len(read) < 8 * UNIT
        found.close()


def test_units_share_a_structure_are_of_equal_size_and_depend_on_requests_alone():
    wanted = [request for policy in ("ar", "tct", "lc") for request in requests(20, policy, "a")]
    wanted += requests(3, tag="b")
    units = list(cut(wanted, 16))
    assert [(unit[0].tag, len(unit)) for unit in units[:-1]] == [("a", 10)] * 6
    assert (units[-1][0].tag, len(units[-1])) == ("b", 3)
    assert all(len(list(groupby(unit, lambda r: (r.policy.structure, r.tag)))) == 1 for unit in units)
    assert list(cut(iter(wanted), 16)) == units


def test_a_worker_gets_nothing_of_the_environment_but_what_it_needs(monkeypatch):
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "SSH_AUTH_SOCK", "http_proxy"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    given = worker_environment(2)
    assert "secret" not in given.values()
    assert (given["CUDA_VISIBLE_DEVICES"], given["OMP_NUM_THREADS"]) == ("3", "2")
    assert given["PATH"] == os.environ["PATH"]


DRIVER = """
import sys
from pathlib import Path
from tests.helpers.fake_workers import FreeText, Stumbling
from twotemp.backends.pool import WorkerPool
from twotemp.backends.process import ProcessTransport
from twotemp.policies import parse
from twotemp.records import Request
wanted = [Request("q", (1, 2), parse("ar"), length=8, index=index) for index in range(10**4)]
transport = ProcessTransport(Stumbling(Path(sys.argv[1]), "hang", times=9))
with WorkerPool(transport, 2, FreeText()) as backend:
    print(*(slot.link.pid for slot in backend._slots), flush=True)
    for _ in backend.sample(wanted):
        pass
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_their_driver_however_it_ends(marks):
    """Even in the midst of a step that never ends."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(marks)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    while len(list(marks.iterdir())) < 2:
        assert driver.poll() is None
        time.sleep(0.05)
    assert all(map(alive, pids))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    for _ in range(200):
        if not any(map(alive, pids)):
            return
        time.sleep(0.05)
    pytest.fail("workers outlived their driver")
