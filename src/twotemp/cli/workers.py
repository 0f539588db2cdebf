"""Where samples are drawn: in this process, or in workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import LoadingOptions
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.engine import Ledger
    from twotemp.evaluation import Drawer

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
        from twotemp.cli.console import say, say_cache
        from twotemp.graders.workers import usable_cpus
        from twotemp.models.load import locate, usable_device

        if profile and self.workers:
            raise UserError("--profile is for one process: leave --workers out")
        device = usable_device(loading.device)
        gpus = _gpus() if device.type == "cuda" and device.index is None else 0
        count = 1 if profile else self.workers or default_workers(model, samples, device.type, gpus)
        if count == 1 and not self.workers:
            from twotemp.engine import Ledger
            from twotemp.engine.runner import check_cache
            from twotemp.evaluation import InProcess

            loaded = loading.load(model)
            check_cache(loaded, cache)
            say_cache(loaded, cache)
            ledger = Ledger(loaded) if profile else None
            yield InProcess(loaded, batch_size=batch_size, cache=cache, observer=ledger), ledger
            return
        from twotemp import plugins
        from twotemp.executors import Loading, Processes, Supervisor

        locate(model)  # fetched once, not by every worker
        threads = max(1, usable_cpus() // count)
        each = "one GPU each" if gpus >= count else f"{threads} thread{'s' * (threads > 1)} each"
        say(f"drawing with {count} worker{'s' * (count > 1)}, {each} (--workers changes it)")
        if cache is not None:
            say_cache(None, cache)
        make = Loading(model, loading.options(), gpus, batch_size, cache, tuple(plugins.NAMED))
        with Supervisor(Processes(make, threads=threads), count, batch_size=batch_size) as drawer:
            yield drawer, None


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


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
