"""`twotemp serve` and `twotemp play`: a model behind HTTP, and a page that compares policies."""

from __future__ import annotations

import errno
import importlib.util
import socket
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.console import say, say_cache, show_log
from twotemp.cli.options import Cache, LoadingOptions, Model
from twotemp.cli.workers import Workload, devices, threads_per_worker
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.backends.supervisor import Supervisor

LOCAL = ("127.0.0.1", "localhost", "::1")
PORTS_TRIED = 20  # by `play`, from --port on


@dataclass(frozen=True)
class ServerOptions:
    """Running the server."""

    model: Model = "tiny"
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000
    slots: Annotated[
        int | None, typer.Option(min=1, help="Rows decoded together (default: as many as fit).")
    ] = None
    cache: Cache = None


def serve(
    loading: LoadingOptions,
    options: ServerOptions,
    host: Annotated[str, "The address; one other than loopback needs --api-key."] = LOCAL[0],
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="TWOTEMP_API_KEY", help="The key that clients must send (better set in the environment)."
        ),
    ] = None,
    waiting: Annotated[
        int,
        typer.Option(min=1, help="Largest number of samples in progress; further requests get status 429."),
    ] = 1024,
    seconds: Annotated[float, typer.Option(min=1, help="The time limit of a request, in seconds.")] = 600.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode, e.g. one for each GPU.")] = 1,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API.

    Requests are batched as they arrive.

    [bold]Examples[/bold]
      twotemp serve --model tiny
      curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "20 10 15 -> 45"}], "n": 4, "max_tokens": 12, "policy": "tlc"}'
    """
    local = host in LOCAL
    if not local and not api_key:
        raise UserError(
            f"--host {host} can be reached by other machines; protect it with --api-key, or serve 127.0.0.1"
        )
    if api_key is not None and not (
        api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""
    ):
        raise UserError("--api-key must be printable ASCII, not empty, and without spaces around it")
    if not _is_free(host, options.port):
        next_port = f"--port {options.port + 1}"
        raise UserError(f"port {options.port} of {host} is in use; choose another, e.g. {next_port}")
    _serve(
        loading,
        options,
        host,
        workers=workers,
        seconds=seconds,
        waiting=waiting,
        api_key=api_key,
        hosts=LOCAL if local and not api_key else None,
    )


def play(
    loading: LoadingOptions,
    options: ServerOptions,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Compare two policies in the browser: the canvas, the order, the answers.

    [bold]Examples[/bold]
      twotemp play
      twotemp play --model GSAI-ML/LLaDA-8B-Instruct --device cuda --port 9000
    """
    host, first = LOCAL[0], options.port
    ports = range(first, min(first + PORTS_TRIED, 65536))
    port = next((number for number in ports if _is_free(host, number)), None)
    if port is None:
        raise UserError(f"ports {ports[0]} to {ports[-1]} are in use; choose another with --port")
    if port != first:
        say(f"port {first} is in use: taking {port} (--port changes it)")

    def open_page() -> None:
        webbrowser.open(f"http://{host}:{port}/")

    _serve(loading, replace(options, port=port), host, hosts=LOCAL, on_start=[open_page] if browser else [])


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
    options: ServerOptions,
    host: str,
    *,
    workers: int = 1,
    seconds: float = 600.0,
    waiting: int = 1024,
    api_key: str | None = None,
    hosts: Sequence[str] | None = None,
    on_start: Sequence[Callable[[], None]] = (),
) -> None:
    """Load the model and answer requests until Ctrl-C.

    Args:
        loading: How to load the model.
        options: The model, the port, and how rows are decoded.
        host: The address to listen on.
        workers: Processes that decode; 1: this one.
        seconds: The time limit of a request.
        waiting: The most samples accepted at once.
        api_key: What clients must send.
        hosts: The only names by which clients may call this server.
        on_start: Called once the server listens.
    """
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"serving needs {package}; install it with: pip install 'twotemp[serve]'")
    # Optional packages and torch: the checks above should neither wait for them nor fail without them.
    from twotemp.backends.local import fit_longest_rows
    from twotemp.engine.runner import check_cache
    from twotemp.serving.app import Server
    from twotemp.serving.bodies import Limits
    from twotemp.serving.listener import run

    show_log()
    cache, slots = options.cache, options.slots
    service: Supervisor | None = None
    if workers > 1:
        workload = Workload(options.model, loading, 0, slots, cache)
        loaded = workload.text()
        check_cache(loaded, cache)
        service = _workers(workload, workers, seconds)
        rows = f"{workers} workers"
    else:
        loaded = loading.load(options.model)
        check_cache(loaded, cache)
        slots = slots or fit_longest_rows(loaded, cache)
        rows = f"{slots} rows at once"
    say_cache(loaded, cache)
    server = Server(
        loaded,
        slots=slots or 1,
        cache=cache,
        limits=Limits(waiting=waiting, seconds=seconds),
        api_key=api_key,
        hosts=hosts,
        service=service,
    )
    address = f"http://{f'[{host}]' if ':' in host else host}:{options.port}"

    def ready() -> None:
        say(f"{server.name}: {rows}. API: {address}/v1   playground: {address}/   Ctrl-C stops it")

    run(server, host, options.port, [ready, *on_start])


def _workers(workload: Workload, count: int, seconds: float) -> Supervisor:
    """Return worker processes for live requests, once the first of them has loaded the model.

    A worker that hangs is replaced after a quarter of the time that a request may take, so that another one can still
    draw what it owed.
    """
    from twotemp.backends.process import ProcessTransport
    from twotemp.backends.supervisor import Supervisor
    from twotemp.engine.scheduler import MOST_ROWS
    from twotemp.models.load import locate

    locate(workload.model)  # fetched once, not by every worker
    loader = replace(workload.loader(devices(workload.loading.device)[1]), live=True)
    transport = ProcessTransport(loader, threads=threads_per_worker(workload.model, count), hold_seconds=0.0)
    # A worker's queue holds only what its batch takes next; the rest waits for the worker that is free first.
    depth = 2 * (workload.batch_size or MOST_ROWS)
    service = Supervisor(transport, count, depth=depth, hang_seconds=seconds / 4)
    try:
        service.fingerprint  # noqa: B018 - waits, and raises if no worker can load the model
    except BaseException:
        service.close(drop=True)
        raise
    return service
