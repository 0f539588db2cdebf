"""What does training the order change? Likelihoods and objectives with the same rollouts, at equal NFE.

    python -m experiments.order --out runs/order --nfe 40000 --seeds 3 --tasks countdown-3

TCT rollouts: token terms alone, tokens and order, and the estimators and objectives that others use. Fork rollouts
with `d1`, of which one training collapsed in the comparison of rollouts (`experiments.grpo`): does StableDRL's
objective prevent it? One training after another, each in its folder; the same command continues, and so does one with
a higher limit. `--finished` shows the trainings that are complete and trains nothing.

Times are not compared, so the machine need not be idle. What a training costs is counted in forward passes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import twotemp
from experiments import command, grpo
from experiments.blocks import table, with_interval
from twotemp import tasks
from twotemp.likelihood.orders import OrderQueries, order
from twotemp.likelihood.queries import Completion, CompletionBatch
from twotemp.models.base import Denoiser
from twotemp.records import Sample
from twotemp.report import grpo as report
from twotemp.rl.objective import OBJECTIVES

TASKS = ("countdown-3", "countdown-4")
# Name -> options of `twotemp grpo`. Ratios differ from 1 only after an update on the same rollouts. The first of each
# kind of rollouts is what the others are compared with.
STABLE = ("--likelihood", "d1", "--objective", "stable", "--epsilon-high", "4", "--iterations", "2")
TRAININGS: dict[str, dict[str, tuple[str, ...]]] = {
    "tct": {
        "tokens": ("--likelihood", "trajectory"),
        "order": ("--likelihood", "order"),
        "deferral": ("--likelihood", "deferral"),
        "d1": ("--likelihood", "d1"),
        "coupled": ("--likelihood", "coupled"),
        "sequence": (
            *("--likelihood", "stratified", "--draws", "2"),
            *("--objective", "sequence", "--iterations", "2"),
        ),
        "stable": STABLE,
    },
    "fork": {"fork-d1": ("--likelihood", "d1"), "fork-stable": STABLE},
}
FORK_FACTOR = 9  # Fork's trainings are this much longer: one collapsed after 250,000 NFE
SEEDS = (1, 0, 2)  # in this order: with seed 1 a training with Fork rollouts and d1 collapsed; it is repeated
SCORED = 64  # held-out problems whose rollouts tell how likely the order is
BACKWARD = 3  # a pass with its gradient, in forward passes
RESAMPLES = 4000


@dataclass(frozen=True)
class OrderSize:
    """The tasks, the NFE of all rollouts of a training, the number of seeds and of held-out problems."""

    nfe: int
    seeds: int
    held_out: int
    tasks: Sequence[str] = TASKS

    def limit(self, rollouts: str) -> int:
        """Return the NFE of a training with these rollouts."""
        return self.nfe * (FORK_FACTOR if rollouts == "fork" else 1)

    def runs(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield (task, rollouts, name, seed) of every training; Fork's are long, so they come last, with one seed."""
        trainings = [(rollouts, name) for rollouts, each in TRAININGS.items() for name in each]
        for task, seed, (rollouts, name) in product(self.tasks, SEEDS[: self.seeds], trainings):
            if rollouts == "tct":
                yield task, rollouts, name, seed
        for rollouts, name in trainings:
            if rollouts == "fork":
                yield self.tasks[0], rollouts, name, SEEDS[0]


def folder(out: Path, task: str, name: str, seed: int) -> Path:
    """Return the folder of a training."""
    return out / f"{task}-{name}-{seed}"


