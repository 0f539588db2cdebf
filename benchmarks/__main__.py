"""Run every benchmark and print the results as Markdown (`make bench`)."""

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
        "--seconds", type=float, default=15.0, help="time per case; every case runs at least one round"
    )
    parser.add_argument("--only", default="", help="run only these parts, e.g. caches,growth")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peers = Path(arguments.peers) if arguments.peers else None
    batches = [int(size) for size in arguments.batches.split(",")]
    parts: dict[str, tuple[str, Callable[[], None]]] = {
        "bare": (
            "The engine against its bare forward passes",
            lambda: decoding.compare_forwards(batches, arguments.seconds),
        ),
        "peers": (
            "Samplers of other projects",
            lambda: decoding.compare_peers(peers, batches, arguments.seconds),
        ),
        "caches": ("Caches", lambda: caching.report(peers, arguments.seconds)),
        "drift": ("What an approximate cache changes", lambda: caching.report_drift(20)),
        "quantized": ("Quantized weights", lambda: quantized.report(arguments.seconds)),
        "scheduling": ("Scheduling", lambda: scheduling.report(arguments.seconds)),
        "growth": ("Growth", growth.report),
        "driver": ("The driver's highest throughput", workers.driver),
        "workers": ("Workers", workers.workers),
        "serving": ("Concurrent requests", serving.report),
    }
    selected = arguments.only.split(",") if arguments.only else list(parts)
    if unknown := set(selected) - set(parts):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; the parts are {', '.join(parts)}")
    print(f"{machine()}\n")
    for name in selected:
        title, report = parts[name]
        print(f"## {title}\n", flush=True)
        report()


if __name__ == "__main__":
    main()
