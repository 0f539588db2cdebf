"""Training on several workers: DDP by accelerate, or FSDP2, which shards the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from torch import Tensor, nn

from twotemp.errors import UserError, unknown

TRACKERS = ("tensorboard", "wandb")  # of accelerate; others are not offered


def accelerator(
    *, bf16: bool = False, cpu: bool = False, trackers: Sequence[Any] = (), folder: Path | None = None
) -> Accelerator:
    """Return the device and, under torchrun, the connection to the other workers.

    Args:
        bf16: Training passes in bfloat16.
        cpu: Do not use a GPU.
        trackers: Names in `TRACKERS`, or trackers of accelerate, that are sent the numbers of every step.
        folder: For the files of trackers.
    """
    for name in trackers:
        if isinstance(name, str) and name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if isinstance(name, str) and name not in map(str, get_available_trackers()):
            raise UserError(f"--track {name}: {name} is not installed; pip install {name}")
    precision = "bf16" if bf16 else "no"
    return Accelerator(
        mixed_precision=precision, cpu=cpu, log_with=list(trackers) or None, project_dir=folder
    )


def distribute(module: nn.Module, accelerator: Accelerator, *, fsdp: bool, layers: set[str]) -> Any:
    """Return the module to call: wrapped for DDP, or sharded in place for FSDP2.

    FSDP2 is not set up by accelerate's plugin, which silently does DDP instead on a CPU.

    Args:
        module: Holds the parameters.
        accelerator: The workers.
        fsdp: Shard the weights.
        layers: Class names of the layers that are sharded one by one; the rest is one shard.
    """
    if not fsdp:
        return accelerator.prepare_model(module)
    if accelerator.num_processes < 2:
        raise UserError(
            "--fsdp shards the weights over workers, and there is only one; start with torchrun, or leave --fsdp out"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for part in list(module.modules()):
        if type(part).__name__ in layers:
            fully_shard(part, mesh=mesh)
    return fully_shard(module, mesh=mesh)


@contextmanager
def _unsynchronized(module: Any) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def accumulating(module: Any) -> AbstractContextManager[Any]:
    """Return a context in which backward passes add to this worker's gradients only."""
    if _is_sharded(module):
        return _unsynchronized(module)
    return module.no_sync() if hasattr(module, "no_sync") else nullcontext()


@contextmanager
def gathered(module: Any) -> Iterator[None]:
    """Hold all weights on every worker within the context, so that forward passes need no other worker."""
    if not _is_sharded(module):
        yield
        return
    parts = [part for part in module.modules() if _is_sharded(part)]
    module.set_reshard_after_forward(False)
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not module, recurse=False)
        reshard(module)


def reshard(module: Any) -> None:
    """Shard again the parameters that FSDP2 leaves gathered after a forward pass without a backward pass."""
    for part in module.modules():
        if _is_sharded(part):
            part.reshard()


def _is_sharded(module: Any) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def global_max(accelerator: Accelerator, number: float) -> float:
    """Return the largest of the workers' numbers. Collective."""
    mine = torch.tensor([number], dtype=torch.float64, device=accelerator.device)
    return float(accelerator.gather(mine).max())


def unsharded(tensor: Tensor) -> Tensor:
    """Return the full tensor of which this worker may hold a shard. Collective."""
    from torch.distributed.tensor import DTensor

    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def assign(target: Tensor, value: Tensor) -> None:
    """Overwrite a parameter, or this worker's shard of it, with (its part of) a full tensor."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)
