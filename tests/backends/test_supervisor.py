"""Live requests with workers: events of a row go on across a worker's death, and a hung worker is replaced."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

import twotemp
from tests.helpers.fake_workers import Stumbling, free, free_sample, slow, streaming, tiny
from tests.helpers.serving_clients import PROMPT, client_of, wait_for
from tests.helpers.worker_runs import collect, requests, submit
from twotemp.backends.messages import Events, Lost, Ready, Submit
from twotemp.backends.process import ProcessTransport
from twotemp.backends.supervisor import Supervisor
from twotemp.errors import UserError
from twotemp.records import Sample
from twotemp.sampling.requests import prompt_requests

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


def workers(make, count: int = 2, **options) -> Supervisor:
    return Supervisor(ProcessTransport(make, hold_seconds=0.0), count, **{"depth": 128, **options})


def pids(service: Supervisor) -> list[int]:
    return [slot.link.pid for slot in service._slots]


# --- a worker that hangs


def test_a_hung_worker_is_not_preferred_and_is_replaced():
    """Its requests are canceled, so that it owes nothing; new ones must not wait for it."""
    with workers(free, hang_seconds=2.0) as service:
        wait_for(lambda: service.ready == 2)
        hung = pids(service)[1]
        os.kill(hung, signal.SIGSTOP)
        handles, _ = submit(service, requests(8))
        for handle in handles:
            service.cancel(handle)
        assert service.load == 0
        _, events = submit(service, requests(8))
        found = collect(events, 8, seconds=20)
        assert {index: row[-1] for index, row in found.items()} == {
            request.index: free_sample(request) for request in requests(8)
        }
        wait_for(lambda: service.ready == 2)
        assert hung not in pids(service)


def test_canceled_requests_of_a_hung_worker_keep_its_load_until_it_answers():
    with workers(slow, hang_seconds=60.0) as service:
        wait_for(lambda: service.ready == 2)
        slot = service._slots[1]
        os.kill(slot.link.pid, signal.SIGSTOP)
        handles, _ = submit(service, requests(4))
        for handle in handles:
            service.cancel(handle)
        _, events = submit(service, requests(1))
        collect(events, 1)  # by the other worker
        assert len(slot.jobs) == 2
        assert service.load == 0
        os.kill(slot.link.pid, signal.SIGCONT)
        wait_for(lambda: not slot.jobs)


def test_a_hung_worker_does_not_keep_its_callers_waiting():
    """It is given more than its pipe holds."""
    with workers(slow, 1, depth=10**6) as service:
        wait_for(lambda: service.ready == 1)
        os.kill(pids(service)[0], signal.SIGSTOP)
        large = [replace(request, prompt=(1,) * 4096) for request in requests(500, length=1)]
        began = time.monotonic()
        handles, _ = submit(service, large)
        assert time.monotonic() - began < 10
        for handle in handles:
            service.cancel(handle)


# --- a row is streamed across the death of its worker


@pytest.mark.parametrize("how", ["kill", "stop", "hang", "crash"])
def test_a_streamed_row_goes_on_when_its_worker_fails(tmp_path, how):
    (request,) = requests(1)
    with workers(Stumbling(tmp_path, how, after=12, make=streaming), hang_seconds=1.0) as service:
        _, events = submit(service, [request], watch=True)
        *steps, sample = collect(events, 1)[0]
    assert len(list(tmp_path.iterdir())) == 1, "it happened"
    assert service.resent == 1
    assert [written.step for written in steps] == list(range(30)), "no step is missing, none is repeated"
    written = {position: token for step in steps for position, token, _ in step.commits}
    assert sample == free_sample(request)
    assert tuple(written[position] for position in sample.positions) == sample.tokens


# --- what is owed


@pytest.mark.slow
def test_all_workers_draw_and_their_samples_are_those_of_one_process(model):
    with workers(tiny) as service:
        wait_for(lambda: service.ready == 2, seconds=240)
        wanted = list(prompt_requests(model, PROMPT, "ar", 24, 40, seed=3))
        handles, events = submit(service, wanted, watch=True)
        assert {handle.worker for handle in handles} == set(service._slots)
        found = collect(events, 24)
        expected = twotemp.sample(model, PROMPT, "ar", n=24, length=40, seed=3)
        assert [found[index][-1].tokens for index in range(24)] == [sample.tokens for sample in expected]
        assert service.load == 0
        _, events = submit(service, [replace(request, stop=("=",)) for request in wanted[:8]])
        assert {row[-1].finish for row in collect(events, 8).values()} == {"stop"}


def test_what_is_canceled_frees_its_rows():
    with workers(slow) as service:
        wait_for(lambda: service.ready == 2)
        handles, events = submit(service, requests(60))
        for handle in handles:
            service.cancel(handle)
        assert service.load == 0
        collect(submit(service, requests(4))[1], 4)
        assert events.qsize() < 60
        wait_for(lambda: not any(slot.jobs for slot in service._slots))


def test_a_killed_worker_loses_nothing_and_is_replaced():
    with workers(slow) as service:
        wait_for(lambda: service.ready == 2)
        _, events = submit(service, requests(24))
        killed = pids(service)[1]
        os.kill(killed, signal.SIGKILL)
        found = collect(events, 24)
        assert service.resent > 0
        assert all(row == [free_sample(requests(24)[index])] for index, row in found.items())
        wait_for(lambda: service.ready == 2)
        assert killed not in pids(service)


def test_closing_ends_threads_and_processes():
    before = set(threading.enumerate())
    with workers(free) as service:
        wait_for(lambda: service.ready == 2)
        processes = pids(service)
    wait_for(lambda: set(threading.enumerate()) <= before)
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    with pytest.raises(UserError, match="accepts no new requests"):
        service.submit(requests(1)[0], print)


def test_closing_without_drop_finishes_what_was_accepted():
    with workers(slow, 1) as service:
        _, events = submit(service, requests(5))
        service.close()
        assert events.qsize() == 5


def test_samples_that_repel_each_other_are_refused(model):
    (request,) = prompt_requests(model, PROMPT, "odd", 1, 4)
    with (
        workers(free, 1) as service,
        pytest.raises(UserError, match="starts each row when it arrives cannot do"),
    ):
        service.submit(request, print)


# --- without processes


class Scripted:
    """A transport whose workers do what the test says."""

    def __init__(self, *scripts) -> None:
        self.scripts, self.reports, self.started, self.killed = list(scripts), queue.SimpleQueue(), 0, 0

    def start(self, index):
        self.started += 1
        self.reports.put((index, Ready("m", "f")))
        return Link(self, index, self.scripts.pop(0) if self.scripts else answer)

    def receive(self, links, seconds):
        try:
            return [self.reports.get(timeout=seconds)]
        except queue.Empty:
            return []

    def close(self):
        pass


class Link:
    def __init__(self, transport, index, script) -> None:
        self.transport, self.index, self.script = transport, index, script

    def send(self, order) -> None:
        for report in self.script(order):
            self.transport.reports.put((self.index, report))

    def kill(self) -> None:
        self.transport.killed += 1


def answer(order):
    if isinstance(order, Submit):
        yield Events(tuple((number, free_sample(request)) for number, request, _ in order.requests))
    else:
        yield Events(tuple((number, None) for number in order.numbers))


def die(order):
    yield Lost("it was bad luck")


class Batched(Scripted):
    """A transport that delivers all reports at once."""

    def receive(self, links, seconds):
        reports = super().receive(links, seconds)
        while not self.reports.empty():
            reports.append(self.reports.get())
        return reports


def test_a_loss_that_is_reported_for_every_row_costs_one_worker():
    """The reports that follow the first one come from the old worker and must not end the new one."""
    transport = Batched(lambda order: [Lost("out of memory")] * 9)
    with Supervisor(transport, 1, depth=8) as service:
        _, events = submit(service, requests(1))
        assert isinstance(collect(events, 1, seconds=10)[0][-1], Sample)
        assert transport.started == 2


def ignore(order):
    return []


def test_what_costs_three_workers_is_an_error_and_the_next_request_is_served():
    with Supervisor(Scripted(die, die, die), 1, depth=8) as service:
        _, events = submit(service, requests(1))
        (error,) = collect(events, 1)[0]
        assert isinstance(error, UserError)
        assert (
            "3 workers in turn were lost while they drew sample 0 of request 'q' with ar (the last: it was"
            in str(error)
        )
        _, events = submit(service, requests(1))
        assert collect(events, 1)[0] == [free_sample(requests(1)[0])]


def test_what_was_canceled_is_not_drawn_again():
    transport = Scripted(ignore)
    with Supervisor(transport, 1, depth=8) as service:
        wait_for(lambda: service.ready == 1)
        (handle,), events = submit(service, requests(1))
        service.cancel(handle)
        transport.reports.put((0, Lost("gone")))
        wait_for(lambda: transport.started == 2)
        assert service.resent == 0
        _, later = submit(service, requests(1))
        collect(later, 1)
        assert events.empty()


def test_requests_wait_for_whichever_worker_is_free_first():
    """One worker keeps what it has; the rest goes to the other one."""
    with Supervisor(Scripted(ignore), 2, depth=2) as service:
        wait_for(lambda: service.ready == 2)
        handles, events = submit(service, requests(20))
        wait_for(lambda: service.load == len(service._slots[0].jobs))
        assert len(service._slots[0].jobs) == 3
        assert events.qsize() == 17
        for handle in handles:
            service.cancel(handle)


def test_a_listener_that_raises_costs_only_its_own_request(caplog):
    with Supervisor(Scripted(), 1, depth=8) as service:
        service.submit(requests(1)[0], [].remove)
        _, events = submit(service, requests(1))
        assert isinstance(collect(events, 1)[0][0], Sample)
    assert "the request is canceled" in caplog.text


def test_workers_with_different_models_are_refused():
    transport = Scripted(ignore, ignore)
    with Supervisor(transport, 2, depth=8) as service:
        _, events = submit(service, requests(1))
        wait_for(lambda: service.ready == 2)
        transport.reports.put((1, Ready("m", "other")))
        (error,) = collect(events, 1)[0]
        assert "two workers loaded different models" in str(error)
        with pytest.raises(UserError, match="different models"):
            submit(service, requests(1))


@pytest.mark.slow
def test_the_server_counts_samples_of_all_workers(model):
    service = workers(tiny)
    with client_of(model, service=service) as client:
        wait_for(lambda: service.ready == 2, seconds=240)
        body = {"prompt": PROMPT, "n": 24, "max_tokens": 40, "policy": "ar", "seed": 3}
        texts = [c["text"] for c in client.post("/v1/completions", json=body).json()["choices"]]
        expected = twotemp.sample(model, PROMPT, "ar", n=24, length=40, seed=3, chat=False)
        assert texts == [sample.text for sample in expected]
        assert "twotemp_samples_total 24\n" in client.get("/metrics").text
