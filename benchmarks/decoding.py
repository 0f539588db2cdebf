"""Compare the engine with its bare forward passes, and with the samplers of other projects."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Contender, EnoughSteps, Spread, interleave, ratio, table
from benchmarks.peers import FullLogits, Peer, SamplingTask
from benchmarks.proxies import POLICIES, RATIO, T_TOKEN, VOCABULARY, Proxy, prompts, requests
from twotemp.engine import Observer, Profiler, StepView, run
from twotemp.errors import UserError
from twotemp.models.llada import LLaDA
from twotemp.records import Policy, Request

# The canvas has 96 positions, so a step costs the same as with a prompt of 32 and a length of 64.
PROMPT, LENGTH, BLOCK = 64, 32, 32
MIN_STEPS = 2
GIGABYTES = 12  # a peer's memory limit; peers keep several float64 copies of the canvas's logits
PROXIES = (RATIO, VOCABULARY)
OURS = "twotemp"


def steps_of(batch: int) -> int:
    """Return how many steps to time: fewer for large batches, whose first steps are the most expensive for us."""
    return max(MIN_STEPS, LENGTH // batch)


class LimitedProfiler(Profiler):
    """A profiler that ends the run after `steps` steps."""

    def __init__(self, model: LLaDA | None, steps: int) -> None:
        super().__init__(model)
        self.limit = steps

    def step(self, view: StepView) -> None:
        super().step(view)
        if self.steps == self.limit:
            raise EnoughSteps


def limited(model: LLaDA, wanted: list[Request], steps: int, *, timed: bool = False) -> LimitedProfiler:
    """Run the engine for at most `steps` steps and return its profiler; `timed` also times the parts of the model."""
    profiler = LimitedProfiler(model if timed else None, steps)
    with suppress(EnoughSteps):
        list(run(model, wanted, batch_size=len(wanted), observer=profiler))
    return profiler


def introduction(proxy: Proxy) -> str:
    """Return the heading and the settings of a proxy's section."""
    return (
        f"### {proxy.name}\n\nd = {proxy.width}, {proxy.layers} layers, vocabulary {proxy.vocabulary:,}, "
        f"body : head = {proxy.body_to_head:.1f} : 1; prompt {PROMPT}, length {LENGTH}, block {BLOCK}, "
        f"T_token {T_TOKEN}\n"
    )


# --- against bare forward passes


def compare_forwards(batches: list[int], seconds: float) -> None:
    """Print engine time over the time of its forward passes, and the share of every part of a step."""
    for proxy in PROXIES:
        model, rows = proxy.model(), []
        print(introduction(proxy))
        for name, chosen in POLICIES.items():
            for batch in batches:
                wanted = requests(prompts(model, batch, PROMPT), chosen, LENGTH, BLOCK)
                pairs = paired(model, wanted, steps_of(batch), seconds)
                engine, bare = ([pair[i] for pair in pairs] for i in (0, 1))
                profiler = limited(model, wanted, steps_of(batch), timed=True)
                whole = sum(profiler.seconds.values())
                rows.append(
                    [
                        name,
                        str(batch),
                        f"{1e3 * Spread(tuple(bare)).median:.1f}",
                        ratio(engine, bare).text(3),
                        *(f"{100 * part / whole:.1f} %" for part in profiler.seconds.values()),
                    ]
                )
        header = ["", "B", "bare, ms per step", "engine / bare", *profiler.seconds]
        print(table(header, rows), flush=True)


