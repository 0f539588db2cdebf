"""Does the paper's effect hold on the embedded model, and again on other problems?

    python experiments/embedded.py                    # the first 500 test problems of each task
    python experiments/embedded.py --subset test:7    # 500 others, drawn with seed 7

64 samples per question at T_token = 0.8, paired bootstrap over questions. Every line is one claim: the difference in
points, its 95 % interval, and whether the interval is above 0. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from twotemp import metrics
from twotemp.cli import app
from twotemp.store import Store

LC, TLC, AR, CT, TCT = "lc", "tlc:t_pos=1", "ar", "ct:threshold=0.6", "tct:t_pos=0.1,threshold=0.6"
SAMPLES = 64
# TCT's samples are cheap: so many that it can spend half of what 64 samples of AR cost.
CHEAP = 192


def draw(tasks: str, model: str, subset: str, questions: int, out: Path) -> None:
    shared = ["--tasks", tasks, "--model", model, "--subset", subset, "--questions", str(questions)]
    for n, policies in ((SAMPLES, (AR, LC, TLC, CT, TCT)), (CHEAP, (TCT,))):
        app(
            ["eval", *shared, "-n", str(n), "--policies", ";".join(policies), "--out", str(out)],
            standalone_mode=False,
        )


def show(out: Path) -> None:
    cells = {(cell.config.task, cell.config.policy.name): cell for cell in Store.open(out).cells()}
    for task in dict.fromkeys(task for task, _ in cells):
        grader = next(iter(cells[task, "lc"].graders()))
        tables = {name: cells[task, name].table(grader) for name in ("ar", "lc", "tlc", "ct", "tct")}
        passes = {
            name: 100 * metrics.pass_at_k(table.n, table.correct, range(1, int(table.n.min()) + 1))
            for name, table in tables.items()
        }
        costs = {name: metrics.mean_cost(table.nfe) for name, table in tables.items()}
        print(f"\n{task}: {len(passes['lc'])} questions")
        for name, values in passes.items():
            at = [f"{values[:, k - 1].mean():5.1f}" for k in (1, 16, SAMPLES)]
            print(f"  {name:4} pass@1, 16, {SAMPLES}: {' '.join(at)}   {costs[name]:5.1f} NFE per sample")
        for first, second, k in (("lc", "tlc", 1), ("tlc", "lc", SAMPLES), ("tct", "ct", SAMPLES)):
            claim(f"{first} - {second} at k = {k}", passes[first][:, k - 1] - passes[second][:, k - 1])
        for samples in (1, 2, 4, 8, 16, 32):
            budget = samples * costs["ar"]
            if budget <= costs["tct"] * passes["tct"].shape[1]:
                tct = metrics.at_budget(passes["tct"], costs["tct"], budget)[:, 0]
                claim(f"tct - ar for {budget:.0f} NFE", tct - passes["ar"][:, samples - 1])


def claim(what: str, differences: np.ndarray) -> None:
    found = metrics.bootstrap(differences)
    mean, low, high = (float(value[0]) for value in (found.mean, found.low, found.high))
    print(f"  {what:24} {mean:+5.1f} ({low:+.1f} to {high:+.1f})  {'yes' if low > 0 else 'NO'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tasks", default="countdown-3,words-3,programs-1")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("runs/embedded"))
    given = parser.parse_args()
    folder = given.out / given.subset.replace(":", "-")
    draw(given.tasks, given.model, given.subset, given.questions, folder)
    show(folder)
