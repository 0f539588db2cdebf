"""The settings of a run (with the model, problems and code they determine every weight), and its budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from twotemp.errors import UserError, unknown
from twotemp.policies import AnyPolicy, policy_from_dict
from twotemp.records import Policy, integer, number
from twotemp.serialization import read_yaml, record


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """Rollouts.

    Options of `twotemp grpo`; the first line is their title in --help.
    """

    groups: Annotated[int, "Problems per step, over all workers."] = 16
    size: Annotated[int, "Samples per problem."] = 8
    block: Annotated[int | None, "Block width (default 32, or the model's)."] = None
    batch_size: Annotated[int, "Rows decoded together on a worker."] = 128
    format_weight: Annotated[float, "Reward for any answer the grader can find, right or wrong."] = 0.0
    prompt_tokens: Annotated[int | None, "Cut prompts to their last tokens (default: keep all)."] = None
    cache: Annotated[str | None, "prefix or dual: faster rollouts, approximate."] = None
    resample: Annotated[
        int, "Replace groups without a signal by other problems, up to this many times per step (DAPO)."
    ] = 0
    tokens_per_forward: Annotated[
        float | None, "Keep this many tokens per forward pass by adjusting lambda (ct, tct)."
    ] = None


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """Learning from the rollouts.

    Options of `twotemp grpo` as well: likelihood, objective, optimizer and adapters.
    """

    likelihood: Annotated[
        str,
        "d1, trajectory, deferral, order, fork, ar, elbo, stratified, coupled, quadrature, pll or thirds.",
    ] = "trajectory"
    merge_steps: Annotated[
        int, "Steps of a rollout that `trajectory` treats as one: fewer passes, with a bias."
    ] = 1
    draws: Annotated[int, "Masks per row and update, for d1, elbo, stratified, coupled and quadrature."] = 1
    iterations: Annotated[int, "Updates on the same rollouts (mu), each with new masks."] = 1
    micro_batch: Annotated[int, "Partly masked rows in one training pass; gradients are summed."] = 1024
    objective: Annotated[str, "grpo, sequence, stable, wd1 or spg."] = "grpo"
    epsilon: Annotated[float, "Clip of the probability ratio."] = 0.5
    epsilon_high: Annotated[float | None, "Clip of ratios above 1 (default: as --epsilon; DAPO)."] = None
    beta: Annotated[float, "Weight of the KL to the untrained model."] = 0.0
    scale_advantage: Annotated[bool, "Divide advantages by the group's standard deviation."] = False
    learn: Annotated[
        str, "Also learn these parameters of the policy (needs --likelihood order): t_pos,threshold,t_token."
    ] = ""
    policy_learning_rate: Annotated[
        float, "Adam's learning rate for the parameters of --learn, on a log or logit scale."
    ] = 0.02
    learning_rate: Annotated[float, "AdamW's learning rate for the weights; constant after the warm-up."] = (
        5e-4
    )
    warmup: Annotated[int, "Updates over which the learning rate rises to its value."] = 0
    weight_decay: Annotated[float, "Of AdamW."] = 0.0
    max_grad_norm: Annotated[float, "Clip the gradient to this norm."] = 1.0
    lora_rank: Annotated[int, "Rank of the LoRA adapters; 0 trains all weights."] = 32
    lora_alpha: Annotated[int, "Scale of the adapters times their rank."] = 64
    lora_dropout: Annotated[float, "Dropout before the adapters, in updates only."] = 0.0
    lora_targets: Annotated[
        str, "Linear layers with an adapter: all-linear, or names such as q_proj,v_proj."
    ] = "all-linear"
    bf16: Annotated[bool, "Training passes in bfloat16 (autocast)."] = False
    gradient_checkpointing: Annotated[bool, "Less memory, more time."] = False
    fsdp: Annotated[bool, "Shard the weights over workers (FSDP2)."] = False
    save_every: Annotated[int, "Steps between checkpoints."] = 20


@dataclass(frozen=True)
class GrpoSettings(RolloutSettings, LearningSettings):
    """Rollouts, likelihood, objective and optimizer. The defaults suit the embedded model; see `RECIPES`.

    The fields of the two parts are options of `twotemp grpo`; their annotations are its help.
    """

    policy: AnyPolicy
    length: int  # tokens of a completion
    seed: int = 0

    def __post_init__(self) -> None:
        from twotemp.likelihood import estimators
        from twotemp.rl import objective

        estimator = estimators.get(self.likelihood)
        for policy in self.policy.components:
            estimator.check(policy)
            if policy.repel:
                raise UserError(
                    f"policy {policy.name} has repel={policy.repel:g}: its samples are not drawn from the "
                    "model's own predictions, which GRPO's likelihoods assume; set repel=0"
                )
        least = {"size": 2, "lora_rank": 0, "warmup": 0, "resample": 0}
        whole = "length groups size batch_size draws iterations merge_steps micro_batch save_every lora_rank".split()
        optional = (name for name in ("block", "prompt_tokens") if getattr(self, name) is not None)
        for name in (*whole, "lora_alpha", "warmup", "resample", *optional):
            integer(name, getattr(self, name), least.get(name, 1))
        if self.merge_steps > 1 and not estimator.merges:
            raise UserError(
                f"merge_steps works with --likelihood trajectory only, not with {self.likelihood}; set it to 1"
            )
        for name in ("epsilon", "policy_learning_rate", "learning_rate", "max_grad_norm"):
            number(name, getattr(self, name), "(0, inf)")
        if self.learn:
            self._check_learned()
        if self.epsilon_high is not None:
            number("epsilon_high", self.epsilon_high, "(0, inf)")
        if not objective.get(self.objective).kl and self.beta:
            raise UserError(f"the objective {self.objective} has no KL; set beta=0, or use grpo or sequence")
        for name in ("beta", "format_weight", "weight_decay"):
            number(name, getattr(self, name), "[0, inf)")
        number("lora_dropout", self.lora_dropout, "[0, 1)")
        if self.tokens_per_forward is not None:
            number("tokens_per_forward", self.tokens_per_forward, "[1, inf)")
            if not isinstance(self.policy, Policy) or self.policy.rule != "threshold":
                raise UserError(
                    f"tokens_per_forward adjusts lambda, which policy {self.policy.name!r} does not "
                    "have; use ct or tct, or leave it out"
                )
        if all(policy.t_token == 0 and policy.t_pos == 0 for policy in self.policy.components):
            raise UserError(
                f"policy {self.policy.name!r} with t_token=0 and t_pos=0 draws every sample of a group the same, "
                "so there is nothing to learn from; raise one of them"
            )

    @property
    def learned(self) -> tuple[str, ...]:
        """The policy's parameters that are learned."""
        return tuple(self.learn.split(",")) if self.learn else ()

    def _check_learned(self) -> None:
        from twotemp.rl.knobs import SCALES, learnable

        for name in self.learned:
            if name not in SCALES:
                raise unknown("parameter to learn", name, SCALES)
            if name not in learnable(self.policy.for_sample(0)):
                value = getattr(self.policy.for_sample(0), name)
                raise UserError(
                    f"{name} of policy {self.policy.name!r} cannot be learned from {value:g}; start between "
                    f"{SCALES[name].least:g} and {SCALES[name].most:g}, with a policy that has it"
                    f"{' and t_pos above 0' if name == 'threshold' else ''}"
                )
        if self.likelihood != "order":
            raise UserError(
                "learn needs --likelihood order, the only one that is differentiable in these parameters"
            )
        if not isinstance(self.policy, Policy):
            raise UserError("learn works with a single policy, not with a portfolio; give one policy")
        if "threshold" in self.learned and self.tokens_per_forward is not None:
            raise UserError("learn and tokens_per_forward both change threshold; leave one of them out")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return {**vars(self), "policy": self.policy.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GrpoSettings:
        """Return the settings that `to_dict` wrote."""
        values = {**data, "policy": policy_from_dict(data["policy"])}
        if "learn_rate" in values:  # what `policy_learning_rate` was called
            values["policy_learning_rate"] = values.pop("learn_rate")
        return record(cls, values, "the settings")


# Settings by name; what is not here is the default. d1's are those of its training script for LLaDA-8B; its warm-up
# is 1e-4 of a run of 10 epochs of GSM8K, which are 112,000 updates.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "d1": {
        "groups": 8,
        "size": 6,
        "likelihood": "d1",
        "iterations": 12,
        "micro_batch": 4,
        "beta": 0.04,
        "learning_rate": 3e-6,
        "warmup": 12,
        "weight_decay": 0.1,
        "max_grad_norm": 0.2,
        "lora_rank": 128,
        "lora_alpha": 64,
        "lora_dropout": 0.05,
        "bf16": True,
        "gradient_checkpointing": True,
    },
}
LARGE = 1_000_000_000  # parameters; from here on the default recipe is d1


