"""GRPO for masked diffusion LMs in TRL: rollouts by any policy, likelihoods by the estimators of `twotemp grpo`.

TRL keeps the reward functions, the data set, the loss, the optimizer, LoRA and the loggers. Two things are replaced:
how completions are drawn (`rollout_func`), and the log-probability of each of their tokens, which a masked diffusion
LM does not have in closed form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from math import log
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from twotemp.errors import UserError
from twotemp.likelihood import estimators
from twotemp.likelihood.queries import Completion, CompletionBatch, MaskedQueries, log_q
from twotemp.models.base import LanguageModel
from twotemp.policies import AnyPolicy
from twotemp.records import Sample, first_eos
from twotemp.sampling.api import sample
from twotemp.sampling.requests import prompt_ids, prompt_names

FIRST_VERSION, NEXT_VERSION = (
    "1.16",
    "1.17",
)  # a private method is overridden, which may change in any release
if not Version(FIRST_VERSION) <= Version(version("trl")) < Version(NEXT_VERSION):
    raise UserError(
        f"twotemp works with trl >= {FIRST_VERSION}, < {NEXT_VERSION}, and this is {version('trl')}; install it "
        f"with: pip install 'trl>={FIRST_VERSION},<{NEXT_VERSION}'"
    )

from trl import GRPOConfig, GRPOTrainer  # noqa: E402

ROW = "twotemp_row"  # a row's number among the rollouts; TRL shuffles it with the other tensors
CONFLICTS = {
    "use_vllm": False,
    "use_liger_kernel": False,
}  # options of GRPOConfig that would bypass this class
Prompts = Sequence[Any]  # texts, or lists of chat messages


class DiffusionGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer` for a model that `twotemp.load` returned. It trains the model in place.

    A rollout is the sample of `twotemp.sample` with the id `<hash of the prompt>@<generation>`. Rollouts are kept
    until the next generation, because likelihoods need their traces and the tokens that TRL does not keep.
    """

    def __init__(
        self,
        model: LanguageModel,
        *args: Any,
        policy: AnyPolicy | str = "tct",
        likelihood: str = "d1",
        draws: int = 1,
        block: int | None = None,
        micro_batch: int = 32,
        **keywords: Any,
    ) -> None:
        """Prepare the training.

        Args:
            model: From `twotemp.load`.
            *args: The arguments of `GRPOTrainer` after the model.
            policy: Draws the rollouts; as in `twotemp.sample`.
            likelihood: An estimator whose terms are about tokens: d1, ar, trajectory, coupled, elbo, ...
            draws: Random masks per completion.
            block: Width of the decoding blocks; None for the model's default.
            micro_batch: Rows of a forward pass of the likelihood.
            **keywords: Those of `GRPOTrainer`. The answer's length is `GRPOConfig.max_completion_length`.
        """
        if getattr(model, "module", None) is None:
            raise UserError(f"give a model that twotemp.load returned and that has weights, not {model!r}")
        config: GRPOConfig | None = keywords.get("args", args[1] if len(args) > 1 else None)
        for name, value in CONFLICTS.items():
            if getattr(config, name, value) != value:
                raise UserError(f"GRPOConfig({name}=...) does not work here; leave it out")
        if config is not None and config.beta and keywords.get("peft_config") is None:
            raise UserError("beta > 0 needs an untrained reference; give a peft_config, or set beta=0")
        if estimators.get(likelihood).by_block:
            raise UserError(
                f"likelihood {likelihood!r} scores whole steps, not tokens; use d1, ar, trajectory or coupled"
            )
        self._twotemp, self._policy, self._block = model, policy, block
        self._estimator, self._draws = estimators.get(likelihood), draws
        self._micro_batch = micro_batch
        self._rollouts: dict[bool, list[Sample]] = {}  # by whether they are for training
        self._row: Tensor | None = None
        self._generation = 0
        module: Any = model.module
        module.name_or_path = model.name
        keywords.setdefault("processing_class", model.tokenizer)
        super().__init__(
            module, *args, rollout_func=lambda prompts, trainer: trainer._roll_out(prompts), **keywords
        )
        _answer_queries(module, model)

    # Rollouts.

    def _roll_out(self, prompts: Prompts) -> dict[str, list[Any]]:
        """Draw as many samples of each prompt as it is repeated."""
        model, training = self._twotemp, self.model.training
        rank = self.accelerator.process_index
        place = f"@{self._generation}" + (f"/{rank}" if rank else "")
        self._generation += 1
        rows = [
            prompt_ids(model, prompt, chat=None if not isinstance(prompt, str) else False)
            for prompt in prompts
        ]
        counts = Counter(map(tuple, rows))
        module: Any = model.module
        drawn: dict[tuple[int, ...], list[Sample]] = {}
        module.eval()
        for n in sorted(set(counts.values())):
            repeated = [row for row, count in counts.items() if count == n]
            names = [name + place for name in prompt_names(repeated)]
            samples = sample(
                model,
                repeated,
                self._policy,
                n,
                self.args.max_completion_length,
                self._block,
                self.args.seed,
                ids=names,
                trace=True,
            )
            drawn |= {row: list(samples[i * n : (i + 1) * n]) for i, row in enumerate(repeated)}
        module.train(training)
        left = {row: iter(samples) for row, samples in drawn.items()}
        rollouts = self._rollouts[training] = [next(left[tuple(row)]) for row in rows]
        ends = [first_eos(rollout.tokens, model.eos_ids) + 1 for rollout in rollouts]
        return {
            "prompt_ids": [list(rollout.prompt) for rollout in rollouts],
            "completion_ids": [list(rollout.tokens[:end]) for rollout, end in zip(rollouts, ends)],
            "logprobs": [
                [log(c) for c in r.trace.confidence[:end]] for r, end in zip(rollouts, ends) if r.trace
            ],
            "nfe": [rollout.nfe for rollout in rollouts],
        }

    # Likelihoods.

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._row = None  # all rollouts, in their order
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        output[ROW] = torch.arange(len(inputs), device=self.accelerator.device)
        return output

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        self._row = inputs[ROW]
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **_: None,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Return log p and entropy of each token of the completions, [B, logits_to_keep], and no auxiliary loss.

        The entropy is that of the distribution which the token was drawn from.
        """
        rollouts = self._rollouts[self.model.training]
        numbers = range(len(rollouts)) if self._row is None else self._row.tolist()
        samples = [rollouts[number] for number in numbers]
        batch = CompletionBatch.for_model(list(map(Completion.from_sample, samples)), self._twotemp)
        queries = self._estimator(batch, range(self._draws))
        shape = batch.ids.shape
        terms = [self._terms(model, part) for part in queries.split(self._micro_batch)]
        where = queries.queried.nonzero()
        flat = queries.row[where[:, 0]] * shape[1] + where[:, 1]
        weight = queries.weight[where[:, 0]]
        logps = torch.zeros(shape.numel(), device=flat.device)
        logps = logps.index_add(0, flat, weight * torch.cat(terms)).view(shape)
        entropies = torch.zeros(shape, device=logps.device)
        for row, rollout in enumerate(samples):
            assert rollout.trace is not None
            entropies[row, list(rollout.positions)] = torch.tensor(rollout.trace.entropy, device=logps.device)
        return (
            self._align(logps, samples, logits_to_keep),
            self._align(entropies, samples, logits_to_keep),
            None,
        )

    def _terms(self, model: nn.Module, queries: MaskedQueries) -> Tensor:
        with self.accelerator.autocast():
            terms: Tensor = model(queries=queries)
            return terms

    @staticmethod
    def _align(values: Tensor, samples: Sequence[Sample], width: int) -> Tensor:
        """Return the columns of the completions, [B, width], from those of whole rows."""
        starts = torch.tensor([len(rollout.prompt) for rollout in samples], device=values.device)
        columns = starts[:, None] + torch.arange(width, device=values.device)
        inside = columns < values.shape[1]
        return values.gather(1, columns.clamp_max(values.shape[1] - 1)) * inside


def _answer_queries(module: Any, model: LanguageModel) -> None:
    """Let `module(queries=...)` return log q of the queried tokens, so that DDP and PEFT see every forward pass."""
    plain = module.forward
    forbidden = torch.tensor(model.forbidden_ids, dtype=torch.int64, device=model.device)

    def forward(*args: Any, queries: MaskedQueries | None = None, **keywords: Any) -> Any:
        if queries is None:
            return plain(*args, **keywords)
        return log_q(model.logits, queries, forbidden.to(queries.ids.device))

    module.forward = forward
