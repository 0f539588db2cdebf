"""Rollouts that other processes draw: workers whose adapters follow those that are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from twotemp.backends import Backend
from twotemp.backends.worker import ModelLoader
from twotemp.rl.checkpoint import trainable
from twotemp.rl.settings import GrpoSettings

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel


class RolloutBackend(Backend, Protocol):
    """A backend with copies of the trained model; `backends.pool.WorkerPool` is one."""

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite parameters of the network, by name; what is asked for afterwards is drawn with them."""
        ...


@dataclass(frozen=True)
class RolloutLoader(ModelLoader):
    """Loads a worker's copy of the model that `settings` train, with adapters in the base's dtype.

    The trained model is on the first GPU, so workers begin with the second.
    """

    settings: GrpoSettings = field(kw_only=True)

    def load(self, index: int) -> LanguageModel:
        """Return the untrained model of worker number `index`; the trained weights are assigned later."""
        model = super().load(index + 1)
        network = trainable(model, self.settings).eval()  # type: ignore[arg-type]
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(model.module.dtype)  # type: ignore[union-attr, arg-type]
        return model