def run(
    out: Path,
    size: OrderSize,
    earlier: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Run the trainings that are missing, one after the other, and return the state of each at its limit.

    Args:
        out: The folder of the trainings.
        size: What to train.
        earlier: Results for the same weights; a training that one of them has is not run again.
        keep: Called with the result so far after each training.
    """
    for training in size.runs():
        if known(earlier, size, *training) is None:
            task, rollouts, name, seed = training
            options = ["--task", task, "--policy", grpo.ROLLOUTS[rollouts], *TRAININGS[rollouts][name]]
            limits = ["--budget", f"{size.limit(rollouts)}nfe", "--held-out", str(size.held_out)]
            where = ["--seed", str(seed), "--out", str(folder(out, task, name, seed))]
            command.twotemp("grpo", *options, *limits, *where)
            earlier = [finished(out, size, earlier)]
            keep(earlier[0])
    return finished(out, size, earlier)


def finished(out: Path, size: OrderSize, earlier: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the state of each training that has reached its limit, here or in earlier results."""
    rows = []
    for training in size.runs():
        row = known(earlier, size, *training)
        if row is None and (folder(out, training[0], *training[2:]) / "model").exists():
            row = state(out, size, *training)
        if row is not None:
            rows.append(row)
    return {"complete": len(rows) == len(list(size.runs())), "nfe": size.nfe, "runs": rows}


def known(
    earlier: Sequence[dict[str, Any]], size: OrderSize, task: str, rollouts: str, name: str, seed: int
) -> dict[str, Any] | None:
    """Return the row of a training, with these options and of this size, among earlier results; without, None."""
    wanted = {"task": task, "rollouts": rollouts, "name": name, "seed": seed, "questions": size.held_out}
    wanted["options"] = list(TRAININGS[rollouts][name])
    for result in earlier:
        for row in result["runs"]:
            if result["nfe"] == size.nfe and all(row[key] == value for key, value in wanted.items()):
                found: dict[str, Any] = row
                return found
    return None


def state(out: Path, size: OrderSize, task: str, rollouts: str, name: str, seed: int) -> dict[str, Any]:
    """Return the row of a training that has reached its limit."""
    path = folder(out, task, name, seed)
    reached = grpo.reached(path, "nfe", size.limit(rollouts))
    return {
        "task": task,
        "rollouts": rollouts,
        "name": name,
        "seed": seed,
        "options": list(TRAININGS[rollouts][name]),
        **reached,
        "distinct": round(float(report.read(path).column("distinct")[: reached["steps"]].mean()), 2),
        "order": round(surprise(path / "model", task), 2),
    }


def surprise(model: Path, task: str) -> float:
    """Return the mean over rollouts of -log P(order | tokens), in nats: how undecided the order of a model is."""
    problems = tasks.get(task).problems().problems[:SCORED]
    denoiser = twotemp.load(str(model), device="cpu")
    samples = twotemp.sample(
        denoiser,
        [problem.prompt for problem in problems],
        grpo.ROLLOUTS["tct"],
        length=tasks.get(task).length,
        trace=True,
        ids=[problem.id for problem in problems],
    )
    return -float(order_terms(denoiser, samples).mean())


@torch.inference_mode()
def order_terms(model: Denoiser, samples: Sequence[Sample]) -> torch.Tensor:
    """Return log P(order | tokens) of every sample: what `order` adds to the probabilities of the drawn tokens."""
    completions = [Completion.from_sample(sample) for sample in samples]
    batch = CompletionBatch.pad(completions, eos_ids=model.eos_ids, mask_id=model.mask_id)
    queries = order(batch, range(1))
    assert isinstance(queries, OrderQueries)
    logits = model.logits(queries.ids, queries.present, queries.queried).double()
    logits[:, list(model.forbidden_ids)] = -torch.inf
    query = queries.queried.nonzero()[:, 0]
    drawn = (logits / queries.t_token[query, None]).log_softmax(-1)
    drawn = drawn.gather(1, queries.target[queries.queried][:, None])[:, 0]
    tokens = torch.where(queries.committed[queries.queried], drawn, 0.0)
    totals = queries.totals(queries.read(logits) - tokens)
    return torch.zeros(len(samples), dtype=torch.float64).index_add(0, queries.row, totals)


def passes(options: Sequence[str], steps: float) -> tuple[float, float]:
    """Return the forward passes for a rollout that is learned from: without a gradient, and with one.

    The first update compares with itself. Each later one needs log q of before, and with an objective of whole rows
    also its own log q before the pass with a gradient.

    Args:
        options: of the training.
        steps: of the rollout.
    """
    chosen = dict(zip(options[::2], options[1::2]))
    draws, iterations = int(chosen.get("--draws", 1)), int(chosen.get("--iterations", 1))
    each = {"d1": draws, "coupled": 3 * draws, "stratified": draws}.get(chosen["--likelihood"], steps)
    again = 1 + (OBJECTIVES[chosen.get("--objective", "grpo")].needs == "differences")
    return each * again * (iterations - 1), each * iterations


def cost(run: Mapping[str, Any]) -> float:
    """Return what a rollout costs with its learning, in forward passes."""
    free, graded = passes(TRAININGS[run["rollouts"]][run["name"]], run["nfe"])
    return run["nfe"] + (1 - run["zero_std"]) * (free + BACKWARD * graded)


def nested_interval(values: np.ndarray) -> dict[str, float]:
    """Return the mean of values [seeds, questions] and its 95 % interval over seeds *and* questions, in points.

    Both are drawn with replacement, so trainings that differ widen the interval as questions do. With three seeds it
    is rough, and too narrow rather than too wide.
    """
    generator = np.random.default_rng(0)
    seeds, questions = values.shape
    rows, columns = (generator.multinomial(n, [1 / n] * n, RESAMPLES) / n for n in (seeds, questions))
    means = 100 * ((rows @ values) * columns).sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": 100 * float(values.mean()), "low": float(low), "high": float(high)}


def passed(runs: Sequence[Mapping[str, Any]], threshold: str) -> np.ndarray:
    """Return which questions each training answers, [seeds, questions]."""
    return np.array([[int(digit) for digit in run["passed"][threshold]] for run in runs], dtype=float)


def render(result: dict[str, Any]) -> str:
    """Return a table for each task and kind of rollouts: accuracies, and their gain over the first training."""
    size = OrderSize(result["nfe"], len(SEEDS), 0)
    shown = (("steps", 0), ("nfe", 1), ("reward_std", 3), ("distinct", 1), ("order", 2))
    parts = []
    for task, rollouts in dict.fromkeys((run["task"], run["rollouts"]) for run in result["runs"]):
        runs = {
            (run["name"], run["seed"]): run
            for run in result["runs"]
            if (run["task"], run["rollouts"]) == (task, rollouts)
        }
        thresholds = list(next(iter(runs.values()))["passed"])
        first = next(iter(TRAININGS[rollouts]))
        rows = []
        for name in dict.fromkeys(name for name, _ in runs):
            mine = {seed: run for (other, seed), run in runs.items() if other == name}
            paired = [seed for seed in mine if (first, seed) in runs]
            row = [f"`{name}`", str(len(mine))]
            row += [f"{np.mean([run[key] for run in mine.values()]):,.{digits}f}" for key, digits in shown]
            row.insert(4, f"{np.mean([cost(run) for run in mine.values()]):.1f}")
            for threshold in thresholds:
                values = passed(list(mine.values()), threshold)
                text = f"{100 * values.mean():.1f}"
                if name != first and paired:
                    ours, theirs = (
                        passed([runs[n, seed] for seed in paired], threshold) for n in (name, first)
                    )
                    text += f"; {with_interval(nested_interval(ours - theirs))}"
                row.append(text)
            rows.append(row)
        before = next(iter(runs.values()))["before"]
        untrained = ", ".join(f"{value:.1f} at λ = {threshold}" for threshold, value in before.items())
        heads = ["training", "seeds", "steps", "NFE per rollout", "passes per rollout and its learning"]
        heads += ["reward std in a group", "different answers of 8", "−log P(order)"]
        heads += [f"λ = {threshold}" for threshold in thresholds]
        title = f"{task}, {grpo.LABELS[rollouts].strip('*')} rollouts, {size.limit(rollouts):,} NFE"
        parts.append(f"{title} (before training: {untrained}):\n\n{table(heads, rows, len(heads) - 1)}")
    return (
        "Accuracy of greedy CT in %, the mean over seeds, and its gain over the first row in percentage points with "
        "the 95 % interval over questions and seeds (of one seed: over questions). Passes are counted, not timed: a "
        f"pass with its gradient is {BACKWARD} forward passes, and groups without a signal cost none; the integral "
        "of `order` is not counted. −log P(order): in nats, of a TCT rollout of the trained model, given its "
        "tokens.\n\n" + "\n\n".join(parts)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/order"))
    parser.add_argument("--nfe", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"with commas, of {', '.join(TASKS)}")
    parser.add_argument("--finished", action="store_true", help="show what is complete; train nothing")
    arguments = parser.parse_args()
    size = OrderSize(arguments.nfe, arguments.seeds, arguments.held_out, arguments.tasks.split(","))
    print(render((finished if arguments.finished else run)(arguments.out, size)))
