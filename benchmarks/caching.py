"""Compare the caches with the exact engine and with Fast-dLLM's caches: time, tokens and drift."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Contender, Spread, interleave, ratio, table
from benchmarks.peers import FastModel, Peer, SamplingTask
from benchmarks.proxies import POLICIES, RATIO, prompts, requests
from twotemp import tasks
from twotemp.engine import run
from twotemp.engine.observers import drift
from twotemp.models.llada import LLaDA
from twotemp.models.load import load
from twotemp.policies import policy
from twotemp.records import Policy
from twotemp.sampling.requests import PlannedSample, problem_requests

PROMPT, LENGTH, BLOCK = 64, 64, 32
ROWS = 8  # for an adaptive policy, whose number of steps varies by chance
CACHES = (None, "prefix", "dual")


def report(folder: Path | None, seconds: float) -> None:
    """Print a table of all caches and of those of the peers under `folder`."""
    model = RATIO.model()
    available, missing = peers.cached(folder, model)
    print("".join(f"*{reason}*\n\n" for reason in missing), end="")
    rows = []
    for name, chosen in POLICIES.items():
        rows += _compare(model, name, chosen, available, seconds)
    print(f"prompt {PROMPT}, length {LENGTH}, block {BLOCK}, B = 1; proxy {RATIO.name}\n")
    print(_agreement(model, available))
    print(table(["", "forwards", "CPU s", "ratio to our dual", "ratio per forward"], rows))


def _compare(
    model: LLaDA, name: str, chosen: Policy, available: dict[str, tuple[Peer, FastModel]], seconds: float
) -> list[list[str]]:
    """Time one policy with every cache, row by row, and return the lines of the table.

    Args:
        model: the proxy model.
        name: the policy's title in the table.
        chosen: the policy.
        available: the peers' samplers with their networks.
        seconds: time for the case.
    """
    threshold = chosen.threshold if chosen.rule == "threshold" else None
    texts = prompts(model, ROWS if threshold else 1, PROMPT)

    def size(small: bool) -> tuple[Tensor, int]:
        """Return the prompts and the length; the warm-up takes one block of one row."""
        return (texts[:1], BLOCK) if small else (texts, LENGTH)

    def ours(cache: str | None, small: bool) -> int:
        selected, length = size(small)
        wanted = requests(selected, chosen, length, BLOCK)
        return sum(sample.forwards for sample in run(model, wanted, batch_size=1, cache=cache))

    def theirs(name: str, small: bool) -> int:
        selected, length = size(small)
        peer, network = available[name]
        network.calls = 0
        for text in selected:
            peer.sample(
                network, SamplingTask(text[None], length, BLOCK, chosen.t_token, threshold, model.mask_id)
            )
        return network.calls

    contenders: dict[str, Contender] = {_title(cache): partial(ours, cache) for cache in CACHES}
    times = interleave(contenders | {peer: partial(theirs, peer) for peer in available}, seconds)
    dual = times[_title("dual")]
    return [
        [
            f"{name}: {contender}",
            f"{mean(spent.count):.0f}",
            Spread(tuple(spent.cpu)).text(2),
            ratio(spent.cpu, dual.cpu).text(2),
            f"{spent.each / dual.each:.2f}",
        ]
        for contender, spent in times.items()
    ]


def _title(cache: str | None) -> str:
    return f"twotemp, {cache or 'exact'}"


def _agreement(model: LLaDA, available: dict[str, tuple[Peer, FastModel]]) -> str:
    """Say whether peers with the same cache write the same tokens as ours at T_token = 0."""
    greedy = replace(POLICIES["LC, K = 1"], t_token=0.0)
    texts = prompts(model, 1, PROMPT)
    task = SamplingTask(texts, LENGTH, BLOCK, 0.0, None, model.mask_id)
    lines = []
    for name, (peer, network) in available.items():
        (ours,) = run(model, requests(texts, greedy, LENGTH, BLOCK), cache=name.rpartition(" ")[2])
        same = tuple(peer.sample(network, task)[0, PROMPT:].tolist()) == ours.tokens
        lines.append(f"{name}: {'same tokens' if same else 'NOT the same tokens'} as ours at T_token = 0.\n")
    return "".join(lines)


def report_drift(questions: int) -> None:
    """Print how much the approximate caches change on the embedded model, which is trained."""
    model, task, rows = load("tiny", device="cpu"), tasks.get("words-3"), []
    problems = task.problems().problems[:questions]
    for chosen in (policy("lc"), policy("ct"), policy("tct")):
        asks = (PlannedSample(problem, chosen) for problem in problems)
        wanted = list(problem_requests(model, asks, length=task.length, block=16))
        for cache in ("prefix", "dual"):
            change = drift(model, wanted, cache)
            rows.append(
                [
                    f"{chosen.name}, {cache}",
                    f"{change.kl_median:.2g}",
                    f"{change.kl_mean:.2g}",
                    f"{100 * change.changed_steps:.1f} %",
                    f"{100 * change.changed_tokens:.2f} %",
                ]
            )
    print(table(["", "KL, median", "KL, mean", "steps changed", "tokens changed"], rows))
