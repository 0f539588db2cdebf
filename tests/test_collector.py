"""Requests that arrive one by one are drawn together, each as if it were alone."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import twotemp
from twotemp.engine import run
from twotemp.engine.batch import Batch
from twotemp.errors import UserError
from twotemp.integrations.collector import Collector
from twotemp.policies import parse
from twotemp.records import Request


@pytest.fixture(scope="module")
def model():
    return twotemp.load("tiny")


def requests(model, n: int, policy: str = "tlc") -> list[Request]:
    prompt = tuple(model.encode("3 7 12 -> 33"))
    return [Request("a", prompt, parse(policy), length=12, index=index) for index in range(n)]


@pytest.fixture
def collect(model):
    """Makes collectors, and closes them."""
    made = []

    def make(slots: int) -> Collector:
        made.append(Collector(model, slots))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_callers_in_several_threads_get_their_own_samples(model, collect):
    collector, found = collect(3), {}
    asked = [*requests(model, 8), *requests(model, 8, "tct:t_pos=0.5")]

    def call(number: int) -> None:
        found[number] = collector.submit(asked[number]).result(60)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {(s.policy, s.index): s.tokens for s in run(model, asked)}
    assert {(s.policy, s.index): s.tokens for s in found.values()} == expected
    assert all(found[number].index == asked[number].index for number in found)


def test_a_wrong_request_fails_alone(model, collect):
    collector = collect(2)
    right, wrong = requests(model, 2)
    futures = [collector.submit(right), collector.submit(replace(wrong, length=10**6))]
    with pytest.raises(UserError):
        futures[1].result(60)
    assert futures[0].result(60).index == 0


def test_a_cancelled_request_leaves_its_slot(model, collect):
    collector = collect(1)
    first, second = (collector.submit(request) for request in requests(model, 2))
    assert first.cancel()
    assert second.result(60).index == 1
    assert not collector._waiting


def test_an_error_of_the_model_reaches_who_waits_and_nobody_else(model, collect, monkeypatch):
    def broken(*given):
        raise RuntimeError("no such device")

    collector, asked = collect(2), requests(model, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "run", broken)
        for future in [collector.submit(request) for request in asked]:
            with pytest.raises(UserError, match="a step failed") as caught:
                future.result(60)
            assert "no such device" in str(caught.value.__cause__)
    assert collector.submit(asked[1]).result(60).index == 1


def test_closing_ends_the_thread_and_who_waits(model):
    collector = Collector(model, slots=1)
    futures = [collector.submit(request) for request in requests(model, 4)]
    collector.close()
    assert not collector._service._thread.is_alive()
    assert not collector._waiting
    assert all(future.done() for future in futures)
