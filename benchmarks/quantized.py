"""Measure size, time and drift of int8 weights, for the embedded model and the proxies.

python -m benchmarks --only quantized
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.decoding import limited
from benchmarks.measure import Contender, interleave, ratio, table
from benchmarks.proxies import RATIO, T_TOKEN, VOCABULARY, prompts, requests
from twotemp.engine.observers import drift
from twotemp.models.base import LanguageModel
from twotemp.models.checkpoint import save
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Request

KIND = "int8"
POLICY = policy("ct", threshold=0.6, t_token=T_TOKEN)
PROMPT, LENGTH = 64, 32
STEPS = {1: 8, 8: 2}  # rows -> steps that are timed


@contextmanager
def folders() -> Iterator[dict[str, str | Path]]:
    """Yield checkpoints by name; the proxies are saved, because weights are quantized while they are read."""
    with tempfile.TemporaryDirectory() as parent:
        checkpoints: dict[str, str | Path] = {"tiny": "tiny"}
        for proxy in (RATIO, VOCABULARY):
            checkpoints[proxy.name] = save(proxy.model(), Path(parent) / str(proxy.width * proxy.layers))
        yield checkpoints


def size(model: LanguageModel) -> int:
    """Return the bytes of a model's tensors."""
    return sum(tensor.nbytes for tensor in model.tensors().values())


def steps_of(model: LanguageModel, wanted: list[Request], steps: int) -> Contender:
    """Return a contender that runs the engine for `steps` steps."""
    return lambda small: limited(model, wanted, 1 if small else steps).steps


def report(seconds: float) -> None:
    """Print the tables of times and of drift."""
    times, drifts = [], []
    with folders() as checkpoints:
        for name, folder in checkpoints.items():
            plain = load(folder, device="cpu")
            quantized = load(folder, device="cpu", quantize=KIND)
            for rows, steps in STEPS.items():
                texts = prompts(plain, rows, PROMPT)
                texts[texts == plain.mask_id] = 5
                wanted = requests(texts, policy("lc", t_token=T_TOKEN), LENGTH, LENGTH)

                models = {"plain": plain, KIND: quantized}
                spent = interleave({n: steps_of(m, wanted, steps) for n, m in models.items()}, seconds)
                ratios = ratio(spent[KIND].cpu, spent["plain"].cpu)
                share = f"{100 * size(quantized) / size(plain):.0f} %"
                times.append([name, str(rows), share, f"{spent['plain'].each:.3f}", ratios.text(2)])
            wanted = requests(texts, POLICY, LENGTH, LENGTH)
            changed = drift(quantized, wanted, against=plain)
            drifts.append(
                [
                    name,
                    f"{changed.kl_median:.2g}",
                    f"{changed.kl_mean:.2g}",
                    f"{100 * changed.changed_steps:.1f} %",
                    f"{100 * changed.changed_tokens:.2f} %",
                ]
            )
    print(f"LC, prompt {PROMPT}, length {LENGTH}; CPU seconds per step, and the ratio of int8 to float32\n")
    print(table(["", "rows", "size", "float32, s", "int8 / float32"], times))
    print(f"CT, λ = {POLICY.threshold}, 8 rows: int8 compared with float32 at every state that int8 visits\n")
    print(table(["", "KL, median", "KL, mean", "steps changed", "tokens changed"], drifts))
