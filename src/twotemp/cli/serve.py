"""`twotemp serve` and `twotemp play`: the model behind HTTP, and a page to play with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from twotemp.cli.options import Cache, LoadingOptions, Model
from twotemp.errors import UserError

if TYPE_CHECKING:
    from twotemp.backends.supervisor import Supervisor
    from twotemp.cli.workers import Job

Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen at.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Rows decoded together; unset: what fits.")]
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    loading: LoadingOptions,
    model: Model = "tiny",
    host: Annotated[str, typer.Option(help="Another address than loopback needs --api-key.")] = "127.0.0.1",
    port: Port = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TWOTEMP_API_KEY", help="Clients must send it (better: in the environment)."),
    ] = None,
    slots: Slots = None,
    waiting: Annotated[int, typer.Option(min=1, help="Samples accepted at once; beyond that: 429.")] = 1024,
    seconds: Annotated[float, typer.Option(min=1, help="The longest a request may take.")] = 600.0,
    cache: Cache = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode: one for each GPU, say.")] = 1,
) -> None:
    """Serve a model with OpenAI's API; requests are batched as they arrive.

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
    """Compare two policies in the browser: the canvas as it fills, the order, the answers."""

    def look() -> None:
        import webbrowser

        webbrowser.open(f"http://127.0.0.1:{port}/")

    _serve(loading, model, "127.0.0.1", port, None, slots, 1024, 600.0, cache, 1, [look] if browser else [])


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
            f"--host {host} can be reached from elsewhere; protect it with --api-key, or serve 127.0.0.1"
        )
    if api_key is not None and not (
        api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""
    ):
        raise UserError("--api-key must be printable ASCII, without spaces around it, and not empty")
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"serving needs {package}; install it with: pip install 'twotemp[serve]'")
    from twotemp.backends.local import longest_rows
    from twotemp.cli.console import say, say_cache, show_log
    from twotemp.cli.workers import Job
    from twotemp.engine.runner import check_cache
    from twotemp.serving.app import Server, run
    from twotemp.serving.bodies import Limits

    show_log()
    limits = Limits(waiting=waiting, seconds=seconds)
    service: Supervisor | None = None
    if workers > 1:
        job = Job(model, loading, 0, slots, cache)
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


def _workers(job: Job, count: int, seconds: float) -> Supervisor:
    """Return worker processes for live requests, of which the first has loaded the model.

    A worker that hangs is replaced after a quarter of the time that a request may take, so that another one can still
    draw what it owed.
    """
    from dataclasses import replace

    from twotemp.backends.process import ProcessTransport
    from twotemp.backends.supervisor import Supervisor
    from twotemp.cli.workers import devices
    from twotemp.engine.memory import MOST_ROWS
    from twotemp.graders.workers import usable_cpus
    from twotemp.models.load import locate

    locate(job.model)  # fetched once, not by every worker
    loader = replace(job.loader(devices(job.loading.device)[1]), live=True)
    transport = ProcessTransport(loader, threads=max(1, usable_cpus() // count), beat=0.0)
    # A worker's own queue holds what its batch takes next; the rest waits for whichever worker is free first.
    depth = 2 * (job.batch_size or MOST_ROWS)
    service = Supervisor(transport, count, depth=depth, hang_seconds=seconds / 4)
    try:
        service.fingerprint  # noqa: B018 - waits, and raises if no worker can load the model
    except BaseException:
        service.close(drop=True)
        raise
    return service
