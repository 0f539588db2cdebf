"""Where samples are drawn: in this process, or in workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import LoadingOptions
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.backends import Backend
    from twotemp.backends.local import LocalBackend
    from twotemp.backends.messages import AnyTransport
    from twotemp.backends.pool import WorkerPool
    from twotemp.backends.worker import ModelLoader
    from twotemp.engine import Ledger
    from twotemp.models.base import LanguageModel

SMALL_BYTES = 200_000_000  # of weights: 50 M parameters in float32, of which every core can hold a copy
WORTH_A_WORKER = 1024  # samples; with fewer each, starting a process takes longer than it saves


@dataclass(frozen=True)
class Job:
    """What a backend is needed for."""

    model: str
    loading: LoadingOptions
    samples: int  # at least; so that no worker is started for a few
    batch_size: int | None = None
    cache: str | None = None
    unit: int | None = (
        None  # requests that a worker draws together, where there are few; None: the usual number
    )
    profile: bool = False

    def loader(self, gpus: int = 0) -> ModelLoader:
        """Return what a worker runs to get its model."""
        from twotemp import plugins
        from twotemp.backends.worker import ModelLoader

        named = tuple(plugins.NAMED)
        return ModelLoader(self.model, self.loading.options(), gpus, self.batch_size, self.cache, named)

    def text(self) -> LanguageModel:
        """Return the model without its weights, which encodes the prompts."""
        from twotemp.models.load import load_text

        loading = self.loading
        return load_text(
            self.model, mask_id=loading.mask_id, eos_ids=loading.eos_ids, block_size=loading.block_size
        )

    def pool(self, transport: AnyTransport, count: int) -> WorkerPool:
        """Return the workers that a transport starts."""
        from twotemp.backends.pool import WorkerPool
        from twotemp.cli.console import say_cache

        say_cache(None, self.cache)
        return WorkerPool(transport, count, self.text(), batch_size=self.batch_size, unit=self.unit)

    def local(self) -> tuple[LocalBackend, Ledger | None]:
        """Return a backend in this process, and the ledger of --profile."""
        from twotemp.backends.local import LocalBackend
        from twotemp.engine import Ledger

        loaded = self.loading.load_with(self.model, self.cache)
        ledger = Ledger(loaded) if self.profile else None
        return LocalBackend(loaded, batch_size=self.batch_size, cache=self.cache, observer=ledger), ledger


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

    @property
    def chosen(self) -> bool:
        """Did the user ask for workers?"""
        return bool(self.workers or self.ray)

    @contextmanager
    def backend(self, job: Job) -> Iterator[tuple[Backend, Ledger | None]]:
        """Yield the backend, and the ledger of --profile; say so where there are workers."""
        if self.ray_reachable and self.ray != "local":
            raise UserError("--ray-reachable is about a cluster that --ray local starts")
        if (remote := self._remote(job)) is None:
            yield job.local()
        else:
            with remote as backend:
                yield backend, None

    def _remote(self, job: Job) -> AbstractContextManager[Backend] | None:
        """Return a backend outside this process, where one is asked for or faster."""
        if job.profile and self.chosen:
            raise UserError("--profile is for one process: leave --workers, --ray and --sglang out")
        if job.loading.device_map:
            if self.chosen:
                raise UserError("--device-map spreads one model over all GPUs: leave --workers and --ray out")
            return None
        if self.ray:
            return self._on_ray(self.ray, job)
        if self.workers or not job.profile:
            count = self.workers or default_workers(job.model, job.samples, *devices(job.loading.device))
            if count > 1 or self.workers:
                return self._in_processes(count, job)
        return None

    def _in_processes(self, count: int, job: Job) -> WorkerPool:
        from twotemp.backends.process import ProcessTransport
        from twotemp.cli.console import say
        from twotemp.graders.workers import usable_cpus
        from twotemp.models.load import locate

        locate(job.model)  # fetched once, not by every worker
        _, gpus = devices(job.loading.device)
        threads = max(1, usable_cpus() // count)
        each = "one GPU each" if gpus >= count else f"{threads} thread{'s' * (threads > 1)} each"
        say(f"drawing with {count} worker{'s' * (count > 1)}, {each} (--workers changes it)")
        return job.pool(ProcessTransport(job.loader(gpus), threads=threads), count)

    def _on_ray(self, address: str, job: Job) -> WorkerPool:
        from twotemp.backends.ray import RayTransport
        from twotemp.cli.console import say

        device, reachable = job.loading.device, self.ray_reachable
        transport = RayTransport(job.loader(), address=address, device=device, reachable=reachable)
        room = transport.room
        count = self.workers or max(1, min(room, job.samples // WORTH_A_WORKER))
        if count > room:
            transport.close()
            raise UserError(f"the Ray cluster has room for {room} workers, not {count}; lower --workers")
        each = "GPU" if transport.gpus else "core"
        say(f"drawing with {count} Ray actor{'s' * (count > 1)}, one {each} each (--workers changes it)")
        return job.pool(transport, count)


@dataclass(frozen=True)
class DrawingOptions(WorkerOptions):
    """Who draws."""

    sglang: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Draw through this SGLang server (needs twotemp-sglang); --model is then the tokenizer's.",
        ),
    ] = None

    def _remote(self, job: Job) -> AbstractContextManager[Backend] | None:
        if not self.sglang:
            return super()._remote(job)
        if job.profile:
            raise UserError("--profile is for one process: leave --workers, --ray and --sglang out")
        if self.ray:
            raise UserError("--ray and --sglang are two places to draw at: leave one out")
        return self._served(self.sglang, job)

    def _served(self, url: str, job: Job) -> AbstractContextManager[Backend]:
        from twotemp.cli.console import say
        from twotemp.plugins import backend

        connect, loading = backend("sglang"), job.loading
        unused: dict[str, object]
        unused = {"cache": job.cache, "device": loading.device, "dtype": loading.dtype}
        unused |= {"compile": loading.compile, "quantize": loading.quantize, "device-map": loading.device_map}
        if asked := [f"--{name}" for name, value in unused.items() if value]:
            raise UserError(f"{', '.join(asked)}: the server has the model; start it as you want it")
        served: AbstractContextManager[Backend] = connect(
            url, job.text(), unit=job.batch_size, connections=self.workers
        )
        say(f"drawing through the SGLang server at {url}")
        return served


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
