"""The weights being trained: adapters or all, their optimizer, and one update from one step's rollouts.

accelerate gives the device, DDP and mixed precision, `parallel` FSDP2. The loss is divided by the token count of the
*global* batch, so an update does not depend on the number of workers or on how the batch is cut.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from twotemp.engine.rows import DEFAULT_BLOCK
from twotemp.errors import UserError
from twotemp.models.transformer import Transformer
from twotemp.records import Sample
from twotemp.rl.likelihood import Completions, Questions, estimator, idle, log_probs
from twotemp.rl.objective import advantages, grpo_loss
from twotemp.rl.parallel import accumulating, assign, distribute, gathered, most, reshard, whole
from twotemp.rl.rollouts import Rollouts
from twotemp.rl.settings import GrpoSettings

ADAM_BETAS = (0.9, 0.99)  # d1's


@dataclass(frozen=True)
class Update:
    """What an update did; means over the tokens of the global batch and the inner iterations."""

    loss: float = 0.0
    kl: float | None = None  # measured only where it is part of the loss
    clipped: float = 0.0
    grad_norm: float = 0.0


class NotANumber(UserError):
    """The loss or its gradient is not finite. Both are sums over all workers, so every worker raises it."""


class Scorer(nn.Module):
    """The network as a module that answers questions, so that DDP and FSDP2 see every forward pass."""

    def __init__(self, model: Transformer, network: nn.Module) -> None:
        super().__init__()
        self.network = network  # holds the parameters; `model.logits` runs them
        self._ask = (model.logits, torch.tensor(model.forbidden_ids, device=model.device))

    def forward(self, questions: Questions) -> Tensor:
        logits, forbidden = self._ask
        return log_probs(logits, questions, forbidden)


class Learner:
    def __init__(self, model: Transformer, settings: GrpoSettings, accelerator: Accelerator) -> None:
        if model.module is None:
            raise UserError(f"{model.name!r} has no weights to train; use a checkpoint")
        self.model = model
        self.settings = settings
        self.accelerator = accelerator
        self.peft = _adapted(model, settings)
        self.reference = _frozen_copy(model) if settings.beta and not self.peft else None
        if settings.gradient_checkpointing:
            model.module.gradient_checkpointing_enable({"use_reentrant": False})
        model.module.config.use_cache = False
        self.network = self.peft or model.module
        layers = set(model.module._no_split_modules or ())
        self.scorer = distribute(Scorer(model, self.network), accelerator, fsdp=settings.fsdp, layers=layers)
        if self.reference is not None and settings.fsdp:
            self.reference = distribute(self.reference, accelerator, fsdp=True, layers=layers)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, settings.learning_rate, betas=ADAM_BETAS, weight_decay=0.0
        )
        if settings.fsdp:  # FSDP2 takes the first module that runs for the root; sampling runs only parts
            self._frozen([idle(model.mask_id, accelerator.device)])
        # Between an update and the counters that name its step (the trainer's): the weights belong to no step then.
        self.midway = False

    # Sampling from the weights as they are now.

    @contextmanager
    def sampling(self) -> Iterator[Transformer]:
        """The model for the engine; FSDP2's shards are gathered meanwhile, as workers take unequal steps."""
        self.network.eval()
        with gathered(self.scorer):
            yield self.model

    # Learning.

    def update(self, rollouts: Rollouts) -> Update:
        """mu optimizer steps of GRPO on these rollouts; none where no worker has anything to learn from."""
        settings = self.settings
        advantage = advantages(rollouts.rewards, scale=settings.scale_advantage).flatten()
        if not self._sum(float(advantage.count_nonzero())):
            return Update()
        graded = ~rollouts.rewards.flatten().isnan()
        tokens = self._tokens(_where(graded, rollouts.samples))
        # A row without advantage still has a KL; without that it adds nothing, and leaving it out saves its time.
        used = graded if settings.beta else advantage != 0
        advantage = advantage[used].to(self.accelerator.device)
        rows = self._completions(_where(used, rollouts.samples))
        self.network.train()
        # Old and reference log-probabilities of every iteration's questions, before the first update.
        batches = [self._micro_batches(rows, draw) for draw in range(settings.iterations)]
        old = [self._frozen(batch) if draw else None for draw, batch in enumerate(batches)]
        reference = [self._reference(batch) if settings.beta else None for batch in batches]
        # One step cannot fail halfway for a reason of its own; the second may, after the first.
        before = self._snapshot() if settings.iterations > 1 else None
        try:
            done = [
                self._iteration(batch, advantage, tokens, previous, anchor)
                for batch, previous, anchor in zip(batches, old, reference)
            ]
        except BaseException:
            if before is not None:
                self._undo(before)
            raise
        loss, kl, clipped, grad_norm = torch.tensor(done).mean(0).tolist()
        return Update(loss, kl if settings.beta else None, clipped, grad_norm)

    def _iteration(
        self,
        batch: list[Questions],
        advantage: Tensor,
        tokens: float,
        old: list[Tensor] | None,
        reference: list[Tensor] | None,
    ) -> tuple[float, float, float, float]:
        settings, accelerator = self.settings, self.accelerator
        self.optimizer.zero_grad()
        sums = torch.zeros(3, device=accelerator.device)
        for number, questions in enumerate(batch):
            last = number == len(batch) - 1
            with nullcontext() if last else accumulating(self.scorer):
                new = self._answers(self.scorer, questions)
                row, weight = questions.terms()
                loss = grpo_loss(
                    new,
                    new.detach() if old is None else old[number],
                    reference[number] if reference is not None else None,
                    advantage[row] if len(advantage) else torch.zeros_like(new),
                    weight,
                    epsilon=settings.epsilon,
                    beta=settings.beta,
                )
                # Workers' gradients are averaged, and the sum is wanted.
                (loss.total * accelerator.num_processes / tokens).backward()
                sums += torch.stack([loss.total.detach(), loss.kl, loss.clipped])
        total, kl, clipped = (accelerator.reduce(sums, "sum") / tokens).tolist()
        norm = accelerator.clip_grad_norm_(self.scorer.parameters(), settings.max_grad_norm)
        size = float(whole(norm))
        if not torch.isfinite(torch.tensor([total, size])).all():
            raise NotANumber(
                f"the loss is {total} and its gradient {size}: not a number. Every finished step is kept; the same "
                "command with a lower --learning-rate or --max-grad-norm, or without --bf16, continues after them"
            )
        self.midway = True
        self.optimizer.step()
        return total, kl, clipped, size

    def _micro_batches(self, rows: Completions | None, draw: int) -> list[Questions]:
        """The questions of one inner iteration, in as many parts on every worker."""
        settings, mask_id = self.settings, self.model.mask_id
        parts: list[Questions] = []
        if rows is not None:
            asked = estimator(settings.likelihood)(rows, mask_id, draw, settings.draws)
            size = settings.micro_batch
            parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        missing = int(most(self.accelerator, len(parts))) - len(parts)
        return parts + [idle(mask_id, self.accelerator.device)] * missing

    def _answers(self, scorer: nn.Module, questions: Questions) -> Tensor:
        with self.accelerator.autocast():
            answers: Tensor = scorer(questions)
            return answers

    @torch.no_grad()
    def _frozen(self, batch: list[Questions]) -> list[Tensor]:
        return [self._answers(self.scorer, questions) for questions in batch]

    @torch.no_grad()
    def _reference(self, batch: list[Questions]) -> list[Tensor]:
        """log q of the model as it was before training: the adapters off, or the frozen copy."""
        if self.reference is not None:
            return [self._answers(self.reference, questions) for questions in batch]
        assert self.peft is not None
        with self.peft.disable_adapter():
            return self._frozen(batch)

    def _completions(self, samples: list[Sample]) -> Completions | None:
        if not samples:
            return None
        grid = self.model.block_size
        return Completions.of(
            samples,
            self.model.eos_ids,
            self.accelerator.device,
            block=grid or self.settings.block or DEFAULT_BLOCK,
            origin=0 if grid else None,
        )

    def _tokens(self, samples: list[Sample]) -> float:
        rows = self._completions(samples)
        return max(1.0, self._sum(float(rows.scored.sum()) if rows is not None else 0.0))

    def _sum(self, number: float) -> float:
        return float(self.accelerator.reduce(torch.tensor(number, device=self.accelerator.device), "sum"))

    def _snapshot(self) -> dict[nn.Parameter, tuple[Tensor, dict[str, Tensor]]]:
        """Copies of what an optimizer step changes: each parameter (or this worker's shard) and its moments."""
        state = self.optimizer.state
        return {
            p: (p.detach().clone(), {field: value.clone() for field, value in state.get(p, {}).items()})
            for p in self._trained().values()
        }

    @torch.no_grad()
    def _undo(self, before: dict[nn.Parameter, tuple[Tensor, dict[str, Tensor]]]) -> None:
        reshard(self.scorer)
        for parameter, (value, moments) in before.items():
            parameter.copy_(value)
            self.optimizer.state[parameter] = moments
        self.midway = False

    # What a checkpoint holds. Collective: every worker takes part.

    def _trained(self) -> dict[str, nn.Parameter]:
        """The parameters the optimizer knows, by name."""
        reshard(self.scorer)
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def weights(self) -> dict[str, Tensor]:
        """The trained parameters by name, whole and on the CPU."""
        return {name: whole(p).cpu() for name, p in self._trained().items()}

    def moments(self) -> dict[str, Tensor]:
        """AdamW's state: `<parameter>/<field>`."""
        state = self.optimizer.state
        return {
            f"{name}/{field}": whole(value).cpu()
            for name, p in self._trained().items()
            for field, value in state.get(p, {}).items()
        }

    def restore(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        parameters = self._trained()
        if parameters.keys() != weights.keys():
            odd = sorted(parameters.keys() ^ weights.keys())[0]
            raise UserError(f"the checkpoint is of another model or adapter: {odd} is only in one of them")
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


def _where(chosen: Tensor, samples: Sequence[Sample]) -> list[Sample]:
    return [samples[place] for place in chosen.nonzero()[:, 0].tolist()]


def _adapted(model: Transformer, settings: GrpoSettings) -> Any | None:
    """LoRA layers put into the model's network, in place; None for full fine-tuning."""
    if not settings.lora_rank:
        model.module.requires_grad_(True)
        return None
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UserError(
            "LoRA needs peft: pip install 'twotemp[train]' (or lora_rank=0 for all weights)"
        ) from None
    config = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules="all-linear")
    model.module.name_or_path = model.name  # what the saved adapter names as its base
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)  # the adapters' initial values; every worker the same
        return get_peft_model(model.module, config)


def _frozen_copy(model: Transformer) -> Scorer:
    twin = copy.copy(model)
    twin.module = copy.deepcopy(model.module).requires_grad_(False)
    return Scorer(twin, twin.module)