def read_recipe(name: str) -> dict[str, Any]:
    """Return the options of a recipe, by their names in Python, from `RECIPES` or from a YAML file.

    A file may have a `title`, and a `base`: another recipe, by name or by its path from the file, whose options it
    changes.
    """
    if name in RECIPES:
        return dict(RECIPES[name])
    if not name.endswith((".yaml", ".yml")):
        raise unknown("recipe", name, (*RECIPES, "a YAML file"))
    return _read_file(Path(name), ())


def _read_file(path: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in before:
        raise UserError(f"{path} is its own base; remove a `base:` line")
    entries = read_yaml(path, "recipe")
    entries.pop("title", None)
    base = entries.pop("base", None)
    options = {str(key).replace("-", "_"): value for key, value in entries.items()}
    if base is None or base in RECIPES:
        return {**(RECIPES[base] if base else {}), **options}
    return {**_read_file(path.parent / str(base), (*before, path.resolve())), **options}


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(steps?|nfe|[smhd])", re.IGNORECASE)
_EXAMPLES = "write for example 10m, 1h30m, 200steps, 1000000nfe, or several with commas: 2h,500steps"


@dataclass(frozen=True)
class Budget:
    """Limits of a run: no step starts once one of them is reached. None means no limit."""

    seconds: float | None = None  # of training; evaluations do not count
    nfe: int | None = None  # of rollouts, in the paper's accounting, summed over rows
    steps: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.seconds, self.nfe, self.steps) if limit is not None]
        if not limits:
            raise UserError(f"a budget needs at least one limit; {_EXAMPLES}")
        if any(limit <= 0 for limit in limits):
            raise UserError(f"an empty budget allows no step; {_EXAMPLES}")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget of a text such as `10m`, `1h30m` or `2h,500steps`."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            added: dict[str, float] = {}
            pieces = _PART.findall(part)
            if not pieces or _PART.sub("", part).strip():
                raise UserError(f"cannot read the budget {text!r}: {_EXAMPLES}")
            for amount, unit in pieces:
                unit = unit.lower()
                kind = "steps" if unit.startswith("step") else "nfe" if unit == "nfe" else "seconds"
                if kind != "seconds" and "." in amount:
                    raise UserError(f"the budget {text!r}: {kind} must be a whole number")
                if kind in limits or (kind in added and kind != "seconds"):
                    raise UserError(f"the budget {text!r} limits {kind} twice; {_EXAMPLES}")
                added[kind] = added.get(kind, 0.0) + float(amount) * _SECONDS.get(unit, 1)
            limits |= added
        return cls(
            seconds=limits.get("seconds"),
            nfe=int(limits["nfe"]) if "nfe" in limits else None,
            steps=int(limits["steps"]) if "steps" in limits else None,
        )

    def check(self, rows_per_step: int) -> None:
        """Raise an error if even the first step would exceed the budget."""
        if self.nfe is not None and self.nfe < rows_per_step:
            raise UserError(
                f"a budget of {self.nfe} NFE is impossible: a step draws {rows_per_step} samples, each of at "
                f"least 1 NFE; raise it or lower the number or size of the groups"
            )

    def used(self, seconds: float, nfe: int, steps: int) -> float:
        """Return the share of the budget that is used up: 1 or more means stop."""
        pairs = ((seconds, self.seconds), (nfe, self.nfe), (steps, self.steps))
        return max(spent / limit for spent, limit in pairs if limit is not None)

    def __str__(self) -> str:
        named = ((self.seconds, "s"), (self.nfe, "nfe"), (self.steps, "steps"))
        return ",".join(f"{limit:g}{unit}" for limit, unit in named if limit is not None)
