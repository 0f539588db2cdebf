"""Options that several subcommands have, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Option(help="`tiny`, a checkpoint folder, or a hub id.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … (default: CUDA if there is any)")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, …; unset: as fits the device.")]
MaskId = Annotated[int | None, typer.Option(help="Mask token id, if the checkpoint does not say.")]
BlockSize = Annotated[int | None, typer.Option(help="Block size of a block-causal checkpoint.")]
Compiled = Annotated[
    bool, typer.Option("--compile", help="torch.compile the network: slow to start, faster for long runs.")
]
Profile = Annotated[bool, typer.Option("--profile", help="Say where the time went.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Rows decoded together; unset: what fits.")]
Block = Annotated[int | None, typer.Option(min=1, help="Block width (default 32, or the model's).")]
Length = Annotated[int | None, typer.Option(min=1, help="Tokens of an answer (default: the task's).")]
Cache = Annotated[str | None, typer.Option(help="prefix or dual: faster, approximate.")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
Traced = Annotated[bool, typer.Option("--trace", help="Record when each position was committed.")]
Data = Annotated[list[str] | None, typer.Option(help="A local data file; with several tasks TASK=FILE.")]
Prompt = Annotated[list[str] | None, typer.Option(help="A prompt template; with several tasks TASK=NAME.")]
Subset = Annotated[list[str] | None, typer.Option(help="Which questions; with several tasks TASK=NAME.")]
Altered = Annotated[
    bool, typer.Option("--allow-altered-data", help="Take a --data file that is not the published one.")
]
GraderName = Annotated[list[str] | None, typer.Option("--grader", help="Another grader; or TASK=NAME.")]
