"""The engine beside the bare forward passes it makes, and beside the samplers people use today."""

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
from benchmarks.measure import Contender, Enough, Spread, interleave, ratio, table
from benchmarks.peers import FullLogits, Peer, Task
from benchmarks.proxies import POLICIES, RATIO, T_TOKEN, VOCABULARY, Proxy, prompts, requests
from twotemp.engine import Ledger, Observer, StepView, run
from twotemp.errors import UserError
from twotemp.models.llada import LLaDA
from twotemp.records import Policy, Request

# Canvas 96, block 32: what a step costs is the same as with a prompt of 32 and a length of 64.
PROMPT, LENGTH, BLOCK = 64, 32, 32
LEAST_STEPS = 2
GIGABYTES = 12  # what a peer may need at once; they keep several float64 copies of the canvas's logits
PROXIES = (RATIO, VOCABULARY)
OURS = "twotemp"


def steps_of(batch: int) -> int:
    """Large batches are measured over their first steps, where most is masked and our head is dearest."""
    return max(LEAST_STEPS, LENGTH // batch)


class Limited(Ledger):
    """A ledger that ends the run after so many steps."""

    def __init__(self, model: LLaDA | None, steps: int) -> None:
        super().__init__(model)
        self.most = steps

    def step(self, view: StepView) -> None:
        super().step(view)
        if self.steps == self.most:
            raise Enough


def limited(model: LLaDA, wanted: list[Request], steps: int, *, timed: bool = False) -> Limited:
    """The engine for at most so many steps; timed: also inside the model."""
    ledger = Limited(model if timed else None, steps)
    with suppress(Enough):
        list(run(model, wanted, batch_size=len(wanted), observer=ledger))
    return ledger


def introduction(proxy: Proxy) -> str:
    return (
        f"### {proxy.name}\n\nd = {proxy.width}, {proxy.layers} layers, vocabulary {proxy.vocabulary:,}, "
        f"body : head = {proxy.body_to_head:.1f} : 1; prompt {PROMPT}, length {LENGTH}, block {BLOCK}, "
        f"T_token {T_TOKEN}\n"
    )


# --- beside the bare forward passes


def beside_bare(batches: list[int], seconds: float) -> None:
    """Engine time over the time of the forward passes it makes, and where the rest goes."""
    for proxy in PROXIES:
        model, rows = proxy.model(), []
        print(introduction(proxy))
        for name, chosen in POLICIES.items():
            for batch in batches:
                wanted = requests(prompts(model, batch, PROMPT), chosen, LENGTH, BLOCK)
                pairs = paired(model, wanted, steps_of(batch), seconds)
                engine, bare = ([pair[i] for pair in pairs] for i in (0, 1))
                ledger = limited(model, wanted, steps_of(batch), timed=True)
                whole = sum(ledger.seconds.values())
                rows.append(
                    [
                        name,
                        str(batch),
                        f"{1e3 * Spread(tuple(bare)).median:.1f}",
                        ratio(engine, bare).text(3),
                        *(f"{100 * part / whole:.1f} %" for part in ledger.seconds.values()),
                    ]
                )
        header = ["", "B", "bare, ms per step", "engine / bare", *ledger.seconds]
        print(table(header, rows), flush=True)


def paired(model: LLaDA, wanted: list[Request], steps: int, seconds: float) -> list[tuple[float, float]]:
    """CPU seconds per step of the engine, and of its forward pass alone, run by run.

    After each of the engine's steps the same call is made once more by itself: same ids, the head on the same
    positions. Taking turns step by step, both see the same moments of the machine.
    """
    honest = model.logits
    last: list[tuple[Tensor, Tensor | None, Tensor]] = []
    engine = bare = began = 0.0
    taken = 0

    def listening(ids: Tensor, attention_mask: Tensor | None, want: Tensor) -> Tensor:
        last[:] = [(ids.clone(), attention_mask, want)]
        return honest(ids, attention_mask, want)

    class Alternate(Observer):
        def step(self, view: StepView) -> None:
            nonlocal engine, bare, began, taken
            now = time.process_time()
            engine += now - began
            honest(*last[0])
            began = time.process_time()
            bare += began - now
            taken += 1
            if taken == steps:
                raise Enough

    found: list[tuple[float, float]] = []
    model.logits = listening  # type: ignore[method-assign]
    until = time.perf_counter() + seconds
    try:
        while len(found) < 2 or time.perf_counter() < until:  # the first run warms up and is not kept
            engine, bare, taken, began = 0.0, 0.0, 0, time.process_time()
            with suppress(Enough):
                list(run(model, wanted, batch_size=len(wanted), observer=Alternate()))
                engine += time.process_time() - began  # the samples, after the last step
            found.append((engine / taken, bare / taken))
    finally:
        del model.logits
    return found[1:]


# --- beside the peers


def beside_peers(folder: Path | None, batches: list[int], seconds: float) -> None:
    found, missing = peers.uncached(folder)
    print("".join(f"*{reason}*\n\n" for reason in missing), end="")
    if not found:
        return
    for proxy in PROXIES:
        ours, rows = {OURS: proxy.model()}, []
        print(introduction(proxy))
        try:
            ours[f"{OURS} --compile"] = proxy.compiled()
        except UserError as error:
            print(f"*{error}*\n")
        print(agreement(ours, found))
        for name, chosen in POLICIES.items():
            for batch in batches:
                rows += _compare(proxy, ours, name, chosen, batch, found, seconds)
        print(table(["", "B", "steps", "CPU s", "to ours", "a step", "by the clock"], rows), flush=True)


def _compare(
    proxy: Proxy,
    ours: dict[str, LLaDA],
    name: str,
    chosen: Policy,
    batch: int,
    found: dict[str, Peer],
    seconds: float,
) -> list[list[str]]:
    """One policy at one batch size: everybody's time, in the same rounds."""
    model = ours[OURS]
    texts, steps = prompts(model, batch, PROMPT), steps_of(batch)
    wanted = requests(texts, chosen, LENGTH, BLOCK)
    threshold = chosen.threshold if chosen.rule == "threshold" else None
    task = Task(texts, LENGTH, BLOCK, chosen.t_token, threshold, model.mask_id)

    def engine(ours: LLaDA, small: bool) -> int:
        return limited(ours, wanted, 1 if small else steps).steps

    def theirs(peer: str, small: bool) -> int:
        full = FullLogits(model, 1 if small else steps)
        with suppress(Enough):
            found[peer].sample(full, task)
        return full.calls

    fits = 5 * 8 * batch * (PROMPT + LENGTH) * proxy.vocabulary < GIGABYTES * 2**30
    able = [peer for peer, it in found.items() if it.can(task) and fits]
    contenders: dict[str, Contender] = {name: partial(engine, model) for name, model in ours.items()}
    times = interleave(contenders | {peer: partial(theirs, peer) for peer in able}, seconds)
    plain = times[OURS]
    rows = [
        [
            f"{name}: {who}",
            str(batch),
            f"{mean(spent.count):.0f}",
            Spread(tuple(spent.cpu)).text(2),
            ratio(spent.cpu, plain.cpu).text(2),
            f"{spent.each / plain.each:.2f}",
            ratio(spent.wall, plain.wall).text(2),
        ]
        for who, spent in times.items()
    ]
    if not fits:
        rows.append([f"{name}: the others", str(batch), "", f"more than {GIGABYTES} GB", "", "", ""])
    return rows


@torch.inference_mode()
def agreement(ours: dict[str, LLaDA], found: dict[str, Peer]) -> str:
    """At T_token = 0 every sampler must write the same tokens; else speeds of different things are compared."""
    greedy = replace(POLICIES["LC, K = 1"], t_token=0.0)
    model = ours[OURS]
    texts = prompts(model, 1, PROMPT)
    task = Task(texts, LENGTH, BLOCK, 0.0, None, model.mask_id)
    written = {
        name: next(run(it, requests(texts, greedy, LENGTH, BLOCK))).tokens for name, it in ours.items()
    }
    first = written.pop(OURS)
    for name, peer in found.items():
        written[name] = tuple(peer.sample(FullLogits(model, LENGTH), task)[0, PROMPT:].tolist())
    same = [name for name, tokens in written.items() if tokens == first]
    other = [name for name in written if name not in same]
    text = f"Same tokens as ours at T_token = 0: {', '.join(same) or 'none'}."
    return text + (f" NOT the same: {', '.join(other)}.\n" if other else "\n")
