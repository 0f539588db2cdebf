"""The caches beside the exact engine and beside Fast-dLLM's own, and what they change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Contender, Spread, interleave, ratio, table
from benchmarks.peers import FastModel, Peer, Task
from benchmarks.proxies import POLICIES, RATIO, prompts, requests
from twotemp import tasks
from twotemp.engine import run
from twotemp.engine.drift import drift
from twotemp.models.llada import LLaDA
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Policy
from twotemp.sampling.prompts import ProblemRequest, problem_requests

PROMPT, LENGTH, BLOCK = 64, 64, 32
ROWS = 8  # of an adaptive policy
CACHES = (None, "prefix", "dual")


def report(folder: Path | None, seconds: float) -> None:
    model = RATIO.model()
    found, missing = peers.cached(folder, model)
    print("".join(f"*{reason}*\n\n" for reason in missing), end="")
    rows = []
    for name, chosen in POLICIES.items():
        rows += _compare(model, name, chosen, found, seconds)
    print(f"prompt {PROMPT}, length {LENGTH}, block {BLOCK}, B = 1; proxy {RATIO.name}\n")
    print(_agreement(model, found))
    print(table(["", "forwards", "CPU s", "to our dual", "a forward"], rows))


def _compare(
    model: LLaDA, name: str, chosen: Policy, found: dict[str, tuple[Peer, FastModel]], seconds: float
) -> list[list[str]]:
    """One row after another. How many steps an adaptive policy takes is chance, so it samples several rows."""
    threshold = chosen.threshold if chosen.rule == "threshold" else None
    texts = prompts(model, ROWS if threshold else 1, PROMPT)

    def size(small: bool) -> tuple[Tensor, int]:
        """Prompts and length; one block of one row warms up."""
        return (texts[:1], BLOCK) if small else (texts, LENGTH)

    def ours(cache: str | None, small: bool) -> int:
        some, length = size(small)
        wanted = requests(some, chosen, length, BLOCK)
        return sum(sample.forwards for sample in run(model, wanted, batch_size=1, cache=cache))

    def theirs(name: str, small: bool) -> int:
        some, length = size(small)
        peer, network = found[name]
        network.calls = 0
        for text in some:
            peer.sample(network, Task(text[None], length, BLOCK, chosen.t_token, threshold, model.mask_id))
        return network.calls

    contenders: dict[str, Contender] = {_title(cache): partial(ours, cache) for cache in CACHES}
    times = interleave(contenders | {peer: partial(theirs, peer) for peer in found}, seconds)
    dual = times[_title("dual")]
    return [
        [
            f"{name}: {who}",
            f"{mean(spent.count):.0f}",
            Spread(tuple(spent.cpu)).text(2),
            ratio(spent.cpu, dual.cpu).text(2),
            f"{spent.each / dual.each:.2f}",
        ]
        for who, spent in times.items()
    ]


def _title(cache: str | None) -> str:
    return f"twotemp, {cache or 'exact'}"


def _agreement(model: LLaDA, found: dict[str, tuple[Peer, FastModel]]) -> str:
    """At T_token = 0 the same approximation writes the same tokens."""
    greedy = replace(POLICIES["LC, K = 1"], t_token=0.0)
    texts = prompts(model, 1, PROMPT)
    task = Task(texts, LENGTH, BLOCK, 0.0, None, model.mask_id)
    lines = []
    for name, (it, network) in found.items():
        (ours,) = run(model, requests(texts, greedy, LENGTH, BLOCK), cache=name.rpartition(" ")[2])
        same = tuple(it.sample(network, task)[0, PROMPT:].tolist()) == ours.tokens
        lines.append(f"{name}: {'same tokens' if same else 'NOT the same tokens'} as ours at T_token = 0.\n")
    return "".join(lines)


def drifts(questions: int) -> None:
    """What the approximations change on the embedded, trained model."""
    model, task, rows = load("tiny", device="cpu"), tasks.get("words-3"), []
    problems = task.problems().problems[:questions]
    for chosen in (policy("lc"), policy("ct"), policy("tct")):
        asks = (ProblemRequest(problem, chosen) for problem in problems)
        wanted = list(problem_requests(model, asks, length=task.length, block=16))
        for cache in ("prefix", "dual"):
            found = drift(model, wanted, cache)
            rows.append(
                [
                    f"{chosen.name}, {cache}",
                    f"{found.kl_median:.2g}",
                    f"{found.kl_mean:.2g}",
                    f"{100 * found.changed_steps:.1f} %",
                    f"{100 * found.changed_tokens:.2f} %",
                ]
            )
    print(table(["", "KL, median", "KL, mean", "steps changed", "tokens changed"], rows))
