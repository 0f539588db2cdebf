"""The weights being trained (adapters or all) and their optimizer: sampling from them, log q, and checkpoints.

accelerate gives the device, DDP and mixed precision, `parallel` FSDP2.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.likelihood.queries import MaskedQueries, empty_query, log_q
from twotemp.models.base import refuse_without_mask
from twotemp.models.quantization import is_quantized
from twotemp.models.transformer import Transformer
from twotemp.rl.checkpoint import ADAPTER_NAME, PREFIX, published_adapter, trainable
from twotemp.rl.parallel import assign, distribute, gathered, reshard, unsharded
from twotemp.rl.settings import GrpoSettings

ADAM_BETAS = (0.9, 0.99)  # d1's


class Scorer(nn.Module):
    """A module that maps queries to log q, so that DDP and FSDP2 see every forward pass of the network."""

    def __init__(self, model: Transformer, network: nn.Module) -> None:
        super().__init__()
        self.network = network  # holds the parameters; `model.logits` runs them
        self._model = (model.logits, torch.tensor(model.forbidden_ids, device=model.device))

    def forward(self, queries: MaskedQueries) -> Tensor:
        """Return log q of every queried token."""
        logits, forbidden = self._model
        return log_q(logits, queries, forbidden)


class TrainedWeights:
    """The weights being trained, inside the model, on one worker or several."""

    def __init__(self, model: Transformer, settings: GrpoSettings, accelerator: Accelerator) -> None:
        if model.module is None:
            raise UserError(f"{model.name!r} has no weights to train; use a checkpoint")
        refuse_without_mask(model, "GRPO")
        self.model = model
        self.settings = settings
        self.accelerator = accelerator
        if not settings.lora_rank and model.module.dtype.itemsize < 4:
            raise UserError(
                f"the weights of {model.name!r} are in half precision, where most updates are rounded away; train "
                "adapters (--lora-rank 128), or a checkpoint that is stored in float32"
            )
        if not settings.lora_rank and is_quantized(model.module):
            raise UserError("quantized weights cannot be trained; train adapters instead (--lora-rank 128)")
        if settings.fsdp and is_quantized(model.module):
            raise UserError("FSDP2 does not shard quantized weights; leave --fsdp or --quantize out")
        self.network = trainable(model, settings)
        self.peft = self.network if settings.lora_rank else None
        self.reference = _frozen_copy(model) if settings.beta and not self.peft else None
        if settings.gradient_checkpointing:
            model.module.gradient_checkpointing_enable({"use_reentrant": False})
        model.module.config.use_cache = False
        layers = set(model.module._no_split_modules or ())
        self.scorer = distribute(Scorer(model, self.network), accelerator, fsdp=settings.fsdp, layers=layers)
        if self.reference is not None and settings.fsdp:
            self.reference = distribute(self.reference, accelerator, fsdp=True, layers=layers)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, settings.learning_rate, betas=ADAM_BETAS, weight_decay=settings.weight_decay
        )
        if settings.fsdp:  # FSDP2 takes the first module that runs for the root; sampling runs only parts
            self._without_gradient([empty_query(model.mask_id, accelerator.device)])

    # Sampling from the current weights.

    @contextmanager
    def sampling(self) -> Iterator[Transformer]:
        """Yield the model for the engine. Meanwhile FSDP2's shards are gathered, because workers take unequal steps.

        Adapters are cast to the base's dtype, because float32 matrix products would take most of the time on a GPU.
        FSDP2 owns the storage of its parameters, so there they stay in float32.
        """
        self.network.eval()
        with gathered(self.scorer), nullcontext() if self.settings.fsdp else self._adapters_in_base_dtype():
            yield self.model

    def sampling_weights(self) -> dict[str, Tensor]:
        """Return the trained parameters for copies of the model: by the network's names, in its dtype."""
        dtype = self.model.module.dtype
        return {name.removeprefix(PREFIX): tensor.to(dtype) for name, tensor in self.weights().items()}

    @contextmanager
    def _adapters_in_base_dtype(self) -> Iterator[None]:
        trained = list(self._trained().values())
        values, dtype = [parameter.data for parameter in trained], self.model.module.dtype
        for parameter in trained:
            parameter.data = parameter.data.to(dtype)
        try:
            yield
        finally:
            for parameter, value in zip(trained, values):
                parameter.data = value

    # Log q under the current weights.

    def _log_q(self, scorer: nn.Module, queries: MaskedQueries) -> Tensor:
        with self.accelerator.autocast():
            terms: Tensor = scorer(queries)
            return terms

    @torch.no_grad()
    def _without_gradient(self, batch: list[MaskedQueries]) -> list[Tensor]:
        """Return log q under the current weights."""
        return [self._log_q(self.scorer, queries) for queries in batch]

    @torch.no_grad()
    def _reference(self, batch: list[MaskedQueries]) -> list[Tensor]:
        """Return log q under the weights before training: adapters off, or the frozen copy."""
        if self.reference is not None:
            return [self._log_q(self.reference, queries) for queries in batch]
        assert self.peft is not None
        with self.peft.disable_adapter():
            return self._without_gradient(batch)

    def _updates(self) -> int:
        """Return how many updates the weights went through, including those before a restart."""
        return max(
            (int(state["step"]) for state in self.optimizer.state.values() if "step" in state), default=0
        )

    # What an update that fails undoes.

    def _snapshot(self) -> dict[nn.Parameter, tuple[Tensor, dict[str, Tensor]]]:
        """Return copies of what an optimizer step changes: each parameter (or shard of it) and its moments."""
        state = self.optimizer.state
        return {
            p: (p.detach().clone(), {field: value.clone() for field, value in state.get(p, {}).items()})
            for p in self._trained().values()
        }

    @torch.no_grad()
    def _restore_snapshot(self, snapshot: dict[nn.Parameter, tuple[Tensor, dict[str, Tensor]]]) -> None:
        reshard(self.scorer)
        for parameter, (value, moments) in snapshot.items():
            parameter.copy_(value)
            self.optimizer.state[parameter] = moments

    # The contents of a checkpoint. Collective: every worker takes part.

    def _trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimizer changes, by name."""
        reshard(self.scorer)
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def weights(self) -> dict[str, Tensor]:
        """Return the trained parameters by name, whole and on the CPU."""
        return {name: unsharded(p).cpu() for name, p in self._trained().items()}

    def adapter(self, weights: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]] | None:
        """Return `published_adapter` of these weights; None where all weights are trained."""
        if self.peft is None:
            return None
        return published_adapter(self.model, self.peft.peft_config[ADAPTER_NAME], weights)

    def moments(self) -> dict[str, Tensor]:
        """Return AdamW's state: `<parameter>/<field>`."""
        state = self.optimizer.state
        return {
            f"{name}/{field}": unsharded(value).cpu()
            for name, p in self._trained().items()
            for field, value in state.get(p, {}).items()
        }

    def restore(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """Continue from what `weights` and `moments` returned."""
        parameters = self._trained()
        if parameters.keys() != weights.keys():
            name = sorted(parameters.keys() ^ weights.keys())[0]
            raise UserError(
                f"the checkpoint is of another model or adapter: {name} is only in one of them; give the model that "
                "the run was started with, or another --out"
            )
        with torch.no_grad():
            for name, tensor in weights.items():
                assign(parameters[name], tensor)
        state = self.optimizer.state
        for key, tensor in moments.items():
            name, _, field = key.rpartition("/")
            parameter = parameters[name]
            if field == "step":
                state[parameter][field] = tensor
            else:
                state[parameter][field] = torch.zeros_like(parameter)
                assign(state[parameter][field], tensor)


def _frozen_copy(model: Transformer) -> Scorer:
    """Return the untrained model, for the KL."""
    twin = copy.copy(model)
    twin.module = copy.deepcopy(model.module).requires_grad_(False)
    return Scorer(twin, twin.module)
