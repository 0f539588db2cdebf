"""`twotemp serve` and `twotemp play`: a model behind HTTP, and a page that compares policies."""

from __future__ import annotations

import errno
import importlib.util
import socket
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.console import say, say_cache, show_log
from twotemp.cli.loading import LoadingOptions
from twotemp.cli.options import Cache, Model
from twotemp.cli.workers import Workload, devices, threads_per_worker
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.backends.supervisor import Supervisor

Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Rows decoded together (default: as many as fit).")]
LOCAL = ("127.0.0.1", "localhost", "::1")
PORTS_TRIED = 20  # by `play`, from --port on


def serve(
    loading: LoadingOptions,
    model: Model = "tiny",
    host: Annotated[
        str, typer.Option(help="The address; one other than loopback needs --api-key.")
    ] = "127.0.0.1",
    port: Port = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TWOTEMP_API_KEY", help="Clients must send it (better: in the environment)."),
    ] = None,
    slots: Slots = None,
    waiting: Annotated[
        int, typer.Option(min=1, help="The most samples accepted at once; more are answered with 429.")
    ] = 1024,
    seconds: Annotated[float, typer.Option(min=1, help="The time limit of a request, in seconds.")] = 600.0,
    cache: Cache = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode, e.g. one for each GPU.")] = 1,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API.

    Requests are batched as they arrive.

    [bold]Examples[/bold]

      twotemp serve --model tiny

      curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "20 10 15 -> 45"}], "n": 4, "max_tokens": 12, "policy": "tlc"}'
    """
    _serve(loading, model, host, port, api_key, slots, waiting, seconds, cache, workers)


def play(
    loading: LoadingOptions,
    model: Model = "tiny",
    port: Port = 8000,
    slots: Slots = None,
    cache: Cache = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Compare two policies in the browser: the canvas, the order, the answers.

    [bold]Examples[/bold]

      twotemp play

      twotemp play --model GSAI-ML/LLaDA-8B-Instruct --device cuda --port 9000
    """
    host, ports = LOCAL[0], range(port, min(port + PORTS_TRIED, 65536))
    free = next((number for number in ports if _is_free(host, number)), None)
    if free is None:
        raise UserError(f"ports {ports[0]} to {ports[-1]} are in use; choose another with --port")
    if free != port:
        say(f"port {port} is in use: taking {free} (--port changes it)")

    def open_page() -> None:
        webbrowser.open(f"http://{host}:{free}/")

    on_start = [open_page] if browser else []
    _serve(loading, model, host, free, None, slots, 1024, 600.0, cache, 1, on_start)


def _is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on this port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier one that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise UserError(
                f"cannot listen on port {port} of {host} ({error.strerror}); change --host or --port"
            ) from None
    return True


def _serve(
    loading: LoadingOptions,
    model: str,
    host: str,
    port: int,
    api_key: str | None,
    slots: int | None,
    waiting: int,
    seconds: float,
    cache: str | None,
    workers: int,
    on_start: list[Callable[[], None]] | None = None,
) -> None:
    local = host in LOCAL
    if not local and not api_key:
        raise UserError(
            f"--host {host} can be reached by other machines; protect it with --api-key, or serve 127.0.0.1"
        )
    if api_key is not None and not (
        api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""
    ):
        raise UserError("--api-key must be printable ASCII, not empty, and without spaces around it")
    if not _is_free(host, port):
        raise UserError(f"port {port} of {host} is in use; choose another, e.g. --port {port + 1}")
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"serving needs {package}; install it with: pip install 'twotemp[serve]'")
    # Optional packages, or torch: what is checked above should not wait for them, nor fail without them.
    from twotemp.backends.local import longest_rows
    from twotemp.engine.runner import check_cache
    from twotemp.serving.app import Server
    from twotemp.serving.bodies import Limits
    from twotemp.serving.listener import run

    show_log()
    limits = Limits(waiting=waiting, seconds=seconds)
    service: Supervisor | None = None
    if workers > 1:
        job = Workload(model, loading, 0, slots, cache)
        loaded = job.text()
        check_cache(loaded, cache)
        service = _workers(job, workers, limits.seconds)
    else:
        loaded = loading.load(model)
        check_cache(loaded, cache)
        slots = slots or longest_rows(loaded, cache)
    say_cache(loaded, cache)
    server = Server(
        loaded,
        slots=slots or 1,
        cache=cache,
        limits=limits,
        api_key=api_key,
        hosts=LOCAL if local and not api_key else None,
        service=service,
    )
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def ready() -> None:
        rows = f"{workers} workers" if workers > 1 else f"{slots} rows at once"
        say(f"{server.name}: {rows}. API: {where}/v1   playground: {where}/   Ctrl-C ends it")

    run(server, host, port, [ready, *(on_start or [])])


def _workers(job: Workload, count: int, seconds: float) -> Supervisor:
    """Return worker processes for live requests, of which the first has loaded the model.

    A worker that hangs is replaced after a quarter of the time that a request may take, so that another one can still
    draw what it owed.
    """
    from twotemp.backends.process import ProcessTransport
    from twotemp.backends.supervisor import Supervisor
    from twotemp.engine.scheduler import MOST_ROWS
    from twotemp.models.load import locate

    locate(job.model)  # fetched once, not by every worker
    loader = replace(job.loader(devices(job.loading.device)[1]), live=True)
    transport = ProcessTransport(loader, threads=threads_per_worker(job.model, count), beat=0.0)
    # A worker's own queue holds what its batch takes next; the rest waits for whichever worker is free first.
    depth = 2 * (job.batch_size or MOST_ROWS)
    service = Supervisor(transport, count, depth=depth, hang_seconds=seconds / 4)
    try:
        service.fingerprint  # noqa: B018 - waits, and raises if no worker can load the model
    except BaseException:
        service.close(drop=True)
        raise
    return service
