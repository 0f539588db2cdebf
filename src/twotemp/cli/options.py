"""Options that several subcommands have, each defined once: single ones, and groups that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twotemp.errors import UserError, unknown

if TYPE_CHECKING:
    from twotemp.evaluation import Plan, TaskChoice
    from twotemp.models.base import LanguageModel
    from twotemp.records import Policy

Out = Annotated[Path, typer.Option(help="The run's folder; one that exists is continued.")]
Model = Annotated[str, typer.Option(help="`tiny`, a checkpoint folder, or a hub id.")]
Questions = Annotated[int | None, typer.Option(min=1, help="Only the first so many of each task.")]
Cache = Annotated[str | None, typer.Option(help="prefix or dual: faster, approximate.")]
Traced = Annotated[bool, typer.Option("--trace", help="Record when each position was committed.")]
Profile = Annotated[bool, typer.Option("--profile", help="Say where the time went.")]
Altered = Annotated[
    bool, typer.Option("--allow-altered-data", help="Take a --data file that is not the published one.")
]
DataFiles = Annotated[list[str] | None, typer.Option("--data", help="Local data files: TASK=FILE.")]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout, one object per line.")]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="The chat format (default: where the model has one).")
]
Block = Annotated[int | None, typer.Option(min=1, help="Block width (default 32, or the model's).")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Rows decoded together; unset: what fits.")]


@dataclass(frozen=True)
class LoadingOptions:
    """Loading the model."""

    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … (default: CUDA if any).")] = None
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, …; unset: as fits the device.")] = None
    mask_id: Annotated[int | None, typer.Option(help="Mask token id, if the checkpoint does not say.")] = None
    eos_ids: Annotated[
        list[int] | None,
        typer.Option("--eos-id", help="End-of-text id, if the checkpoint does not say; may be repeated."),
    ] = None
    block_size: Annotated[int | None, typer.Option(help="Block size of a block-causal checkpoint.")] = None
    quantize: Annotated[
        str | None, typer.Option(help="int8, or (on NVIDIA GPUs) int4: smaller weights, other samples.")
    ] = None
    device_map: Annotated[str | None, typer.Option(help="auto: spread the layers over all GPUs.")] = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="torch.compile the network: slow to start, faster for long runs."),
    ] = False

    def load(self, model: str) -> LanguageModel:
        """The model; call it after everything that is quick to check was checked."""
        from twotemp.models.load import load

        return load(model, **self.options())

    def load_with(self, model: str, cache: str | None) -> LanguageModel:
        """The model, which must be able to use this cache; whether that changes results is said."""
        from twotemp.cli.console import say_cache
        from twotemp.engine.runner import check_cache

        loaded = self.load(model)
        check_cache(loaded, cache)
        say_cache(loaded, cache)
        return loaded

    def options(self) -> dict[str, Any]:
        """The arguments of `twotemp.load`: the fields have their names."""
        return dict(vars(self))


@dataclass(frozen=True)
class DecodingOptions:
    """Decoding the answers."""

    length: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer (default: the task's).")] = (
        None
    )
    block: Block = None
    seed: Seed = 0
    batch_size: BatchSize = None


@dataclass(frozen=True)
class TaskOptions:
    """Tasks: which ones, where their data come from, how they are asked, who grades."""

    tasks: Annotated[
        str | None, typer.Option("--tasks", "--task", help="Names from `twotemp tasks`, separated by commas.")
    ] = None
    data: Annotated[
        list[str] | None, typer.Option(help="A local data file; with several tasks TASK=FILE.")
    ] = None
    prompt: Annotated[
        list[str] | None, typer.Option(help="A prompt template; with several tasks TASK=NAME.")
    ] = None
    subset: Annotated[
        list[str] | None, typer.Option(help="Which questions; with several tasks TASK=NAME.")
    ] = None
    grader: Annotated[
        list[str] | None,
        typer.Option(help="Another grader (`twotemp graders`); with several tasks TASK=NAME."),
    ] = None
    altered: Altered = False
    chat: Chat = None

    def plan(self, decoding: DecodingOptions, policies: Sequence[Policy], **more: Any) -> Plan:
        """What these options ask of an evaluation; more: other fields of the plan."""
        from twotemp.evaluation import Plan

        return Plan(
            self.choices(),
            tuple(policies),
            length=decoding.length,
            block=decoding.block,
            seed=decoding.seed,
            chat=self.chat,
            **more,
        )

    def choices(self, otherwise: Sequence[str] = ()) -> tuple[TaskChoice, ...]:
        """The tasks named, or these where none is named."""
        from twotemp.evaluation import TaskChoice

        named = self.tasks.split(",") if self.tasks else otherwise
        names = [name.strip() for name in named if name.strip()]
        if not names:
            raise UserError("no task given; name some, e.g. --tasks countdown-3 (`twotemp tasks` lists them)")
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


def task_files(data: Sequence[str] | None, tasks: Sequence[str]) -> dict[str, Path]:
    """`TASK=FILE` ... -> the file of each task; these are the tasks of the run, of which it must be one."""
    files = {}
    for item in data or ():
        task, equals, file = item.partition("=")
        if not equals:
            raise UserError(f"--data {item}: say which task's file it is: --data TASK={item}")
        if task not in tasks:
            raise unknown("task of this run", task, tasks)
        files[task] = Path(file)
    return files


def per_task(
    option: str, values: Sequence[str] | None, tasks: Sequence[str], shared: bool = True
) -> Mapping[str, str]:
    """`NAME` is for all tasks (a file only for a single one), `TASK=NAME` for one of them."""
    chosen: dict[str, str] = {}
    for value in values or ():
        task, equals, name = value.partition("=")
        if equals and task in tasks:
            chosen[task] = name
        elif len(tasks) == 1 or (shared and not equals):
            chosen |= dict.fromkeys(tasks, value)
        else:
            raise UserError(f"{option} {value}: with several tasks say whose it is: {option} TASK={value}")
    return chosen
