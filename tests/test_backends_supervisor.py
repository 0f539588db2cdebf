"""Several processes behind one server: the same samples, and none lost with a process that dies."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

import twotemp
from tests.serving_clients import PROMPT, client_of, wait_for
from twotemp.engine import Stopped, Written
from twotemp.errors import UserError
from twotemp.sampling import requests_for
from twotemp.serving.crew import Crew, Task


def tiny(place: int):
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


@pytest.fixture(scope="module")
def crew(model):
    made = Crew(model, tiny, more=1, slots=4, cache=None).__enter__()
    wait_for(lambda: made.ready == 2, seconds=240)
    yield made
    made.close()
    assert not any("twotemp" in thread.name for thread in threading.enumerate())


def ask(crew, model, n: int, **options):
    requests = requests_for(model, PROMPT, "ar", n, 40, seed=3)
    events = queue.Queue()
    tasks = [crew.submit(r, lambda event, r=r: events.put((r.index, event)), **options) for r in requests]
    return tasks, events


def ended(events, n: int) -> dict[int, object]:
    found = {}
    while len(found) < n:
        index, event = events.get(timeout=240)
        if not isinstance(event, Written):
            assert index not in found
            found[index] = event
    return found


@pytest.mark.slow
def test_both_draw_and_it_does_not_matter_who(crew, model):
    tasks, events = ask(crew, model, 24, watch=True)
    assert {type(task.worker).__name__ for task in tasks} == {"Here", "There"}
    found = ended(events, 24)
    expected = twotemp.sample(model, PROMPT, "ar", n=24, length=40, seed=3)
    assert [found[index].tokens for index in range(24)] == [one.tokens for one in expected]
    assert crew.load == 0
    _, events = ask(crew, model, 8, stop=["="])
    assert all(isinstance(one, Stopped) for one in ended(events, 8).values())


@pytest.mark.slow
def test_what_is_cancelled_frees_its_rows(crew, model):
    tasks, events = ask(crew, model, 60)
    for task in tasks:
        crew.cancel(task)
    wait_for(lambda: crew.load == 0)
    ended(ask(crew, model, 4)[1], 4)
    assert events.qsize() < 60


@pytest.mark.slow
def test_a_process_that_dies_loses_nothing_and_comes_back(crew, model):
    tasks, events = ask(crew, model, 24)
    there = crew._workers[1]
    assert there.load
    os.kill(there._process.pid, signal.SIGKILL)
    found = ended(events, 24)
    assert any(task.lost for task in tasks)
    expected = twotemp.sample(model, PROMPT, "ar", n=24, length=40, seed=3)
    assert [found[index].tokens for index in range(24)] == [one.tokens for one in expected]
    wait_for(lambda: crew.ready == 2, seconds=240)


@pytest.mark.slow
def test_a_process_that_hangs_keeps_nobody_else_waiting(crew, model):
    there = crew._workers[1]
    os.kill(there._process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        tasks, events = ask(crew, model, 900)
        assert time.monotonic() - began < 20
        assert not there._orders.empty()  # it was told more than the pipe holds
        kept = {n for n, task in enumerate(tasks) if task.worker is there and n < 8}
        assert kept
        for n, task in enumerate(tasks):
            if n not in kept:
                crew.cancel(task)
        assert there.load == len(kept)
    finally:
        os.kill(there._process.pid, signal.SIGCONT)
    while kept:
        index, event = events.get(timeout=240)
        kept -= {index} if not isinstance(event, Written) else set()
    assert not any(task.lost for task in tasks)
    wait_for(lambda: crew.load == 0)


@pytest.mark.slow
def test_the_server_counts_for_all(model):
    with client_of(model, crew=Crew(model, tiny, more=1, slots=8, cache=None)) as client:
        wait_for(lambda: client.service.ready == 2, seconds=240)
        body = {"prompt": PROMPT, "n": 24, "max_tokens": 40, "policy": "ar", "seed": 3}
        texts = [c["text"] for c in client.post("/v1/completions", json=body).json()["choices"]]
        assert texts == [
            one.text for one in twotemp.sample(model, PROMPT, "ar", n=24, length=40, seed=3, chat=False)
        ]
        assert "twotemp_samples_total 24\n" in client.get("/metrics").text


class Fragile:
    """A worker that takes what it is given, and dies with it."""

    ready, load = True, -1  # whoever has least to do is asked first

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, []

    def take(self, task: Task) -> bool:
        self.taken.append(task)
        self.load = -1 if len(self.taken) < self.limit else 10**6
        return True

    def drop(self, task: Task) -> None:
        self.taken.remove(task)

    def close(self) -> None:
        pass


def test_what_was_lost_twice_is_an_error(model):
    told = []
    crew = Crew(model, tiny, more=0, slots=4, cache=None)
    crew._workers = [worker := Fragile(limit=3)]
    (request,) = requests_for(model, PROMPT, "lc", 1, 8)
    task = crew.submit(request, told.append)
    crew._again(worker.taken.copy())
    assert worker.taken == [task, task]
    assert not told
    crew._again([task])
    assert isinstance(told[0], UserError)
    assert "twice" in str(told[0])
    gone = crew.submit(request, told.append)
    crew.cancel(gone)
    crew._again([gone])
    assert len(told) == 1
    assert worker.taken == [task, task]


def test_who_died_since_it_was_asked_is_passed_over(model):
    class Dead(Fragile):
        def take(self, task: Task) -> bool:
            self.load = 10**6
            return False

    crew = Crew(model, tiny, more=0, slots=4, cache=None)
    crew._workers = [Dead(1), worker := Fragile(1)]
    crew._workers[0].load = -2
    (request,) = requests_for(model, PROMPT, "lc", 1, 8)
    assert crew.submit(request, print).worker is worker


def test_a_task_is_not_cancelled_while_it_changes_hands(model):
    asked, go = threading.Event(), threading.Event()

    class Slow(Fragile):
        def take(self, task: Task) -> bool:
            asked.set()
            assert go.wait(30)
            return super().take(task)

    crew = Crew(model, tiny, more=0, slots=4, cache=None)
    crew._workers = [worker := Slow(1)]
    (request,) = requests_for(model, PROMPT, "lc", 1, 8)
    task = Task(request, print, watch=False, stop=())
    calls = [threading.Thread(target=crew._again, args=([task],))]
    calls.append(threading.Thread(target=crew.cancel, args=(task,)))
    calls[0].start()
    assert asked.wait(30)
    calls[1].start()
    calls[1].join(0.2)
    go.set()
    for call in calls:
        call.join(30)
    assert task.cancelled
    assert worker.taken == []


def test_a_listener_that_raises_is_nobody_elses_trouble(model, caplog):
    told = []
    crew = Crew(model, tiny, more=0, slots=4, cache=None)
    (request,) = requests_for(model, PROMPT, "lc", 1, 8)
    lost = [Task(request, on_event, watch=False, stop=()) for on_event in ([].remove, told.append)]
    for task in lost:
        task.lost = True
    crew._again(lost)
    assert "twice" in str(told[0])
    assert "could not be delivered" in caplog.text


def test_what_nobody_takes_any_more_is_an_error(model):
    told = []
    crew = Crew(model, tiny, more=0, slots=4, cache=None)
    crew.__enter__()
    crew.close()
    (request,) = requests_for(model, PROMPT, "lc", 1, 8)
    crew._again([Task(request, told.append, watch=False, stop=())])
    assert "takes no new work" in str(told[0])


def test_what_no_service_takes_is_refused_before_a_worker_is_asked(model):
    """A worker would die of it."""
    (request,) = requests_for(model, PROMPT, "odd", 1, 4)
    with pytest.raises(UserError, match="a service that takes rows as they come cannot do"):
        Crew(model, lambda place: model, 0, slots=2, cache=None).submit(request, print)
