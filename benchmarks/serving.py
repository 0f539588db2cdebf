"""What requests gain by arriving together: 64 clients at once beside one after another.

python -m benchmarks --only serving

The server is a process of its own, as `twotemp serve` starts it; the clients are in this one and do as little as they
can. Both ways alternate. The clock counts on an idle machine; the server's CPU time can be trusted on a busy one.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Spread, Times, ratio, table

PROMPT, LENGTH = "20 10 15 -> 45", 12
CLIENTS, EACH, ALONE = 64, 4, 24  # clients at once, requests of each; requests one after another
ROUNDS = 5


class Client:
    """One connection that is kept open: HTTP/1.1, and no more of it than is needed."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, policy: str, seed: int) -> None:
        content = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": LENGTH}
        body = json.dumps(content | {"policy": policy, "seed": seed}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in answer.splitlines()[0], answer
        length = next(line for line in answer.splitlines() if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.partition(b":")[2]))


async def visits(port: int, clients: int, each: int, policy: str) -> int:
    """Every client asks so many times, the next time when the last was answered; how often in all."""

    async def visit(number: int) -> None:
        async with Client(port) as client:
            for time_ in range(each):
                await client.ask(policy, seed=number * each + time_)

    await asyncio.gather(*map(visit, range(clients)))
    return clients * each


@contextmanager
def served() -> Iterator[tuple[int, int]]:
    """A server of `tiny`, with as many threads as its command takes by itself: its port and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from twotemp.cli import main; main()", "serve", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"rows at once" not in (line := process.stderr.readline()):
            assert line, "the server did not start"
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def report() -> None:
    rows = []
    with served() as (port, pid):
        for policy in ("tct", "tlc"):
            ways = {"alone": (1, ALONE), "together": (CLIENTS, EACH)}
            found = {way: Times() for way in ways}
            for around in range(ROUNDS + 1):
                for way, (clients, each) in ways.items():
                    cpu, wall = cpu_seconds(pid), time.perf_counter()
                    count = asyncio.run(visits(port, clients, each, policy))
                    if around:  # the first is to warm up
                        found[way].wall.append((time.perf_counter() - wall) / count)
                        found[way].cpu.append((cpu_seconds(pid) - cpu) / count)
                        found[way].count.append(count)
            alone, together = found["alone"], found["together"]
            rates = [1 / Spread(tuple(times.wall)).median for times in (alone, together)]
            gains = [ratio(alone.wall, together.wall), ratio(alone.cpu, together.cpu)]
            rows.append([policy, *(f"{rate:.0f}" for rate in rates), *(gain.text(1) for gain in gains)])
    print(f"{CLIENTS} clients, {LENGTH} tokens; requests/s by the clock, medians of {ROUNDS} rounds\n")
    print(table(["policy", "one after another", "at once", "gain", "gain in the server's CPU time"], rows))