def paired(model: LLaDA, wanted: list[Request], steps: int, seconds: float) -> list[tuple[float, float]]:
    """Return the CPU seconds per step of the engine and of its forward pass alone, run by run.

    After each step of the engine the same forward pass is repeated alone, with the same ids and the head on the same
    positions. Taking turns step by step exposes both to the same load of the machine.

    Args:
        model: the model; its `logits` is wrapped during the measurement.
        wanted: the requests of the batch.
        steps: the steps of a run that are timed.
        seconds: time for all runs; there are at least two, and the first one is a warm-up that is not returned.
    """
    original = model.logits
    last: list[tuple[Tensor, Tensor | None, Tensor]] = []
    engine = bare = start = 0.0
    taken = 0

    def recording(ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        last[:] = [(ids.clone(), attention_mask, want)]
        return original(ids, attention_mask, want)

    class AlternatingObserver(Observer):
        def step(self, view: StepView) -> None:
            nonlocal engine, bare, start, taken
            now = time.process_time()
            engine += now - start
            original(*last[0])
            start = time.process_time()
            bare += start - now
            taken += 1
            if taken == steps:
                raise EnoughSteps

    pairs: list[tuple[float, float]] = []
    model.logits = recording  # type: ignore[method-assign]
    until = time.perf_counter() + seconds
    try:
        while len(pairs) < 2 or time.perf_counter() < until:  # the first run warms up and is not kept
            engine, bare, taken, start = 0.0, 0.0, 0, time.process_time()
            with suppress(EnoughSteps):
                list(run(model, wanted, batch_size=len(wanted), observer=AlternatingObserver()))
                engine += time.process_time() - start  # the samples, after the last step
            pairs.append((engine / taken, bare / taken))
    finally:
        del model.logits
    return pairs[1:]


# --- against peers


def compare_peers(folder: Path | None, batches: list[int], seconds: float) -> None:
    """Print the times of the engine and of the samplers found under `folder`, and whether they agree."""
    available, missing = peers.uncached(folder)
    print("".join(f"*{reason}*\n\n" for reason in missing), end="")
    if not available:
        return
    for proxy in PROXIES:
        ours, rows = {OURS: proxy.model()}, []
        print(introduction(proxy))
        try:
            ours[f"{OURS} --compile"] = proxy.compiled()
        except UserError as error:
            print(f"*{error}*\n")
        print(agreement(ours, available))
        for name, chosen in POLICIES.items():
            for batch in batches:
                rows += _compare(proxy, ours, name, chosen, batch, available, seconds)
        print(
            table(["", "B", "steps", "CPU s", "ratio to ours", "ratio per step", "ratio of wall time"], rows),
            flush=True,
        )


def _compare(
    proxy: Proxy,
    ours: dict[str, LLaDA],
    name: str,
    chosen: Policy,
    batch: int,
    available: dict[str, Peer],
    seconds: float,
) -> list[list[str]]:
    """Time one policy at one batch size with every sampler, in the same rounds.

    Args:
        proxy: the proxy that the models are made from.
        ours: our models, plain and compiled.
        name: the policy's title in the table.
        chosen: the policy.
        batch: the batch size.
        available: the peers' samplers.
        seconds: time for the case.

    Returns:
        The lines of the table.
    """
    model = ours[OURS]
    texts, steps = prompts(model, batch, PROMPT), steps_of(batch)
    wanted = requests(texts, chosen, LENGTH, BLOCK)
    threshold = chosen.threshold if chosen.rule == "threshold" else None
    task = SamplingTask(texts, LENGTH, BLOCK, chosen.t_token, threshold, model.mask_id)

    def engine(ours: LLaDA, small: bool) -> int:
        return limited(ours, wanted, 1 if small else steps).steps

    def theirs(peer: str, small: bool) -> int:
        full = FullLogits(model, 1 if small else steps)
        with suppress(EnoughSteps):
            available[peer].sample(full, task)
        return full.calls

    fits = 5 * 8 * batch * (PROMPT + LENGTH) * proxy.vocabulary < GIGABYTES * 2**30
    able = [name for name, peer in available.items() if peer.can(task) and fits]
    contenders: dict[str, Contender] = {name: partial(engine, model) for name, model in ours.items()}
    times = interleave(contenders | {peer: partial(theirs, peer) for peer in able}, seconds)
    plain = times[OURS]
    rows = [
        [
            f"{name}: {contender}",
            str(batch),
            f"{mean(spent.count):.0f}",
            Spread(tuple(spent.cpu)).text(2),
            ratio(spent.cpu, plain.cpu).text(2),
            f"{spent.each / plain.each:.2f}",
            ratio(spent.wall, plain.wall).text(2),
        ]
        for contender, spent in times.items()
    ]
    if not fits:
        rows.append([f"{name}: peers", str(batch), "", f"more than {GIGABYTES} GB", "", "", ""])
    return rows


@torch.inference_mode()
def agreement(ours: dict[str, LLaDA], available: dict[str, Peer]) -> str:
    """Say which samplers write the same tokens as ours at T_token = 0; the speeds of others mean little."""
    greedy = replace(POLICIES["LC, K = 1"], t_token=0.0)
    model = ours[OURS]
    texts = prompts(model, 1, PROMPT)
    task = SamplingTask(texts, LENGTH, BLOCK, 0.0, None, model.mask_id)
    written = {
        name: next(run(own, requests(texts, greedy, LENGTH, BLOCK))).tokens for name, own in ours.items()
    }
    first = written.pop(OURS)
    for name, peer in available.items():
        written[name] = tuple(peer.sample(FullLogits(model, LENGTH), task)[0, PROMPT:].tolist())
    same = [name for name, tokens in written.items() if tokens == first]
    different = [name for name in written if name not in same]
    text = f"Same tokens as ours at T_token = 0: {', '.join(same) or 'none'}."
    return text + (f" NOT the same: {', '.join(different)}.\n" if different else "\n")
