"""One worker of a training run, for torchrun: `rl_worker.py OUT ddp|fsdp BUDGET key=value ...`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from tests import rl_toys
from twotemp.rl.budget import Budget
from twotemp.rl.parallel import accelerator
from twotemp.rl.trainer import Trainer

if __name__ == "__main__":
    torch.set_num_threads(1)
    out, mode, budget = Path(sys.argv[1]), sys.argv[2], Budget.parse(sys.argv[3])
    changes = {key: ast.literal_eval(value) for key, _, value in (a.partition("=") for a in sys.argv[4:])}
    workers = accelerator(fsdp=mode == "fsdp", cpu=True)
    held_out = rl_toys.TASK.problems().problems[:5]
    trainer = Trainer(
        rl_toys.micro_model(),
        rl_toys.TASK,
        rl_toys.ManyNumbers(),
        rl_toys.settings(**changes),
        out,
        workers,
        None,
        held_out,
        {},
    )
    trainer.run(budget, None, lambda: False)
    sharded = any(isinstance(p, DTensor) for p in trainer.learner.network.parameters())
    assert sharded == (mode == "fsdp"), "FSDP2 shards every parameter, DDP none"
    save_file(trainer.learner.weights(), out / f"rank-{workers.process_index}.safetensors")
    workers.end_training()
