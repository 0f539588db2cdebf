"""The paper's GRPO figure: LLaDA-8B on GSM8K and MATH with AR, CT and TCT rollouts, 72 hours each on 4 GPUs.

python -m experiments.grpo_llada --list prints the six commands; without --list they are run one after another. They
take 18 days on one machine with four A100s and were never run by the project, which has no GPU.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

RECIPES = Path("recipes/grpo")
TASKS = ("gsm8k", "math")
SAMPLERS = ("ar", "ct", "tct")


def commands(out: Path, gpus: int = 4, budget: str = "72h") -> Iterator[list[str]]:
    """Yield the commands of the trainings, and of the report that compares the samplers of each task."""
    start = ["torchrun", "--nproc-per-node", str(gpus), "--no-python", "twotemp", "grpo"]
    for task in TASKS:
        runs = {sampler: out / f"{task}-{sampler}" for sampler in SAMPLERS}
        for sampler, run in runs.items():
            recipe = RECIPES / f"llada-{task}-{sampler}.yaml"
            yield [*start, "--recipe", str(recipe), "--budget", budget, "--out", str(run)]
        yield ["twotemp", "report", *map(str, runs.values()), "--out", str(out / f"report-{task}")]


def main() -> None:
    """Print or run the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the commands and exit")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo-llada"))
    options = parser.parse_args()
    for command in commands(options.out):
        print(shlex.join(command), flush=True)
        if not options.list:
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
