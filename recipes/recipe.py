"""A training run as data: the recipe and the code determine every weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from twotemp.errors import UserError, unknown
from twotemp.serialization import read_yaml, record
from twotemp.tasks import SOURCES

NOISES = ("mask", "uniform")


@dataclass(frozen=True)
class Recipe:
    """Architecture (in LLaDA's names), data, and schedule.

    `after` is the recipe whose trained weights this run starts from; in a YAML file it is the name of a file in the
    same folder. `model` is an embedded model to start from instead. The learning rate warms up linearly, stays, and
    falls linearly to 0 over the last `decay` steps.
    The first `next_token_steps` steps are next-token prediction with causal attention; the rest is diffusion, with
    masks or with random tokens.
    """

    name: str
    d_model: int
    n_layers: int
    n_heads: int
    mlp_hidden_size: int
    examples: Mapping[str, int]  # task -> number of examples; all are drawn equally often
    batch_tokens: int  # tokens of one step, prompts included
    steps: int
    decay: int
    warmup: int = 100
    next_token_steps: int = 0
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    noise: str = "mask"  # what hides a token: "mask", or "uniform" (a random token)
    least_time: float = 0.02  # see `objective.diffusion_loss`
    largest_weight: float = 10.0  # see `objective.diffusion_loss`
    seed: int = 0
    checkpoint_every: int = 200
    log_every: int = 20
    after: Recipe | None = None
    model: str | None = None
    compile: bool = False  # torch.compile: 1.7 times as fast on a CPU; needs a C++ compiler
    threads: int = 1  # CPU threads; their number changes the order of sums, and so the last bits

    def __post_init__(self) -> None:
        check_numbers(self)
        if not isinstance(self.compile, bool):
            raise UserError(f"recipe {self.name}: compile must be true or false, not {self.compile!r}")
        least = ("d_model", "n_layers", "n_heads", "mlp_hidden_size", "batch_tokens", "steps")
        for name in (*least, "decay", "warmup", "checkpoint_every", "log_every", "threads"):
            check_count(self.name, name, getattr(self, name))
        if self.d_model % self.n_heads or self.d_model // self.n_heads % 2:
            raise UserError(f"recipe {self.name}: d_model must be an even multiple of n_heads")
        if self.warmup + self.decay > self.steps or self.next_token_steps > self.steps:
            raise UserError(f"recipe {self.name}: warmup + decay, and next_token_steps, must fit into steps")
        shape = ("d_model", "n_layers", "n_heads", "mlp_hidden_size")
        if self.after is not None and not isinstance(self.after, Recipe):
            raise UserError(f"recipe {self.name}: after must name a recipe's file, not {self.after!r}")
        if self.after and any(getattr(self, name) != getattr(self.after, name) for name in shape):
            raise UserError(
                f"recipe {self.name}: {', '.join(shape)} must be those of {self.after.name}, its `after`"
            )
        if self.noise not in NOISES:
            raise unknown(f"noise of recipe {self.name}", self.noise, NOISES)
        if self.after and self.model:
            raise UserError(f"recipe {self.name}: a run starts from `after` or from `model`; leave one out")
        check_tasks(self.name, "examples", self.examples)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        shape = min(1.0, (step + 1) / self.warmup, (self.steps - step) / self.decay)
        return self.learning_rate * shape

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON data."""
        return asdict(self)

    def same_so_far(self, before: dict[str, Any], changed: Set[str], step: int) -> bool:
        """Tell whether all finished steps would have been the same with this recipe; later ones may change."""
        if not changed <= {"steps", "decay", "next_token_steps", "checkpoint_every", "log_every"}:
            return False
        switched = step > min(self.next_token_steps, before["next_token_steps"])
        if switched and self.next_token_steps != before["next_token_steps"]:
            return False
        return step <= min(self.steps - self.decay, int(before["steps"]) - int(before["decay"]))

    @classmethod
    def read(cls, path: Path, later: frozenset[Path] = frozenset()) -> Recipe:
        """Read a recipe from a YAML file, and those before it; `later` are the files that led to it.

        Unknown and missing keys are errors.
        """
        values, later = read_yaml(path, "recipe"), later | {path.resolve()}
        if isinstance(values.get("after"), str):
            before = path.parent / values["after"]
            if before.resolve() in later:
                raise UserError(f"{path}: `after` leads back to this recipe")
            values["after"] = cls.read(before, later)
        return record(cls, values, str(path))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use `count` threads inside the context; the number affects the last bits of the weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_numbers(recipe: Any) -> None:
    """Check every field that should be a number; YAML reads 1e-3 as a string, for example."""
    kinds: dict[object, tuple[str, Any]] = {"int": ("an integer", int), "float": ("a number", int | float)}
    for field in fields(recipe):
        value, (description, kind) = getattr(recipe, field.name), kinds.get(field.type, ("", None))
        if kind and (isinstance(value, bool) or not isinstance(value, kind) or value < 0):
            raise UserError(f"recipe {recipe.name}: {field.name} must be {description} >= 0, not {value!r}")


def check_count(recipe: str, name: str, value: Any) -> None:
    """Check that a value is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"recipe {recipe}: {name} must be an integer >= 1, not {value!r}")


def check_tasks(recipe: str, name: str, tasks: Mapping[str, Any]) -> None:
    """Check a field that maps tasks to counts."""
    if not tasks:
        raise UserError(f"recipe {recipe}: {name} must name at least one task")
    for task, count in tasks.items():
        if task not in SOURCES:
            raise unknown(f"task in recipe {recipe}", task, SOURCES)
        check_count(recipe, f"{name} of {task}", count)
