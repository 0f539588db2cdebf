"""`make bench`: every measurement in turn, as Markdown on stdout."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import caching, decoding, growth, quantized, scheduling, serving, workers
from benchmarks.measure import machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default="", help="folder with checkouts named LLaDA, Fast-dLLM and dllm")
    parser.add_argument("--batches", default="1,8,64", help="batch sizes, e.g. 1,8")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="for one case; at least one round is made"
    )
    parser.add_argument("--only", default="", help="some parts, e.g. caches,growth")
    given = parser.parse_args()
    torch.set_num_threads(1)
    peers = Path(given.peers) if given.peers else None
    batches = [int(size) for size in given.batches.split(",")]
    parts: dict[str, tuple[str, Callable[[], None]]] = {
        "bare": ("The engine and its forward passes", lambda: decoding.beside_bare(batches, given.seconds)),
        "peers": ("Samplers", lambda: decoding.beside_peers(peers, batches, given.seconds)),
        "caches": ("Caches", lambda: caching.report(peers, given.seconds)),
        "drift": ("What an approximate cache changes", lambda: caching.drifts(20)),
        "quantized": ("Quantized weights", lambda: quantized.report(given.seconds)),
        "scheduling": ("Scheduling", lambda: scheduling.report(given.seconds)),
        "growth": ("Growth", growth.report),
        "driver": ("The driver's ceiling", workers.driver),
        "workers": ("Workers", workers.workers),
        "serving": ("Requests that arrive together", serving.report),
    }
    chosen = given.only.split(",") if given.only else list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    print(f"{machine()}\n")
    for name in chosen:
        title, show = parts[name]
        print(f"## {title}\n", flush=True)
        show()


if __name__ == "__main__":
    main()
