"""Requests that come and go while a batch runs: the same samples, and no request harms another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from queue import Queue
from threading import active_count

import pytest
import torch

import twotemp
from tests.helpers.engine_requests import same
from tests.helpers.tiny_checkpoints import random_model
from tests.helpers.toy import ToyModel
from twotemp.backends.local import Handle, LocalBackend, LocalService
from twotemp.engine import LiveBatches, RowStep, run
from twotemp.errors import UserError
from twotemp.policies import PRESETS, policy
from twotemp.records import Request, Sample
from twotemp.sampling.requests import settle

FAMILIES = ("llada", "Dream", "sdar", "llada2_moe")
CASES = [(f, c) for f in FAMILIES for c in ((None, "prefix", "dual") if f in FAMILIES[:2] else (None,))]
_MODELS: dict[str, object] = {}


def family(name):
    return _MODELS.setdefault(name, random_model(name))


@pytest.fixture(scope="module")
def tiny():
    return twotemp.load("tiny")


def varied(model, name: str, count: int = 7) -> list[Request]:
    """Prompts and lengths that grow, so that later rows need room that the batch does not have yet; with infilling
    that starts at an early position, and other numbers in every row."""
    made = []
    for n in range(count):
        prompt = tuple(2 + (n * 7 + i) % 25 for i in range(2 + 2 * n))
        if n % 3 == 2:
            prompt = (prompt[0], model.mask_id, model.mask_id, *prompt[1:], model.mask_id)
        length = 0 if n % 3 == 2 else 4 + 3 * n
        block = None if model.block_size else (4, 8, 16)[n % 3]
        chosen = policy(name, t_token=0.5 + 0.2 * n)
        made.append(Request(f"q{n}", prompt, chosen, length, block, seed=n, trace=n % 2 == 0))
    return made


def arrive(model, wanted: Sequence[Request], cache: str | None, slots: int = 3) -> dict[str, Sample]:
    """Submit one by one between turns; one more row comes and goes."""
    live, found = LiveBatches(model, slots, cache), {}
    guest = None
    for n, request in enumerate(wanted):
        live.submit(request, watch=n % 2 == 1)
        if n == 1:
            guest = live.submit(Request("guest", (3, 4, 5), request.policy, 12, request.block))
        for _ in range(2):
            found |= {t.request.id: e for t, e in live.turn() if isinstance(e, Sample)}
        if n == 2:
            live.cancel(guest)
    while not live.idle:
        found |= {t.request.id: e for t, e in live.turn() if isinstance(e, Sample)}
    found.pop("guest", None)
    return found


def check_arrivals(name: str, kind: str, cache: str | None) -> None:
    model = family(kind)
    wanted = varied(model, name)
    expected = {s.request: s for s in run(model, wanted, cache=cache)}
    found = arrive(model, wanted, cache)
    assert found.keys() == expected.keys()
    for key, one in found.items():
        assert same(one, expected[key]), key


@pytest.mark.parametrize(("number", "name"), list(enumerate(PRESETS)))
def test_arrivals_in_the_middle_of_a_run_change_no_sample(number, name):
    """Every preset, each with some family and cache; all combinations are in the slow test."""
    check_arrivals(name, *CASES[number % len(CASES)])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cache"), CASES)
@pytest.mark.parametrize("name", PRESETS)
def test_arrivals_of_every_preset_family_and_cache(name, kind, cache):
    check_arrivals(name, kind, cache)


def test_watched_rows_report_what_the_trace_says():
    model = ToyModel()
    watched = Request("w", (2, 3), policy("tct"), 12, 4, trace=True)
    live = LiveBatches(model, 4)
    live.submit(Request("other", (4,), policy("tct"), 16, 8))
    handle = live.submit(watched, watch=True)
    steps, sample = [], None
    while not live.idle:
        for whose, event in live.turn():
            if isinstance(event, RowStep):
                assert whose is handle, "only watched rows are told"
                steps.append(event)
            elif whose is handle:
                sample = event
    at = {position: n for n, position in enumerate(sample.positions)}
    told = {at[p]: (w.step, token, surely) for w in steps for p, token, surely in w.commits}
    assert [told[n][:2] for n in range(12)] == list(zip(sample.trace.steps, sample.tokens))
    assert [told[n][2] for n in range(12)] == pytest.approx(list(sample.trace.confidence))


def test_watching_costs_one_transfer_whatever_the_rows(monkeypatch):
    live = LiveBatches(ToyModel(), 8)
    for n in range(8):
        live.submit(Request(f"q{n}", (2, 3 + n), policy("lc"), 4, 4), watch=n > 0)
    transfers = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t, *a, **k: transfers.append(t.shape) or cpu(t, *a, **k))
    assert len(live.turn()) == 7
    assert len(transfers) == 2, "the step's own, and one for what was written"


class Sick(ToyModel):
    """Broken logits for every row that starts with token 13."""

    def logits(self, ids, attention_mask, want):
        found = super().logits(ids, attention_mask, want)
        flat = ids.expand(len(ids), -1)[:, :1].expand_as(ids).flatten()[want.flatten()]
        found[flat == 13] = float("nan")
        return found


def test_a_nan_is_the_error_of_its_own_request():
    model, events = Sick(), Queue()
    wanted = [Request(f"q{n}", (n, 3), policy("lc"), 6, 6) for n in (2, 13, 5)]
    with LocalService(model, slots=4) as service:
        for request in wanted:
            service.submit(request, lambda event, r=request: events.put((r.id, event)))
    found = dict(events.get_nowait() for _ in range(3))
    assert isinstance(found["q13"], UserError)
    assert "NaN" in str(found["q13"])
    healthy = [wanted[0], wanted[2]]
    for one in LocalBackend(ToyModel()).sample(healthy):
        assert same(one, found[one.request])


class Failing(ToyModel):
    def logits(self, ids, attention_mask, want):
        if len(ids) > 1:
            raise RuntimeError("the device is gone")
        return super().logits(ids, attention_mask, want)


def test_a_step_that_fails_ends_its_requests_and_the_service_goes_on():
    events: Queue = Queue()
    with LocalService(Failing(), slots=2) as service:
        jobs = [Request(f"q{n}", (2, 3), policy("lc"), 40, 4, index=n) for n in range(2)]
        with service._changed:  # both arrive at once
            for request in jobs:
                service.submit(request, events.put)
        told = [events.get(timeout=30) for _ in jobs]
        # The error may be about a neighbor's text, so it is the cause and not what is said.
        assert all(str(one) == "a step failed; see the log for the cause" for one in told)
        assert all("device is gone" in str(one.__cause__) for one in told)
        service.submit(Request("alone", (2, 3), policy("lc"), 4), events.put)
        assert events.get(timeout=30).request == "alone"
        assert service.load == 0


class Poisoned(ToyModel):
    """Fails at rows that hold token 13."""

    def logits(self, ids, attention_mask, want):
        if (ids == 13).any():
            raise RuntimeError("the device is gone")
        return super().logits(ids, attention_mask, want)


def test_a_batch_that_fails_costs_no_other_batch_anything():
    model, live = Poisoned(), LiveBatches(Poisoned(), 4)
    good = live.submit(Request("good", (2, 3), policy("lc"), 1))
    bad = live.submit(Request("bad", (13, 3), policy("klass"), 4))
    ended = dict(live.turn())  # one finishes in the very turn in which the other one fails
    assert isinstance(ended[good], Sample)
    assert isinstance(ended[bad], RuntimeError)
    assert live.idle

    events: Queue = Queue()
    long = Request("long", (2, 3), policy("lc"), 40, 4)
    with LocalService(model, slots=4) as service:
        service.submit(long, events.put, watch=True)
        events.get(timeout=30)
        service.submit(bad.request, lambda event: None)
    (expected,) = LocalBackend(ToyModel()).sample([long])
    assert same([*events.queue][-1], expected)


class Small(ToyModel):
    """Has memory for a limited number of positions at once."""

    def logits(self, ids, attention_mask, want):
        if ids.numel() > 60:
            raise torch.OutOfMemoryError("no memory")
        return super().logits(ids, attention_mask, want)


def test_a_row_that_does_not_fit_fails_alone():
    model, live = Small(), LiveBatches(Small(), 4)
    fitting = [Request(f"q{n}", (2 + n, 3), policy("lc"), 10, 4) for n in range(6)]
    wanted = [*fitting[:2], Request("large", (2, 3), policy("lc"), 70, 4), *fitting[2:]]
    for request in wanted:
        live.submit(request)
    ended = {}
    while not live.idle:
        ended |= {handle.request.id: event for handle, event in live.turn()}
    assert "one row alone does not fit" in str(ended.pop("large"))
    for one in run(model, fitting):
        assert same(one, ended.pop(one.request))
    assert not ended


def test_a_service_without_slots_is_refused_at_once():
    with pytest.raises(UserError, match="batch_size must be an integer >= 1"):
        LocalService(ToyModel(), slots=0)


def test_a_listener_that_raises_costs_only_its_own_request(caplog):
    events: Queue = Queue()

    def broken(_event):
        raise RuntimeError("client gone")

    with LocalService(ToyModel(), slots=2) as service:
        service.submit(Request("a", (2, 3), policy("lc"), 8), broken, watch=True)
        service.submit(Request("b", (2, 3), policy("lc"), 8), events.put)
        assert events.get(timeout=30).request == "b"
    assert service.load == 0
    assert "the request is canceled" in caplog.text


def test_leaving_the_context_finishes_what_was_accepted_and_leaves_no_thread():
    before, events = active_count(), Queue()
    with LocalService(ToyModel(), slots=2) as service:
        for n in range(5):
            service.submit(Request(f"q{n}", (2, 3 + n), policy("lc"), 8), events.put)
    assert events.qsize() == 5
    assert active_count() == before
    with pytest.raises(UserError, match="closing"):
        service.submit(Request("late", (2, 3), policy("lc"), 8), events.put)


def test_an_exception_in_the_context_drops_the_work():
    events: Queue = Queue()
    with pytest.raises(ZeroDivisionError), LocalService(ToyModel(), slots=1) as service:  # noqa: PT012
        for n in range(50):
            service.submit(Request(f"q{n}", (2, 3), policy("lc"), 100, index=n), events.put)
        raise ZeroDivisionError
    assert events.qsize() < 50
    assert service.load == 0


def test_a_cancelled_job_frees_its_row():
    events: Queue = Queue()
    model = ToyModel()
    with LocalService(model, slots=1) as service:
        long = service.submit(Request("long", (2, 3), policy("ar"), 120, 4), events.put)
        service.submit(Request("short", (2, 3), policy("ar"), 4, 4), events.put)
        service.cancel(long)
        service.cancel(long)  # twice is once
        assert events.get(timeout=30).request == "short"
    assert events.empty()
    assert model.calls < 120


# --- stop strings


def test_stop_strings_free_the_row_and_give_the_text_of_sample(tiny):
    prompt, stop = "20 10 15 -> 45", (", ", "= 3", "15")
    expected = twotemp.sample(tiny, prompt, "tlc", n=24, length=12, seed=3, stop=stop)
    first = twotemp.sample(tiny, prompt, "tlc", n=24, length=12, seed=3)
    requests = [
        Request(s.request, s.prompt, s.policy, 12, None, s.seed, s.index, stop=stop, tag="t")
        for s in expected
    ]
    events: Queue = Queue()
    with LocalService(tiny, slots=4) as service:
        for request in requests:
            service.submit(request, lambda event, r=request: events.put((r.index, event)))
    found = dict(events.get_nowait() for _ in requests)
    assert [(found[n].text, found[n].finish) for n in range(24)] == [(s.text, s.finish) for s in expected]
    assert {sample.tag for sample in found.values()} == {"t"}
    early = [sample for sample in found.values() if len(sample.tokens) < 12]
    assert {sample.finish for sample in early} == {"stop"}
    assert min(sample.nfe for sample in early) < first[0].nfe
    for sample in early:
        assert sample.tokens == first[sample.index].tokens[: len(sample.tokens)]
        assert sample.positions == first[sample.index].positions[: len(sample.tokens)]


def test_a_traced_row_with_a_stop_string_runs_to_its_end(tiny):
    (expected,) = twotemp.sample(tiny, "20 10 15 -> 45", "ar", length=12, stop=["="], trace=True)
    request = Request(expected.request, expected.prompt, expected.policy, 12, None, trace=True, stop=("=",))
    events: Queue = Queue()
    with LocalService(tiny, slots=1) as service:
        service.submit(request, events.put)
    found = events.get_nowait()
    assert (found.text, found.finish, found.tokens) == (expected.text, "stop", expected.tokens)
    assert len(found.trace.steps) == 12


def test_a_service_without_slots_takes_what_fits(monkeypatch):
    """Also where the first batch is small, and where a group is larger than what fits."""
    monkeypatch.setattr("twotemp.backends.local.fit_batch", lambda *_: (3, "little memory"))
    events: Queue = Queue()
    wanted = [Request("q", (2, 3), policy("lc"), 8, index=n) for n in range(7)]
    with LocalService(ToyModel()) as service:
        service.submit_handles([Handle(request, events.put) for request in wanted])
        service.submit_handles([Handle(replace(wanted[0], id="other"), events.put)])
        assert service._live.slots in (1, 3)
        group = [Request("odd", (2, 3), policy("odd"), 8, index=n) for n in (2, 0, 3, 1)]
        service.submit_handles([Handle(request, events.put) for request in group])
    assert service._live.slots == 4
    found = [events.get_nowait() for _ in range(12)]
    assert not [event for event in found if isinstance(event, UserError)]


def test_a_group_that_no_batch_can_hold_is_an_error_of_its_requests():
    events: Queue = Queue()
    group = [Request("odd", (2, 3), policy("odd"), 8, index=n) for n in range(3)]
    with LocalService(ToyModel(), slots=2) as service:
        service.submit_handles([Handle(request, events.put) for request in group])
        service.submit(Request("q", (2, 3), policy("lc"), 8), events.put)
    found = [events.get_nowait() for _ in range(4)]
    assert [isinstance(event, UserError) for event in found] == [True, True, True, False]


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("abc", (), ("abc", False)),
        ("abc", ("x",), ("abc", False)),
        ("ab", ("bc",), ("a", False)),
        ("abcd", ("bc",), ("a", True)),
        # "b" is there, but "abc" begins before it and may still come.
        ("ab", ("b", "abc"), ("", False)),
        ("abd", ("b", "abc"), ("a", True)),
        ("aXb", ("b", "X"), ("a", True)),
        ("aaa", ("aaaa",), ("", False)),
        ("abb", ("b" * 10**6,), ("a", False)),  # must not take as long as it looks
    ],
)
def test_the_settled_part_of_a_text(text, stop, expected):
    assert settle(text, stop) == expected


def test_settled_text_is_what_the_whole_text_says():
    """Whatever the order of discovery: a settled prefix is a prefix of the cut text, a stop is final."""
    noise = random.Random(0)
    for _ in range(2000):
        whole = "".join(noise.choices("ab", k=10))
        stop = ["".join(noise.choices("ab", k=noise.randint(1, 4))) for _ in range(noise.randint(1, 3))]
        ends = [end for string in stop if (end := whole.find(string)) >= 0]
        final = whole[: min(ends)] if ends else whole
        for length in range(len(whole) + 1):
            text, stopped = settle(whole[:length], stop)
            assert final == text if stopped else final.startswith(text)
