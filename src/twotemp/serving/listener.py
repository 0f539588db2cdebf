"""Listen for connections with uvicorn, and limit what clients can keep open."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from twotemp.serving.app import Server

MOST_CONNECTIONS = 1024
QUIET_SECONDS = 10.0  # a message is logged at most once in this time
PROBE_SECONDS = 0.5  # between the two probes that tell a half-closed connection from a lost one


class ListenConfig(uvicorn.Config):
    """The settings of uvicorn for one server, and the limits that uvicorn does not have."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        # Descriptors are shared with workers, graders and the model's files. A turn of the event loop accepts at
        # most `backlog` connections before it can close one, hence the distance between the two numbers.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            descriptors = 2 * MOST_CONNECTIONS
        super().__init__(
            server.app,
            host,
            port,
            http=ClientConnection,
            ws="none",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(server.limits.seconds),
            backlog=max(1, min(100, descriptors // 10)),
        )
        self.most_connections = min(MOST_CONNECTIONS, descriptors // 2)
        self.headers_seconds = server.limits.headers_seconds


class ClientConnection(H11Protocol):
    """A uvicorn connection that drops clients that do not send, and answers half-closed connections."""

    def __init__(self, config: ListenConfig, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self._limits = config
        self._opened = self.loop.time()
        self._headers_timer: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        """Whether a request's headers have arrived and its answer is still incomplete."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_headers()
        if len(self.connections) > self._limits.most_connections:
            self.logger.warning("Too many connections: the oldest idle ones are closed.")
            # Never empty: this connection is also idle.
            idle = [c for c in self.connections if isinstance(c, ClientConnection) and not c.is_answering]
            min(idle, key=lambda connection: connection._opened).abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def _watch_headers(self) -> None:
        """Start the timer when a client begins to send headers, and stop it when they are complete."""
        if self.is_answering:
            self._stop_timer()
        elif self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self._limits.headers_seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def abort(self) -> None:
        """Close the connection now, whatever the client has not read yet."""
        self.connections.discard(self)  # counted until the loop's next turn otherwise
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection: a client that has sent its whole request may still read."""
        if not self.is_answering or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        for number in (1, 2):
            self.loop.call_later(number * PROBE_SECONDS, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim response, which every client skips.

        A client that has closed its socket looks like one that only stopped sending until something is sent: the
        first probe makes its machine refuse the connection, and the second one notices that.
        """
        if self.is_answering and not self.cycle.response_started and not self.transport.is_closing():
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim) or b"")


class RepeatFilter(logging.Filter):
    """Drop a message that was logged within the last `QUIET_SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: set[tuple[str, str]] = set()
        self._until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if monotonic() >= self._until:
            self._logged.clear()
            self._until = monotonic() + QUIET_SECONDS
        cause = record.exc_info[1] if record.exc_info else None
        message = (str(record.msg).partition("\n")[0], repr(cause))
        is_new = message not in self._logged
        self._logged.add(message)
        return is_new


class Listener(uvicorn.Server):
    """A uvicorn server that calls `on_start` once it listens, and drops repeated log messages."""

    def __init__(self, config: ListenConfig, on_start: Sequence[Callable[[], None]] = ()) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def serve(self, sockets: Any = None) -> None:
        repeats = RepeatFilter()
        loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error")]
        for logger in loggers:
            logger.addFilter(repeats)
        try:
            await super().serve(sockets)
        finally:
            for logger in loggers:
                logger.removeFilter(repeats)

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for call in self._on_start:
            call()


def run(server: Server, host: str, port: int, on_start: Sequence[Callable[[], None]] = ()) -> None:
    """Serve until SIGINT or SIGTERM; requests accepted before are answered, and no new ones are accepted."""
    Listener(ListenConfig(server, host, port), on_start).run()
