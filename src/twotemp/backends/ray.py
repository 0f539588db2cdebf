"""Workers as actors of a Ray cluster.

Messages travel by Ray's pickles, between our own processes: a program that may connect to a Ray cluster may run code
on it anyway. So a cluster must be unreachable for others, or require a token (docs/scale.md).
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

from twotemp.backends.messages import Lost, Order, Report
from twotemp.backends.process import HOLD_SECONDS, worker_environment
from twotemp.backends.worker import MakeService, Worker
from twotemp.errors import UserError

LOCAL = "local"  # Ray's address for a new cluster on this machine
POLL_SECONDS = 1.0  # how long a call of `reports` waits
# Actors run at our own niceness; a slow machine may take its time to start them.
_SETTINGS = {"RAY_worker_niceness": "0", "RAY_worker_register_timeout_seconds": "600"}


class RayWorker:
    """The actor. One thread takes orders and another one answers `reports`, while a third one decodes."""

    def __init__(self, make: MakeService, index: int, hold_seconds: float) -> None:
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._worker = Worker(make, index, self._reports.put, hold_seconds)

    def execute(self, order: Order) -> None:
        self._worker.execute(order)

    def reports(self) -> list[Report]:
        """Return the queued reports, waiting up to `POLL_SECONDS` for the first."""
        try:
            reports = [self._reports.get(timeout=POLL_SECONDS)]
        except Empty:
            return []
        while not self._reports.empty():
            reports.append(self._reports.get())
        return reports


class RayLink:
    """The connection to an actor; a call of its `reports` is always pending."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.pending = actor.reports.remote()

    def send(self, order: Order) -> None:
        self.actor.execute.remote(order)

    def kill(self) -> None:
        import ray

        ray.kill(self.actor)

    def receive(self) -> list[Report]:
        """Return the result of `pending`; `Lost` if the actor, its process or its machine is gone."""
        import ray

        try:
            reports: list[Report] = ray.get(self.pending)
        except ray.exceptions.RayError as error:
            return [Lost(str(error).strip().splitlines()[-1])]
        self.pending = self.actor.reports.remote()
        return reports


class RayTransport:
    """A `Transport` to Ray actors, with a GPU or a core each, wherever the cluster has room."""

    def __init__(
        self,
        make: MakeService,
        *,
        address: str,
        device: str | None = None,
        reachable: bool = False,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """Connect to a cluster.

        Args:
            make: Makes each worker's service; it is pickled.
            address: The address of a running cluster (`ray start --head`), or `LOCAL`.
            device: None for a GPU per worker if the cluster has GPUs, otherwise a core.
            reachable: Start a local cluster although other machines can reach its ports.
            hold_seconds: See `Worker`.
        """
        self._make, self._hold_seconds = make, hold_seconds
        if address == LOCAL:
            ray = start_local(reachable)
        else:
            ray = _ray()
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[0]
                raise UserError(
                    f"no Ray cluster answers at {address} ({reason}); start one with `ray start --head` and pass "
                    "its address, and its token if it requires one (RAY_AUTH_MODE=token)"
                ) from None
        actor: Any = ray.remote(concurrency_groups={"orders": 1, "reports": 1})(_with_threads(ray))
        resources = ray.cluster_resources()
        self.gpus = device != "cpu" and resources.get("GPU", 0) >= 1
        self.room = int(resources.get("GPU" if self.gpus else "CPU", 0))  # actors that can start now
        self._actor = actor.options(num_cpus=1, num_gpus=int(self.gpus), max_restarts=0)

    def start(self, index: int) -> RayLink:
        return RayLink(self._actor.remote(self._make, index, self._hold_seconds))

    def receive(self, links: Sequence[RayLink], seconds: float) -> list[tuple[int, Report]]:
        import ray

        indices = {link.pending: index for index, link in enumerate(links)}
        ready, _ = ray.wait(list(indices), num_returns=1, timeout=seconds)
        if ready and len(indices) > 1:
            ready, _ = ray.wait(list(indices), num_returns=len(indices), timeout=0)
        return [
            (indices[pending], report) for pending in ready for report in links[indices[pending]].receive()
        ]

    def close(self) -> None:
        import ray

        ray.shutdown()


def start_local(reachable: bool) -> Any:
    """Start a cluster of this machine and return the module `ray`.

    Ray's servers listen on all interfaces, whatever their address. So a cluster is started only if the user allows
    it, and it requires a token that only this process has.
    """
    if not reachable:
        raise UserError(
            "Ray listens on all network interfaces, also for a cluster of one machine, and a program that reaches it "
            "may run code here. --workers does the same work without a port; --ray-reachable starts Ray anyway, with "
            "a new token"
        )
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
        raise UserError(
            "Ray was imported before twotemp could require a token; set RAY_AUTH_MODE=token first"
        )
    # Ray reads the mode when it is imported, and the token when it is needed.
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token(), **_SETTINGS})
    ray = _ray()
    with _environment(
        {**worker_environment(1), **{k: v for k, v in os.environ.items() if k.startswith("RAY_")}}
    ):
        ray.init(address=LOCAL, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


@cache
def _token() -> str:
    """Return this process's token: Ray keeps the first one it has read, also for the next cluster."""
    return secrets.token_hex(32)


@contextmanager
def _environment(only: dict[str, str]) -> Iterator[None]:
    """Replace the environment for processes started in the block."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(only)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _with_threads(ray: Any) -> type[RayWorker]:
    """Return `RayWorker` with Ray's decorators, which give each method its own thread."""

    class Threaded(RayWorker):
        execute = ray.method(concurrency_group="orders")(RayWorker.execute)
        reports = ray.method(concurrency_group="reports")(RayWorker.reports)

    return Threaded


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed; install it with: pip install 'twotemp[ray]'") from None
    return ray
