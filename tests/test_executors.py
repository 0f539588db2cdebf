"""Worker processes: nothing is lost, nothing comes twice, and every sample is what this process would have drawn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import groupby, permutations
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers import toy_task
from tests.helpers.executor_makes import Free, Stumbling, free, free_sample, last_words, micro, slow
from tests.helpers.executor_runs import UNIT, run
from twotemp.errors import UserError
from twotemp.evaluation import InProcess
from twotemp.executors import Processes, Supervisor
from twotemp.executors.messages import Done, Draw, Drawn, Lost, Ready, cut
from twotemp.executors.processes import Process, environment
from twotemp.executors.ray_actors import Actor
from twotemp.policies import parse
from twotemp.records import Request

pytestmark = pytest.mark.usefixtures("toy_tasks", "forked_processes")


@pytest.fixture
def marks(tmp_path) -> Path:
    (folder := tmp_path / "marks").mkdir()
    return folder


class SameCuts(InProcess):
    """This process, unit by unit as workers would draw it."""

    def draw(self, chunks):
        return super().draw((unit.tag, unit.requests) for unit in cut(chunks, UNIT))


def crew(make, count: int = 2, **options) -> Supervisor:
    return Supervisor(Processes(make), count, **{"unit": UNIT, **options})


@pytest.mark.parametrize("how", ["kill", "hang", "stop", "crash"])
def test_whatever_happens_to_a_worker_nothing_is_lost_and_nothing_comes_twice(tmp_path, marks, how):
    with crew(Stumbling(marks, how), patience=2.0) as drawer:
        found = run(drawer, tmp_path / "run")
    assert len(list(marks.iterdir())) == 1, "it happened"
    assert drawer.resent > 0
    assert found == run(Free(), tmp_path / "here")


def test_a_killed_worker_leaves_no_mark_on_any_bit_and_other_cuts_only_on_the_last_of_traces(tmp_path, marks):
    """With a real engine in the workers."""
    model = toy_task.micro_model()
    expected = run(SameCuts(model), tmp_path / "here")
    with crew(Stumbling(marks, "kill", make=micro)) as drawer:
        assert run(drawer, tmp_path / "run") == expected
    assert len(list(marks.iterdir())) == 1
    assert drawer.resent > 0
    for name, (sample, grade) in run(InProcess(model, batch_size=5), tmp_path / "other").items():
        other, same = expected[name]
        assert (replace(sample, trace=None), grade) == (replace(other, trace=None), same)
        assert sample.trace is not None
        assert other.trace is not None
        assert sample.trace.steps == other.trace.steps
        assert sample.trace.confidence == pytest.approx(other.trace.confidence, abs=1e-5)
        assert sample.trace.entropy == pytest.approx(other.trace.entropy, abs=1e-5)


@pytest.mark.slow
def test_groups_are_the_same_on_workers(marks):
    """Samples that repel each other, in more units than one; a unit of a lost worker is drawn again as a whole."""
    chosen = parse("odd:t_token=1.5")
    wanted = [Request(f"q{n}", (10, 11 + n), chosen, 6, index=i) for n in range(6) for i in range(5)]
    expected = {
        sample.key: sample.tokens for _, sample in InProcess(toy_task.micro_model()).draw([(0, wanted)])
    }
    with crew(Stumbling(marks, "kill", make=micro), unit=8) as drawer:
        found = {sample.key: sample.tokens for _, sample in drawer.draw([(0, wanted)])}
    assert len(list(marks.iterdir())) == 1
    assert found == expected


def requests(count: int, policy: str = "ar") -> list[Request]:
    return [Request("q", (1, 2), parse(policy), length=8, index=index) for index in range(count)]


def test_a_unit_that_costs_three_workers_is_given_up_with_its_name(marks):
    wanted = requests(3)
    make = Stumbling(marks, "kill", times=9, after=1)
    with (
        crew(make) as drawer,
        pytest.raises(UserError, match=r"3 workers in turn.*sample 0 of 'q' with ar and 2 others.*SIGKILL"),
    ):
        list(drawer.draw([(None, wanted)]))
    assert len(list(marks.iterdir())) == 3
    assert drawer.resent == 9


def test_workers_that_cannot_even_load_the_model_are_given_up(marks):
    with (
        crew(Stumbling(marks, "kill", times=9, after=0), 1) as drawer,
        pytest.raises(UserError, match="3 workers in turn were lost while they loaded the model"),
    ):
        drawer.name  # noqa: B018
    assert len(list(marks.iterdir())) == 3


def test_the_last_words_of_a_worker_are_told():
    """Also where the interpreter takes its time to end after them."""
    process = Process(last_words, threads=1)
    with pytest.raises(EOFError):
        process.link.recv()
    assert process.reason() == "RuntimeError: the sky fell"
    process.kill()


def test_an_actor_of_which_several_answers_are_due_is_lost_once(monkeypatch):
    class Gone(Exception):
        pass

    class Unit:
        def __next__(self):
            return "a sample"

    def get(source):
        raise Gone("the actor died")

    fake = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Gone))
    monkeypatch.setitem(sys.modules, "ray", fake)
    asked = SimpleNamespace(remote=lambda *order: object())
    drawing = SimpleNamespace(remote=lambda order: Unit())
    actor = Actor(SimpleNamespace(ready=asked, steps=asked, draw=drawing))
    actor.send(Draw(()))
    due = actor.pending()
    assert len(due) == 3
    for order in permutations(due):
        actor._questions, actor._pulse, actor._units = [due[0]], due[1], [due[2]]
        assert [news for source in order for news in actor.answer(source)] == [Lost("the actor died")]


def test_a_mistake_of_the_users_is_raised_at_once(marks):
    with (
        crew(Stumbling(marks, "mistake", times=9, after=1), 1) as drawer,
        pytest.raises(UserError, match="write English"),
    ):
        list(drawer.draw([(None, requests(3))]))
    assert len(list(marks.iterdir())) == 1
    assert drawer.resent == 0


def test_after_a_mistake_the_next_request_is_served(marks):
    """It fails with samples of its unit on their way, and another unit behind it."""
    with crew(Stumbling(marks, "mistake", after=2), 1) as drawer:
        with pytest.raises(UserError, match="write English"):
            list(drawer.draw([("old", requests(3 * UNIT))]))
        found = list(drawer.draw([("new", requests(3 * UNIT, "tlc"))]))
    assert len(list(marks.iterdir())) == 1
    assert [tag for tag, _ in found] == ["new"] * 3 * UNIT
    assert [sample for _, sample in found] == [free_sample(request) for request in requests(3 * UNIT, "tlc")]


def test_a_worker_answers_for_the_model_also_while_it_draws():
    with crew(slow, 1) as drawer:
        assert (drawer.name, drawer.fingerprint) == ("free", "f1nger")
        drawn = drawer.draw([(None, requests(16))])
        next(drawn)
        assert drawer.encode("3 +", prefill=" 7") == Free().encode("3 +", prefill=" 7")
        assert drawer._hands[0].units, "it was drawing all the while"
        assert [sample for _, sample in drawn] == [free_sample(request) for request in requests(16)[1:]]
        with pytest.raises(UserError, match="write English"):
            drawer.encode("Latin")


def test_what_was_left_early_does_not_turn_up_later():
    with crew(free, 1) as drawer:
        for _ in drawer.draw([("old", requests(40))]):
            break
        found = list(drawer.draw([("new", requests(20, "tlc"))]))
    assert [tag for tag, _ in found] == ["new"] * 20
    assert {sample.policy.name for _, sample in found} == {"tlc"}


class Late:
    """A crew of one, whose sign of life was under way when its unit ended, as an actor's may be."""

    def __init__(self):
        self.news = [Ready("free", "f1nger")]

    def start(self, place):
        return self

    def send(self, order):
        drawn = tuple(map(free_sample, order.requests))
        self.news += [Drawn(drawn[:1]), Drawn(drawn[1:]), Done(), Drawn()]

    def hear(self, workers, seconds):
        news, self.news = self.news, []
        return [(0, one) for one in news]

    def kill(self):
        pass

    close = kill


