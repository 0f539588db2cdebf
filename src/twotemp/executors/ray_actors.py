"""Workers as actors of a Ray cluster.

What driver and actors say travels by Ray's own pickles, between our own processes: whoever may connect to a Ray
cluster may run code on it anyway. So a cluster must be out of strangers' reach, or ask for a token (docs/scale.md).
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from twotemp.errors import UserError
from twotemp.executors.messages import Draw, Drawn, Encode, Failed, Lost, News, Order
from twotemp.executors.processes import environment
from twotemp.executors.worker import Bench

if TYPE_CHECKING:
    from twotemp.executors.worker import Make

LOCAL = "local"  # Ray's word, instead of an address: a new cluster of this machine, for this run
BEAT_SECONDS = 1.0  # between two questions how far an actor is
# Actors run at our own niceness; a slow machine may take its time to start them.
_SETTINGS = {"RAY_worker_niceness": "0", "RAY_worker_register_timeout_seconds": "600"}


class Station:
    """The actor. `draw` has one thread, so that units are drawn one after the other; the questions have another."""

    def __init__(self, make: Make, place: int) -> None:
        self._steps = 0
        self._failed: Failed | None = None
        try:
            self._bench = Bench(make, place, self._step)
        except UserError as error:
            self._failed = Failed(str(error))

    def _step(self) -> None:
        self._steps += 1

    def ready(self) -> News:
        return self._failed or self._bench.ready

    def steps(self) -> int:
        return self._steps

    def encode(self, order: Encode) -> News:
        return self._bench.encode(order)

    def draw(self, order: Draw) -> Iterator[News]:
        yield from self._bench.draw(order)


class Actor:
    """The driver's side of an actor: what it was asked, and has not answered yet."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._questions: list[Any] = [actor.ready.remote()]
        self._units: list[Any] = []  # generators; one yields after the other
        self._pulse: Any = None
        self._steps, self._asked = 0, 0.0

    def send(self, order: Order) -> None:
        if isinstance(order, Draw):
            self._units.append(self._actor.draw.remote(order))
        else:
            self._questions.append(self._actor.encode.remote(order))

    def kill(self) -> None:
        import ray

        ray.kill(self._actor)

    def pending(self) -> list[Any]:
        """What an answer may come from."""
        if self._units and self._pulse is None and monotonic() - self._asked > BEAT_SECONDS:
            self._pulse, self._asked = self._actor.steps.remote(), monotonic()
        pulse = [] if self._pulse is None else [self._pulse]
        return [*self._questions, *pulse, *self._units[:1]]

    def answer(self, source: Any) -> list[News]:
        """What came from it; `Lost`, once, if the actor, its process or its machine is gone."""
        import ray

        if source is not self._pulse and source not in (*self._questions, *self._units):
            return []  # another source said already that it is lost
        try:
            if source is self._pulse:
                self._pulse = None
                before, self._steps = self._steps, ray.get(source)
                return [Drawn()] if self._steps > before else []
            if source in self._questions:
                self._questions.remove(source)
                return [ray.get(source)]
            try:
                return [ray.get(next(source))]
            except StopIteration:
                self._units.remove(source)
                return []
        except ray.exceptions.RayError as error:
            self._units, self._questions, self._pulse = [], [], None
            return [Lost(str(error).strip().splitlines()[-1])]


class RayActors:
    """A `Crew` of Ray actors, with a GPU or a core each, wherever the cluster has room."""

    def __init__(
        self, make: Make, *, address: str, device: str | None = None, reachable: bool = False
    ) -> None:
        """address: of a cluster that runs (`ray start --head`), or LOCAL. device: None is a GPU each where the
        cluster has any, else a core. reachable: start a local cluster although other machines can reach its ports."""
        self._make = make
        if address == LOCAL:
            ray = start_local(reachable)
        else:
            ray = _ray()
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[0]
                raise UserError(
                    f"no Ray cluster answers at {address} ({reason}); start one with `ray start --head`, and give "
                    "its address, and its token if it asks for one (RAY_AUTH_MODE=token)"
                ) from None
        groups = {"draw": 1, "ask": 1}
        kind: Any = ray.remote(concurrency_groups=groups)(_grouped(ray))
        there = ray.cluster_resources()
        self.gpus = device != "cpu" and there.get("GPU", 0) >= 1
        self.room = int(there.get("GPU" if self.gpus else "CPU", 0))  # actors that find a place now
        self._kind = kind.options(num_cpus=1, num_gpus=int(self.gpus), max_restarts=0)

    def start(self, place: int) -> Actor:
        return Actor(self._kind.remote(self._make, place))

    def hear(self, workers: Sequence[Actor], seconds: float) -> list[tuple[int, News]]:
        import ray

        sources = {source: number for number, w in enumerate(workers) for source in w.pending()}
        ready, _ = ray.wait(list(sources), num_returns=1, timeout=seconds, fetch_local=False)
        if ready and len(sources) > 1:
            ready, _ = ray.wait(list(sources), num_returns=len(sources), timeout=0, fetch_local=False)
        return [
            (sources[source], news) for source in ready for news in workers[sources[source]].answer(source)
        ]

    def close(self) -> None:
        import ray

        ray.shutdown()


def start_local(reachable: bool) -> Any:
    """A cluster of this machine. Ray's own servers listen on all interfaces, whatever address one gives it: so it is
    started only where the user says that this may be, and asks for a token that nobody but this process has."""
    if not reachable:
        raise UserError(
            "Ray listens on all network interfaces, also for a cluster of one machine, and whoever reaches it may "
            "run code here. --workers does the same work without a port; --ray-reachable starts Ray anyway, with a "
            "token of its own"
        )
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
        raise UserError(
            "Ray was imported before twotemp could ask for a token; set RAY_AUTH_MODE=token at first"
        )
    # Ray reads the mode when it is imported, and the token when it is needed.
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token(), **_SETTINGS})
    ray = _ray()
    with _environment({**environment(1), **{k: v for k, v in os.environ.items() if k.startswith("RAY_")}}):
        ray.init(address=LOCAL, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


@cache
def _token() -> str:
    """One for as long as this process lives: Ray keeps the first it has read, also for the next cluster."""
    return secrets.token_hex(32)


@contextmanager
def _environment(only: dict[str, str]) -> Iterator[None]:
    """Nothing but this, for the processes that are started meanwhile."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(only)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _grouped(ray: Any) -> type[Station]:
    """`Station` with the threads of its methods named, which needs Ray at hand."""

    class Grouped(Station):
        ready = ray.method(concurrency_group="ask")(Station.ready)
        steps = ray.method(concurrency_group="ask")(Station.steps)
        encode = ray.method(concurrency_group="ask")(Station.encode)
        draw = ray.method(concurrency_group="draw", num_returns="streaming")(Station.draw)

    return Grouped


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed; install it with: pip install 'twotemp[ray]'") from None
    return ray
