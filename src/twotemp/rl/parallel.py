"""The little that sharded parameters (FSDP2) need beyond accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn


def accelerator(*, fsdp: bool = False, bf16: bool = False, cpu: bool = False) -> Accelerator:
    """DDP under torchrun with several workers, FSDP2 where asked, one process else."""
    plugin: Any = None
    if fsdp:
        from accelerate import FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    return Accelerator(mixed_precision="bf16" if bf16 else "no", cpu=cpu, fsdp_plugin=plugin)


def shard(accelerator: Accelerator, module: nn.Module) -> None:
    """Shard a network that is not trained; `Accelerator.prepare` insists on an optimizer."""
    from accelerate.utils import fsdp2_prepare_model

    fsdp2_prepare_model(accelerator, module)


@contextmanager
def gathered(root: Any) -> Iterator[None]:
    """Every worker holds all weights, so that forward passes outside of `root` need no other worker."""
    from torch.distributed.fsdp import FSDPModule

    parts = [module for module in root.modules() if isinstance(module, FSDPModule)]
    root.set_reshard_after_forward(False)
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not root, recurse=False)
            part.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of which this worker may hold a shard. Collective."""
    from torch.distributed.tensor import DTensor

    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def assign(target: Tensor, value: Tensor) -> None:
    """Overwrite a parameter, or this worker's shard of it, with (its part of) a full tensor."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)
