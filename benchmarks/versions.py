"""Compare the speed of this checkout's engine with that of another checkout, on the same requests.

    python -m benchmarks.versions ../old            # another checkout, for instance of the last release
    python -m benchmarks.versions ../old --rounds 9 --only tiny,lc

Each version runs in its own process with one thread, and both take turns, so that they see the same load of the
machine. The times are CPU seconds of `engine.run`; the ratio is the median over rounds. The samples are compared as
well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "src" / "twotemp" / "models" / "weights" / "tiny"  # for both versions
# Whether glibc returns a buffer to the system after every use depends on the history of the heap, and costs up to a
# tenth of the time. Here it keeps all of them.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
# Model -> (rows, length) that take about a second.
SIZES = {"ratio": [(1, 16), (8, 4)], "vocabulary": [(1, 32), (8, 16)], "tiny": [(1, 32), (64, 24)]}
POLICIES = ("ar", "lc", "tlc:t_pos=1", "ct:threshold=0.6", "tct:t_pos=0.1,threshold=0.6", "klass")


def worker() -> None:
    """Answer each case on stdin with its CPU seconds and a hash of the samples; runs inside either version."""
    import torch

    from benchmarks import proxies
    from twotemp.engine import run
    from twotemp.models.load import load
    from twotemp.policies import parse

    torch.set_num_threads(1)
    models: dict[str, Any] = {}
    for line in sys.stdin:
        name, spec, rows, length = json.loads(line)
        if name not in models:
            proxy = {"ratio": proxies.RATIO, "vocabulary": proxies.VOCABULARY}.get(name)
            models[name] = proxy.model() if proxy else load(TINY)
        model = models[name]
        texts = proxies.prompts(model, rows, 64)
        texts[texts == model.mask_id] = 5
        wanted = proxies.requests(texts, parse(spec), length, length)
        start = time.process_time()
        samples = list(run(model, wanted, batch_size=rows))
        spent = time.process_time() - start
        tokens = sorted((s.request, s.tokens) for s in samples)
        print(json.dumps([spent, hashlib.sha256(repr(tokens).encode()).hexdigest()]), flush=True)


class Version:
    """A worker process that runs the engine of one checkout; call it with a case."""

    def __init__(self, checkout: Path) -> None:
        paths = os.pathsep.join([str(checkout), str(checkout / "src")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            cwd=checkout,
            env=os.environ | MALLOC | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, case: list[Any]) -> tuple[float, str]:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(case), file=self._process.stdin, flush=True)
        seconds, digest = json.loads(self._process.stdout.readline())
        return seconds, digest


def main() -> None:
    from benchmarks.measure import Spread, machine, ratio, table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("checkout", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="only these models and policies, e.g. tiny,ratio,lc")
    arguments = parser.parse_args()
    only = set(arguments.only.split(",")) if arguments.only else set()
    this, other = Version(ROOT), Version(arguments.checkout.resolve())
    rows = []
    for model, sizes in SIZES.items():
        for spec in POLICIES:
            if only and not {model, spec.partition(":")[0]} & only:
                continue
            for batch, length in sizes:
                case = [model, spec, batch, length]
                same = this(case)[1] == other(case)[1]  # also warms up
                pairs = []
                for turn in range(arguments.rounds):
                    order = [this, other] if turn % 2 else [other, this]
                    spent = {version: version(case)[0] for version in order}
                    pairs.append((spent[this], spent[other]))
                ours, theirs = zip(*pairs)
                row = [
                    f"{model}, {spec}",
                    str(batch),
                    f"{Spread(theirs).median:.2f}",
                    ratio(ours, theirs).text(3),
                ]
                rows.append([*row, f"{min(ours) / min(theirs):.3f}", "yes" if same else "no"])
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(f"{machine()}; {arguments.rounds} rounds\n")
    print(table(["", "rows", "other, CPU s", "this / other", "ratio of the minima", "same samples"], rows))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()
