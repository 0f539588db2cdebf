"""Measure the throughput of the server with 64 concurrent clients, compared with one request after another.

python -m benchmarks --only serving

The server runs in its own process, started by `twotemp serve`; the clients run in this process and do as little
work as possible. Both modes take turns. Use the wall times of an idle machine; on a busy one, only the server's CPU
time counts.
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
CLIENTS, EACH, ALONE = 64, 4, 24  # concurrent clients, requests of each; requests one after another
ROUNDS = 5


class HttpClient:
    """A minimal HTTP/1.1 client on one connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> HttpClient:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def chat(self, policy: str, seed: int) -> None:
        """Send a chat request and read its whole answer."""
        content = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": LENGTH}
        body = json.dumps(content | {"policy": policy, "seed": seed}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in answer.splitlines()[0], answer
        length = next(line for line in answer.splitlines() if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.partition(b":")[2]))


async def send_all(port: int, clients: int, each: int, policy: str) -> int:
    """Let every client send `each` requests, one after another; return the number of all requests."""

    async def send(number: int) -> None:
        async with HttpClient(port) as client:
            for turn in range(each):
                await client.chat(policy, seed=number * each + turn)

    await asyncio.gather(*map(send, range(clients)))
    return clients * each


@contextmanager
def served() -> Iterator[tuple[int, int]]:
    """Start a server of `tiny` with the default number of threads; yield its port and process id."""
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
    """Return the CPU time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def report() -> None:
    """Print the throughput of both modes for two policies."""
    rows = []
    with served() as (port, pid):
        for policy in ("tct", "tlc"):
            modes = {"alone": (1, ALONE), "together": (CLIENTS, EACH)}
            times = {mode: Times() for mode in modes}
            for number in range(ROUNDS + 1):
                for mode, (clients, each) in modes.items():
                    cpu, wall = cpu_seconds(pid), time.perf_counter()
                    count = asyncio.run(send_all(port, clients, each, policy))
                    if number:  # the first round is a warm-up
                        times[mode].wall.append((time.perf_counter() - wall) / count)
                        times[mode].cpu.append((cpu_seconds(pid) - cpu) / count)
                        times[mode].count.append(count)
            alone, together = times["alone"], times["together"]
            rates = [1 / Spread(tuple(mode.wall)).median for mode in (alone, together)]
            gains = [ratio(alone.wall, together.wall), ratio(alone.cpu, together.cpu)]
            rows.append([policy, *(f"{rate:.0f}" for rate in rates), *(gain.text(1) for gain in gains)])
    print(f"{CLIENTS} clients, {LENGTH} tokens; requests/s in wall time, medians of {ROUNDS} rounds\n")
    print(table(["policy", "one after another", "concurrent", "gain", "gain in the server's CPU time"], rows))
