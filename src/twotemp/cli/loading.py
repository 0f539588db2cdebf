"""Options for loading a model, shared by the commands that need one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

import twotemp
from twotemp.cli.console import say_cache

if TYPE_CHECKING:
    from twotemp.models.base import LanguageModel


@dataclass(frozen=True)
class LoadingOptions:
    """Loading the model."""

    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … (default: CUDA if available).")] = (
        None
    )
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16, … (default: float32 on a CPU, else the checkpoint's)."),
    ] = None
    mask_id: Annotated[
        int | None, typer.Option(help="Mask token id, if the checkpoint does not define it.")
    ] = None
    eos_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--eos-id", help="End-of-text id, if the checkpoint does not define it; may be repeated."
        ),
    ] = None
    block_size: Annotated[int | None, typer.Option(help="Block size of a block-causal checkpoint.")] = None
    quantize: Annotated[
        str | None,
        typer.Option(help="int8, or (on NVIDIA GPUs) int4: smaller weights, different samples."),
    ] = None
    device_map: Annotated[str | None, typer.Option(help="auto: spread the layers over all GPUs.")] = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="torch.compile the network: slow to start, faster for long runs."),
    ] = False

    def load(self, model: str) -> LanguageModel:
        """Load the model; call it after everything that is quick to check was checked."""
        return twotemp.load(model, **self.options())

    def load_with(self, model: str, cache: str | None) -> LanguageModel:
        """Load the model, check that it can use this cache, and say whether that changes results."""
        # The engine needs torch: `--help` and mistakes in options should not wait for it.
        from twotemp.engine.runner import check_cache

        loaded = self.load(model)
        check_cache(loaded, cache)
        say_cache(loaded, cache)
        return loaded

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `twotemp.load`, which the fields are named after."""
        return dict(vars(self))
