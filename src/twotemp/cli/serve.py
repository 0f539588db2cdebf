"""`twotemp serve` and `twotemp play`: the model behind HTTP, and a page to play with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Annotated

import typer

from twotemp.cli.options import Cache, LoadingOptions, Model
from twotemp.errors import UserError

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
    import torch

    from twotemp import plugins
    from twotemp.cli.console import say, say_cache, show_log
    from twotemp.cli.workers import devices
    from twotemp.engine.memory import MOST_ROWS, fit_batch
    from twotemp.engine.runner import check_cache
    from twotemp.executors.worker import Loading
    from twotemp.graders.workers import usable_cpus
    from twotemp.policies import policy
    from twotemp.records import Request
    from twotemp.serving.app import Server, run
    from twotemp.serving.bodies import Limits
    from twotemp.serving.crew import Crew

    show_log()
    gpus = devices(loading.device)[1] if workers > 1 else 0
    place = Loading(model, loading.options(), gpus, plugins=tuple(plugins.NAMED))
    threads = max(1, usable_cpus() // workers)
    if workers > 1:
        torch.set_num_threads(threads)
    loaded = place.load(0)
    check_cache(loaded, cache)
    say_cache(loaded, cache)
    if slots is None:
        longest = Request("longest", (0,), policy("klass"), length=(loaded.max_length or 1024) - 1)
        slots, _ = fit_batch(loaded, [longest] * MOST_ROWS, cache)
    server = Server(
        loaded,
        slots=slots,
        cache=cache,
        limits=Limits(waiting=waiting, seconds=seconds),
        api_key=api_key,
        hosts=LOCAL if local and not api_key else None,
        crew=Crew(loaded, place.load, workers - 1, slots, cache, threads) if workers > 1 else None,
    )
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def ready() -> None:
        each = f" in each of {workers} processes" if workers > 1 else ""
        say(
            f"{server.name}: {slots} rows at once{each}. API: {where}/v1   playground: {where}/   Ctrl-C ends it"
        )

    run(server, host, port, [ready, *(on_start or [])])
