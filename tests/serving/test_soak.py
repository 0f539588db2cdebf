"""A server for a while under everything at once: nothing leaks, and every request is answered."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="needs httpx")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import httpx

import twotemp
from tests.helpers.serving_clients import PROMPT, listening, wait_for
from twotemp.serving import Limits, Server

SECONDS = float(os.environ.get("TWOTEMP_SOAK_SECONDS", "60"))
POLICIES = ("lc", "tlc", "tct", "ar", "eb", "klass", "soft-ar")


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def visit(client, noise: random.Random, seen: Counter[str]) -> None:
    """One client's visit, of a random kind."""
    kind = noise.choice(["plain", "plain", "stream", "leaves", "walks out", "huge", "broken", "wrong"])
    ask = {
        "prompt": PROMPT,
        "n": noise.randint(1, 4),
        "max_tokens": noise.randint(1, 40),
        "policy": noise.choice(POLICIES),
    }
    if noise.random() < 0.3:
        ask["stop"] = ["=", ","]
    if kind == "stream" or kind == "leaves":
        async with client.stream("POST", "/v1/completions", json=ask | {"stream": True}) as answer:
            text = ""
            async for part in answer.aiter_text():
                text += part
                if kind == "leaves":
                    break
            assert answer.status_code == 429 or kind == "leaves" or text.endswith("data: [DONE]\n\n")
            status = answer.status_code
    elif kind == "walks out":
        try:
            await client.post("/v1/completions", json=ask | {"max_tokens": 100, "n": 8}, timeout=0.05)
        except httpx.TimeoutException:
            seen["walked out"] += 1
        return
    else:
        body = {"huge": " " * 200_000, "broken": '{"prompt": ', "wrong": json.dumps(ask | {"t_poss": 1})}
        text = body.get(kind, json.dumps(ask))
        answer = await client.post(
            "/v1/completions", content=text, headers={"content-type": "application/json"}
        )
        status = answer.status_code
        expected = {"huge": 413, "broken": 400, "wrong": 400}.get(kind, 200)
        assert status in (expected, 429), (kind, answer.text)
        if status == 200:
            assert len(answer.json()["choices"]) == ask["n"]
    seen[f"{kind} {status}"] += 1


async def soak(port: int, seconds: float, seed: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    noise, end = random.Random(seed), time.monotonic() + seconds

    async def customer(number: int) -> None:
        own = random.Random(f"{seed} {number}")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while time.monotonic() < end:
                await visit(client, own, seen)
                await asyncio.sleep(own.expovariate(5))

    await asyncio.gather(*(customer(noise.randrange(10**9)) for _ in range(12)))
    return seen


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 120)
def test_a_soak_leaks_nothing_and_answers_every_request():
    server = Server(twotemp.load("tiny"), slots=16, limits=Limits(body_bytes=100_000, waiting=64))
    threads = threading.active_count()
    with listening(server) as (_, port):
        asyncio.run(soak(port, SECONDS / 4, seed=0))  # pools and allocators fill
        wait_for(lambda: server.service.load == 0)
        before, running = megabytes(), threading.active_count()
        seen = asyncio.run(soak(port, SECONDS * 3 / 4, seed=1))
        wait_for(lambda: server.service.load == 0)
        grown = megabytes() - before
        print(dict(seen), f"{before:.0f} MB, grown by {grown:.1f} MB")
        assert threading.active_count() <= running
        wait_for(lambda: not server.service._rows and not server.service._handles)
        assert {"plain 200", "stream 200", "huge 413", "broken 400", "wrong 400", "walked out"} <= set(seen)
        assert grown < 40
    assert threading.active_count() <= threads
