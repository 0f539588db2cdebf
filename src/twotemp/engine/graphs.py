"""Replaying a forward pass of one shape: its kernels are recorded once, and started together afterwards.

CUDA has graphs for this. They are behind an interface, so that tests record on a CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

log = logging.getLogger("twotemp")
_WARM_UPS = 3  # passes before recording, in which libraries choose and load their kernels


class Graphs(Protocol):
    """Records what a device is asked to do."""

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Return a function that replays the kernels of `run` in place, and the tensor that gets the result."""


class CudaGraphs:
    """CUDA's graphs. This has not been run yet: the project has no GPU."""

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `Graphs.capture`."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run()
        return graph.replay, result


class ReplayedForward:
    """A function of tensors whose shapes never change: recorded at its first call, replayed from then on.

    If it cannot be recorded, for instance because a layer waits for the device, it is called as it is.
    """

    def __init__(self, function: Callable[..., Tensor], graphs: Graphs) -> None:
        self._function, self._graphs = function, graphs
        self._inputs: tuple[Tensor, ...] = ()
        self._recorded: tuple[Callable[[], None], Tensor] | None = None
        self._failed = False

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the function's value, in memory that the next call overwrites."""
        if self._recorded is None and not self._failed:
            self._record(inputs)
        if self._recorded is None:
            return self._function(*inputs)
        for own, given in zip(self._inputs, inputs):
            own.copy_(given)
        replay, result = self._recorded
        replay()
        return result

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        try:
            self._recorded = self._graphs.capture(lambda: self._function(*self._inputs))
        except RuntimeError as error:
            self._failed, self._inputs = True, ()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            log.warning("the forward pass cannot be recorded (%s); continuing without CUDA graphs", reason)