def test_a_sign_of_life_may_come_after_the_end():
    with Supervisor(Late(), 1, unit=UNIT) as drawer:
        assert len(list(drawer.draw([(None, requests(40))]))) == 40


def test_the_next_chunk_is_asked_for_before_the_last_one_ends():
    """Of 4 chunks, each smaller than a unit, two workers have two at any time."""
    asked: list[int] = []

    def chunks():
        for number in range(4):
            asked.append(number)
            yield number, requests(4)

    with crew(free, 2) as drawer:
        drawn = drawer.draw(chunks())
        next(drawn)
        assert len(asked) >= 2
        assert len(list(drawn)) == 15


def test_units_share_a_structure_are_of_equal_size_and_depend_on_requests_alone():
    wanted = [request for policy in ("ar", "tct", "lc") for request in requests(20, policy)]
    units = list(cut([("a", wanted), ("b", wanted[:3])], 16))
    assert [(u.tag, len(u.requests)) for u in units[:-1]] == [("a", 10)] * 6
    assert (units[-1].tag, len(units[-1].requests)) == ("b", 3)
    assert all(len(list(groupby(u.requests, lambda r: r.policy.structure))) == 1 for u in units)
    again = list(cut(iter([("a", iter(wanted)), ("b", iter(wanted[:3]))]), 16))
    assert [u.requests for u in again] == [u.requests for u in units]


def test_a_worker_gets_nothing_of_the_environment_but_what_it_needs(monkeypatch):
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "SSH_AUTH_SOCK", "http_proxy"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    given = environment(2)
    assert "secret" not in given.values()
    assert (given["CUDA_VISIBLE_DEVICES"], given["OMP_NUM_THREADS"]) == ("3", "2")
    assert given["PATH"] == os.environ["PATH"]


DRIVER = """
import sys
from pathlib import Path
from tests.helpers.executor_makes import Free, Stumbling, free, free_sample, micro, slow
from twotemp.executors import Processes, Supervisor
from twotemp.policies import parse
from twotemp.records import Request
wanted = [Request("q", (1, 2), parse("ar"), length=8, index=index) for index in range(10**4)]
with Supervisor(Processes(Stumbling(Path(sys.argv[1]), "hang", times=9)), 2) as drawer:
    print(*(hand.worker.pid for hand in drawer._hands), flush=True)
    for _ in drawer.draw([(None, wanted)]):
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
