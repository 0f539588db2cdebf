"""A worker of `serve --workers` that hangs is noticed and replaced, and its requests are answered."""

from __future__ import annotations

import os
import queue
import signal

import pytest

import twotemp
from tests.serving_clients import PROMPT, wait_for
from twotemp.engine import Written
from twotemp.sampling import requests_for
from twotemp.serving.crew import Crew


def tiny(place: int):
    return twotemp.load("tiny")


def test_a_hung_worker_is_not_preferred_and_is_replaced():
    model = twotemp.load("tiny")
    crew = Crew(model, tiny, more=1, slots=4, cache=None).__enter__()
    try:
        wait_for(lambda: crew.ready == 2, seconds=120)
        hung = crew._workers[1]._process.pid
        os.kill(hung, signal.SIGSTOP)
        requests = list(requests_for(model, PROMPT, "ar", 8, 40, seed=3))
        for handle in [crew.submit(request, lambda event: None) for request in requests]:
            crew.cancel(handle)
        events: queue.Queue = queue.Queue()
        for request in requests:
            crew.submit(request, events.put)
        samples = []
        while len(samples) < len(requests):
            event = events.get(timeout=20)  # the hang timeout is far shorter
            if not isinstance(event, Written):
                samples.append(event)
        assert crew._workers[1]._process.pid != hung
    except queue.Empty:
        pytest.fail("requests given to a worker that hangs are never answered")
    finally:
        crew.close()
