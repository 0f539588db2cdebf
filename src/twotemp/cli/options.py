"""Options that several subcommands share, each defined once: single options, and groups of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import twotemp
from twotemp.cli.console import say_cache
from twotemp.errors import UserError, unknown
from twotemp.evaluation import Plan, TaskChoice
from twotemp.evaluation.plan import policies_in
from twotemp.policies import AnyPolicy, parse_portfolio
from twotemp.store import Store

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel

Out = Annotated[Path, "The run's folder; an existing run is continued."]
Model = Annotated[str, "`tiny`, a checkpoint folder, or a hub id."]
Questions = Annotated[
    int | None, typer.Option(min=1, help="Use only the first N questions of each task (default: all).")
]
Cache = Annotated[str | None, "prefix or dual: faster, approximate."]
Traced = Annotated[bool, "Record when each position was committed."]
Profile = Annotated[bool, "Print where the time went."]
Altered = Annotated[
    bool,
    typer.Option("--allow-altered-data", help="Accept a --data file that differs from the published one."),
]
DataFiles = Annotated[list[str] | None, typer.Option("--data", help="Local data files: TASK=FILE.")]
Graders = Annotated[
    list[str] | None, "Which grader's verdicts to use; TASK=NAME for one task. May be repeated."
]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout, one object per line.")]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Use the model's chat format (default: if it has one)."),
]
Block = Annotated[int | None, typer.Option(min=1, help="Block width (default: 32, or the model's).")]
Seed = Annotated[int, "The seed of all randomness."]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Rows decoded together (default: as many as fit, at most 64).")
]


@dataclass(frozen=True)
class DecodingOptions:
    """Decoding the answers."""

    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer (default: the task's length).")
    ] = None
    block: Block = None
    seed: Seed = 0
    batch_size: BatchSize = None


@dataclass(frozen=True)
class TaskOptions:
    """Choosing the tasks, their data, prompts and graders."""

    tasks: Annotated[
        str | None, typer.Option("--tasks", "--task", help="Names from `twotemp tasks`, separated by commas.")
    ] = None
    data: Annotated[list[str] | None, "A local data file; with several tasks TASK=FILE."] = None
    prompt: Annotated[list[str] | None, "A prompt template; with several tasks TASK=NAME."] = None
    subset: Annotated[list[str] | None, "A subset of the questions; with several tasks TASK=NAME."] = None
    grader: Annotated[
        list[str] | None, "Another grader (`twotemp graders`); with several tasks TASK=NAME."
    ] = None
    altered: Altered = False
    chat: Chat = None

    def plan(self, decoding: DecodingOptions, policies: Sequence[AnyPolicy], **fields: Any) -> Plan:
        """Return the plan of an evaluation with these options and further fields."""
        return Plan(
            self.choices(),
            tuple(policies),
            length=decoding.length,
            block=decoding.block,
            seed=decoding.seed,
            chat=self.chat,
            **fields,
        )

    def choices(self, default: Sequence[str] = ()) -> tuple[TaskChoice, ...]:
        """Return the chosen tasks, or those of `default` where --tasks names none."""
        listed = self.tasks.split(",") if self.tasks else default
        names = [name.strip() for name in listed if name.strip()]
        if not names:
            raise UserError(
                "no task given; choose one, e.g. --tasks countdown-3 (`twotemp tasks` lists them)"
            )
        files = per_task("--data", self.data, names, shared=False)
        prompts = per_task("--prompt", self.prompt, names)
        subsets = per_task("--subset", self.subset, names)
        graders = per_task("--grader", self.grader, names)
        return tuple(
            TaskChoice(
                name=name,
                data=Path(files[name]) if name in files else None,
                prompt=prompts.get(name),
                subset=subsets.get(name),
                grader=graders.get(name),
                allow_altered=self.altered and name in files,
            )
            for name in names
        )


def split_policies(text: str) -> tuple[AnyPolicy, ...]:
    """Parse a list of policies, portfolios and files of them, such as `ar,lc + tlc:t_pos=0.5,@tuned.yaml`."""
    specs: list[str] = []
    for spec in split_specs(text):
        specs += policies_in(spec[1:]) if spec.startswith("@") else [spec]
    return tuple(parse_portfolio(spec) for spec in specs)


def split_specs(text: str) -> list[str]:
    """Split a list of policies at its commas, except at those before name=value."""
    return [spec.strip() for spec in re.split(r"[;,](?!\s*\w+\s*=)", text) if spec.strip()]


def task_files(data: Sequence[str] | None, tasks: Sequence[str]) -> dict[str, Path]:
    """Parse --data TASK=FILE options of a run that has these tasks into the file of each task."""
    files = {}
    for item in data or ():
        task, equals, file = item.partition("=")
        if not equals:
            raise UserError(f"--data {item}: name the task that the file belongs to: --data TASK={item}")
        if task not in tasks:
            raise unknown("task of this run", task, tasks)
        files[task] = Path(file)
    return files


def graders_by_task(runs: Sequence[Path], values: Sequence[str] | None) -> Mapping[str, str]:
    """Parse the --grader options of a command that reads runs into the grader of each task."""
    if not values:
        return {}
    stores = [Store.open(run) for run in runs]
    cells = (cell for store in stores for cell in store.cells(without=store.damage()))
    return per_task("--grader", values, list(dict.fromkeys(cell.config.task for cell in cells)))


def per_task(
    option: str, values: Sequence[str] | None, tasks: Sequence[str], shared: bool = True
) -> Mapping[str, str]:
    """Parse the values of an option that is given per task.

    Args:
        option: Its name, for error messages.
        values: `TASK=NAME` for one task, `NAME` for all of them.
        tasks: The tasks there are.
        shared: Whether several tasks may share one `NAME` (they cannot share a data file).

    Returns:
        The value of each task that has one.
    """
    chosen: dict[str, str] = {}
    for value in values or ():
        task, equals, name = value.partition("=")
        if equals and task in tasks:
            chosen[task] = name
        elif len(tasks) == 1 or (shared and not equals):
            chosen |= dict.fromkeys(tasks, value)
        else:
            raise UserError(f"{option} {value}: with several tasks, name one: {option} TASK={value}")
    return chosen


@dataclass(frozen=True)
class LoadingOptions:
    """Loading the model."""

    device: Annotated[str | None, "cpu, cuda, cuda:1, … (default: CUDA if available)."] = None
    dtype: Annotated[
        str | None, "float32, bfloat16, … (default: float32 on a CPU, else the checkpoint's)."
    ] = None
    revision: Annotated[str | None, "Branch, tag or commit of a hub id."] = None
    mask_id: Annotated[int | None, "Mask token id, if the checkpoint does not define it."] = None
    eos_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--eos-id", help="End-of-text id, if the checkpoint does not define it; may be repeated."
        ),
    ] = None
    block_size: Annotated[int | None, "Block size of a block-causal checkpoint."] = None
    quantize: Annotated[
        str | None, "int8, nf4, or (on NVIDIA GPUs) int4: smaller weights, different samples."
    ] = None
    device_map: Annotated[str | None, "auto: spread the layers over all GPUs."] = None
    compile: Annotated[bool, "torch.compile the network: slow to start, faster for long runs."] = False

    def load(self, model: str) -> LanguageModel:
        """Load the model. Call this last, after everything that is quick to check."""
        return twotemp.load(model, **self.options())

    def load_with(self, model: str, cache: str | None) -> LanguageModel:
        """Load the model, check that it can use this cache, and say whether that changes results."""
        # The engine needs torch; `--help` and errors in options should not wait for its import.
        from twotemp.engine.runner import check_cache

        loaded = self.load(model)
        check_cache(loaded, cache)
        say_cache(loaded, cache)
        return loaded

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `twotemp.load`, which the fields are named after."""
        return dict(vars(self))

    def text_options(self) -> dict[str, Any]:
        """Return those of `options` that concern a model without its weights: the arguments of `load_text`."""
        names = ("mask_id", "eos_ids", "block_size", "revision")
        return {name: getattr(self, name) for name in names}
