"""Where samples are drawn: in this process, or in workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import LoadingOptions
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.engine import Ledger
    from twotemp.evaluation import Drawer, InProcess
    from twotemp.executors import Supervisor

SMALL_BYTES = 200_000_000  # of weights: 50 M parameters in float32, of which every core can hold a copy
WORTH_A_WORKER = 1024  # samples; with fewer each, starting a process takes longer than it saves


@dataclass(frozen=True)
class WorkerOptions:
    """Who draws."""

    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that draw (default: one per GPU; on a CPU one per core for a small model)."
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Draw on this Ray cluster (auto: the one this machine is part of; local: a new one).",
        ),
    ] = None
    ray_reachable: Annotated[
        bool,
        typer.Option("--ray-reachable", help="With --ray local: other machines may reach Ray's ports."),
    ] = False

    @contextmanager
    def drawer(
        self,
        model: str,
        loading: LoadingOptions,
        samples: int,
        *,
        batch_size: int | None = None,
        cache: str | None = None,
        profile: bool = False,
    ) -> Iterator[tuple[Drawer, Ledger | None]]:
        """Whoever draws so many samples, and the ledger of --profile; where there are several, it is said."""
        if profile and (self.workers or self.ray):
            raise UserError("--profile is for one process: leave --workers and --ray out")
        if self.ray_reachable and self.ray != "local":
            raise UserError("--ray-reachable is about a cluster that --ray local starts")
        drawer: InProcess | Supervisor
        ledger = None
        if self.ray:
            drawer = self._on_ray(self.ray, model, loading, samples, batch_size, cache)
        elif (count := 1 if profile else self._count(model, loading, samples)) > 1 or self.workers:
            drawer = self._in_processes(count, model, loading, batch_size, cache)
        else:
            drawer, ledger = _here(model, loading, batch_size, cache, profile)
        with drawer if isinstance(drawer, AbstractContextManager) else nullcontext():
            yield drawer, ledger

    def _count(self, model: str, loading: LoadingOptions, samples: int) -> int:
        return self.workers or default_workers(model, samples, *devices(loading.device))

    def _in_processes(
        self, count: int, model: str, loading: LoadingOptions, batch_size: int | None, cache: str | None
    ) -> Supervisor:
        from twotemp import plugins
        from twotemp.cli.console import say, say_cache
        from twotemp.executors import Loading, Processes, Supervisor
        from twotemp.graders.workers import usable_cpus
        from twotemp.models.load import locate

        locate(model)  # fetched once, not by every worker
        _, gpus = devices(loading.device)
        threads = max(1, usable_cpus() // count)
        each = "one GPU each" if gpus >= count else f"{threads} thread{'s' * (threads > 1)} each"
        say(f"drawing with {count} worker{'s' * (count > 1)}, {each} (--workers changes it)")
        say_cache(None, cache)
        make = Loading(model, loading.options(), gpus, batch_size, cache, tuple(plugins.NAMED))
        return Supervisor(Processes(make, threads=threads), count, batch_size=batch_size)

    def _on_ray(
        self,
        address: str,
        model: str,
        loading: LoadingOptions,
        samples: int,
        batch_size: int | None,
        cache: str | None,
    ) -> Supervisor:
        from twotemp import plugins
        from twotemp.cli.console import say, say_cache
        from twotemp.executors import Loading, Supervisor
        from twotemp.executors.ray_actors import RayActors

        make = Loading(model, loading.options(), 0, batch_size, cache, tuple(plugins.NAMED))
        crew = RayActors(make, address=address, device=loading.device, reachable=self.ray_reachable)
        count = self.workers or max(1, min(crew.room, samples // WORTH_A_WORKER))
        if count > crew.room:
            crew.close()
            raise UserError(f"the Ray cluster has room for {crew.room} workers, not {count}; lower --workers")
        each = "GPU" if crew.gpus else "core"
        say(f"drawing with {count} Ray actor{'s' * (count > 1)}, one {each} each (--workers changes it)")
        say_cache(None, cache)
        return Supervisor(crew, count, batch_size=batch_size)


def _here(
    model: str, loading: LoadingOptions, batch_size: int | None, cache: str | None, profile: bool
) -> tuple[InProcess, Ledger | None]:
    from twotemp.cli.console import say_cache
    from twotemp.engine import Ledger
    from twotemp.engine.runner import check_cache
    from twotemp.evaluation import InProcess

    loaded = loading.load(model)
    check_cache(loaded, cache)
    say_cache(loaded, cache)
    ledger = Ledger(loaded) if profile else None
    return InProcess(loaded, batch_size=batch_size, cache=cache, observer=ledger), ledger


def devices(asked: str | None) -> tuple[str, int]:
    """The kind of device, and how many GPUs to spread over: none where one of them was named."""
    import torch

    from twotemp.models.load import usable_device

    device = usable_device(asked)
    return device.type, torch.cuda.device_count() if device.type == "cuda" and device.index is None else 0


def default_workers(model: str, samples: int, device: str, gpus: int) -> int:
    """One per GPU; on a CPU one per core where the model is small, and one where it is not: there, all cores work
    at one product of matrices. Never more than have something to do."""
    from twotemp.graders.workers import usable_cpus
    from twotemp.models.load import locate

    most = max(1, samples // WORTH_A_WORKER)
    if device == "cuda":
        return min(most, max(1, gpus))
    if most == 1 or sum(file.stat().st_size for file in locate(model).glob("*.safetensors")) > SMALL_BYTES:
        return 1
    return min(most, usable_cpus())
