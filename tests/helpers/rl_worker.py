"""A worker of a training run, started by torchrun: `rl_worker.py OUT ddp|fsdp BUDGET key=value ...`."""

from __future__ import annotations

import ast
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from tests.helpers import rl_toys
from twotemp.rl import trainer as trainer_module
from twotemp.rl.objective import OBJECTIVES
from twotemp.rl.parallel import accelerator
from twotemp.rl.rollouts import Dataset
from twotemp.rl.settings import Budget
from twotemp.rl.trainer import Trainer


def work(
    out: Path,
    mode: str,
    budget: str,
    haste: float = 1,
    poison: int = -1,
    forbidden: tuple[int, ...] = (),
    **changes: Any,
) -> None:
    """Train, and write this worker's copy of the final weights.

    Args:
        out: the run directory.
        mode: "ddp" or "fsdp".
        budget: the budget of the training.
        haste: the speed of the second worker's clock.
        poison: the index of the second worker's loss that is replaced by NaN.
        forbidden: token ids that are never sampled, in addition to the mask's.
        **changes: settings.
    """
    workers = accelerator(cpu=True)
    if workers.process_index:
        trainer_module.perf_counter = lambda: haste * perf_counter()
        calls = count()
        rl_toys.poison_loss(OBJECTIVES.__setitem__, lambda: next(calls) == poison)
    held_out = rl_toys.TASK.problems().problems[:5]
    settings = rl_toys.settings(**changes, fsdp=mode == "fsdp")
    model = rl_toys.micro_model()
    model.forbidden_ids += forbidden
    dataset = Dataset(rl_toys.TASK, rl_toys.ManyNumbers(), held_out=held_out)
    with ExitStack() as stack:
        trainer = Trainer(model, dataset, settings, out, workers, stack)
        trainer.run(Budget.parse(budget), lambda record, used: None, lambda: False)
    sharded = any(isinstance(p, DTensor) for p in trainer.learner.network.parameters())
    assert sharded == (mode == "fsdp"), "FSDP2 shards every parameter, DDP none"
    save_file(trainer.learner.weights(), out / f"rank-{workers.process_index}.safetensors")
    workers.end_training()


if __name__ == "__main__":
    torch.set_num_threads(1)
    pairs = (argument.partition("=") for argument in sys.argv[4:])
    work(
        Path(sys.argv[1]),
        sys.argv[2],
        sys.argv[3],
        **{key: ast.literal_eval(value) for key, _, value in pairs},
    )
