"""Options that choose where samples are drawn: in this process, or in workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp import plugins
from twotemp.cli.console import say, say_cache
from twotemp.cli.options import LoadingOptions
from twotemp.errors import UserError
from twotemp.graders.workers import usable_cpus

if TYPE_CHECKING:
    from twotemp.backends import Backend
    from twotemp.backends.local import LocalBackend
    from twotemp.backends.messages import AnyTransport
    from twotemp.backends.pool import WorkerPool
    from twotemp.backends.worker import ModelLoader
    from twotemp.engine import Profiler
    from twotemp.models.base import LanguageModel

# Imports inside functions below need torch or transformers, which take seconds: `--help`, and mistakes in options,
# should not wait for them.

# Weights up to this size (50 M parameters in float32) are small: every core can hold a copy, and the matrix products
# are too short to be shared by threads.
SMALL_BYTES = 200_000_000
LARGE_BYTES = 1_000_000_000  # weights above this take seconds per sample, so a few samples are worth a worker
WORTH_A_WORKER = 1024  # samples; with fewer per worker, starting a process takes longer than it saves
LARGE_UNIT = 32  # samples of a large model that a worker draws together, and that are worth a worker


@dataclass(frozen=True)
class Workload:
    """A model and the amount of work for it."""

    model: str
    loading: LoadingOptions
    samples: int  # how many there are to draw; by default no worker is started for a few
    batch_size: int | None = None
    cache: str | None = None
    # Requests that a worker draws together, where there are too few for the usual number.
    unit: int | None = None
    profile: bool = False

    def loader(self, gpus: int = 0) -> ModelLoader:
        """Return the instructions by which a worker loads the model."""
        from twotemp.backends.worker import ModelLoader

        names = tuple(plugins.NAMED)
        return ModelLoader(self.model, self.loading.options(), gpus, self.batch_size, self.cache, names)

    def text(self) -> LanguageModel:
        """Return the model without its weights, which encodes the prompts."""
        from twotemp.models.load import load_text

        return load_text(self.model, **self.loading.text_options())

    def pool(self, transport: AnyTransport, count: int) -> WorkerPool:
        """Return the workers that a transport starts."""
        from twotemp.backends.pool import WorkerPool

        say_cache(None, self.cache)
        batch_size, unit = self.batch_size, self.unit_size()
        return WorkerPool(transport, count, self.text(), batch_size=batch_size, unit=unit)

    def unit_size(self) -> int | None:
        """Return how many requests a worker draws together: few of a large model; None for the usual number."""
        if self.unit is None and is_large(self.model):
            return max(LARGE_UNIT, self.batch_size or 0)
        return self.unit

    def local(self) -> tuple[LocalBackend, Profiler | None]:
        """Load the model into this process; return its backend, and the profiler of --profile."""
        from twotemp.backends.local import LocalBackend
        from twotemp.engine import Profiler

        loaded = self.loading.load_with(self.model, self.cache)
        profiler = Profiler(loaded) if self.profile else None
        return LocalBackend(loaded, batch_size=self.batch_size, cache=self.cache, observer=profiler), profiler


@dataclass(frozen=True)
class WorkerOptions:
    """Choosing the workers."""

    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Worker processes (default: one per GPU; on a CPU one per core for a small model, else none).",
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Draw on this Ray cluster (auto: the one that this machine belongs to; local: a new one).",
        ),
    ] = None
    ray_reachable: Annotated[bool, "With --ray local: let other machines reach Ray's ports."] = False

    @property
    def chosen(self) -> bool:
        """Whether the user asked for workers."""
        return bool(self.workers or self.ray)

    @contextmanager
    def backend(self, workload: Workload) -> Iterator[tuple[Backend, Profiler | None]]:
        """Yield the backend and the profiler of --profile, and say how many workers there are."""
        if self.ray_reachable and self.ray != "local":
            raise UserError("--ray-reachable only applies to a cluster that --ray local starts: leave it out")
        if (remote := self._remote(workload)) is None:
            yield workload.local()
        else:
            with remote as backend:
                yield backend, None

    def _remote(self, workload: Workload) -> AbstractContextManager[Backend] | None:
        """Start workers if they were asked for or are faster; return None to draw in this process."""
        if workload.profile and self.chosen:
            raise UserError("--profile is for one process: leave --workers, --ray and --sglang out")
        if workload.loading.device_map:
            if self.chosen:
                raise UserError("--device-map spreads one model over all GPUs: leave --workers and --ray out")
            return None
        if self.ray:
            return self._on_ray(self.ray, workload)
        if self.workers or not workload.profile:
            count = self.workers or default_workers(
                workload.model, workload.samples, *devices(workload.loading.device)
            )
            if count > 1 or self.workers:
                return self._in_processes(count, workload)
        return None

    def _in_processes(self, count: int, workload: Workload) -> WorkerPool:
        from twotemp.backends.process import ProcessTransport

        # Fetches a hub checkpoint: once, not in every worker.
        threads = threads_per_worker(workload.model, count)
        _, gpus = devices(workload.loading.device)
        each = "one GPU each" if gpus >= count else f"{threads} thread{'s' * (threads > 1)} each"
        say(f"drawing with {count} worker{'s' * (count > 1)}, {each} (--workers changes the number)")
        return workload.pool(ProcessTransport(workload.loader(gpus), threads=threads), count)

    def _on_ray(self, address: str, workload: Workload) -> WorkerPool:
        from twotemp.backends.ray import RayTransport

        device, reachable = workload.loading.device, self.ray_reachable
        transport = RayTransport(workload.loader(), address=address, device=device, reachable=reachable)
        room = transport.room
        count = self.workers or max(1, min(room, workload.samples // worth_a_worker(workload.model)))
        if count > room:
            transport.close()
            raise UserError(f"the Ray cluster has room for {room} workers, not {count}; lower --workers")
        each = "GPU" if transport.gpus else "core"
        say(
            f"drawing with {count} Ray actor{'s' * (count > 1)}, one {each} each (--workers changes the number)"
        )
        return workload.pool(transport, count)


@dataclass(frozen=True)
class DrawingOptions(WorkerOptions):
    """Choosing the workers.

    Of commands that may also draw through a server. (The first line is the title of these options in --help.)
    """

    sglang: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Draw through this SGLang server (needs twotemp-sglang); --model is then the tokenizer's.",
        ),
    ] = None

    def _remote(self, workload: Workload) -> AbstractContextManager[Backend] | None:
        if not self.sglang:
            return super()._remote(workload)
        if workload.profile:
            raise UserError("--profile is for one process: leave --workers, --ray and --sglang out")
        if self.ray:
            raise UserError("--ray and --sglang exclude each other: leave one out")
        return self._served(self.sglang, workload)

    def _served(self, url: str, workload: Workload) -> AbstractContextManager[Backend]:
        connect, loading = plugins.backend("sglang"), workload.loading
        unused: dict[str, object]
        unused = {"cache": workload.cache, "device": loading.device, "dtype": loading.dtype}
        unused |= {"compile": loading.compile, "quantize": loading.quantize, "device-map": loading.device_map}
        if given := [f"--{name}" for name, value in unused.items() if value]:
            raise UserError(f"{', '.join(given)}: the SGLang server loads the model; give it these settings")
        served: AbstractContextManager[Backend] = connect(
            url, workload.text(), unit=workload.batch_size, connections=self.workers
        )
        say(f"drawing through the SGLang server at {url}")
        return served


def devices(name: str | None) -> tuple[str, int]:
    """Return the kind of device, and the number of GPUs to spread over: none if one of them was named."""
    import torch

    from twotemp.models.load import usable_device

    device = usable_device(name)
    return device.type, torch.cuda.device_count() if device.type == "cuda" and device.index is None else 0


def is_small(model: str) -> bool:
    """Return whether every core can hold a copy of the model, and one thread is enough to run it."""
    return _stored_bytes(model) <= SMALL_BYTES


def is_large(model: str) -> bool:
    """Return whether a sample takes so long that work is given out in small units."""
    return _stored_bytes(model) > LARGE_BYTES


def _stored_bytes(model: str) -> int:
    from twotemp.models.load import locate

    return sum(file.stat().st_size for file in locate(model).glob("*.safetensors"))


def worth_a_worker(model: str) -> int:
    """Return how many samples are worth starting a worker."""
    return LARGE_UNIT if is_large(model) else WORTH_A_WORKER


def threads_per_worker(model: str, count: int) -> int:
    """Return one thread for a small model, and otherwise an equal share of the cores.

    Two threads draw up to 1.8 times as many samples of a small model as one on an idle machine, but a third fewer
    beside a busy program (docs/log.md); a second worker uses the other core at no such risk.
    """
    return 1 if is_small(model) else max(1, usable_cpus() // count)


def default_workers(model: str, samples: int, device: str, gpus: int) -> int:
    """Return how many workers to start unless the user says so, none of them with too little to do.

    That is one per GPU. On a CPU it is one per core for a small model, and one for a large model, whose matrix
    products use all cores.
    """
    most = max(1, samples // worth_a_worker(model))
    if device == "cuda":
        return min(most, max(1, gpus))
    return 1 if most == 1 or not is_small(model) else min(most, usable_cpus())
