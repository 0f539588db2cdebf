"""`twotemp doctor`: what works on this machine, what a model would take, and how to mend what does not work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Annotated

import typer

from twotemp import processes
from twotemp.plain import json_text

EXTRAS = {
    "math_verify": ("eval", "grading MATH-500 (plain numbers work without it)"),
    "matplotlib": ("plots", "figures"),
    "pyarrow": ("analysis", "export to Parquet"),
    "accelerate": ("train", "GRPO post-training, models over several GPUs"),
    "peft": ("train", "LoRA adapters"),
    "torchao": ("quantize", "int8 and int4 weights"),
}
Check = tuple[str, str, str]  # what, ok | missing | broken, detail


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Say what this model is and whether it fits; no weights are fetched."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check.")] = False,
) -> None:
    """Say what works here (torch, device, sandbox, extras) and how to mend what does not."""
    broken = False
    for name, state, detail in _machine() if model is None else _model(model):
        broken = broken or state == "broken"
        if as_json:
            typer.echo(json_text({"check": name, "state": state, "detail": detail}))
        else:
            colour = {"ok": "green", "missing": "yellow", "broken": "red"}[state]
            typer.echo(typer.style(f"{state:8}", fg=colour) + f"{name:14}{detail}")
    if broken:
        raise typer.Exit(1)


def _machine() -> Iterator[Check]:
    """One after the other: importing torch and starting sandboxes takes seconds."""
    yield "python", "ok", ".".join(map(str, sys.version_info[:3]))
    yield from _torch()
    yield _transformers()
    yield from _extras()
    yield _sandbox()
    yield _embedded()


def _model(source: str) -> Iterator[Check]:
    import torch

    from twotemp.engine.memory import free_bytes
    from twotemp.errors import UserError
    from twotemp.models import catalogue
    from twotemp.models.load import usable_device, usable_dtype
    from twotemp.models.survey import survey

    known = catalogue.find(source)
    try:
        found = survey(source)
    except UserError as error:
        yield "model", "broken", str(error)
        if known is not None:
            family, mask_id, shift, attention = known.kind
            yield "published", "ok", f"{family}, mask id {mask_id}, shifted: {shift}, {attention}"
            yield "compared", "ok", f"with what was published: {known.checked}"
        return
    millions = found.parameters / 1e6
    size = f"{millions / 1000:.2f} billion" if millions >= 1000 else f"{millions:.2f} million"
    yield "model", "ok", f"{found.family}, {size} parameters"
    yield "tokens", "ok" if found.complete else "missing", found.about
    if known is not None:
        yield "compared", "ok", f"with what was published: {known.checked}"
    if found.missing:
        yield (
            "download",
            "missing",
            f"{_gigabytes(found.missing)} of {_gigabytes(found.weights)} are not here yet",
        )
    else:
        yield "download", "ok", f"{_gigabytes(found.weights)}, all here"
    device = usable_device(None)
    dtype = usable_dtype(None, device) or found.dtype
    free = free_bytes(device)
    ways = {str(dtype).removeprefix("torch."): found.parameters * dtype.itemsize}
    ways.setdefault("bfloat16", found.parameters * torch.bfloat16.itemsize)
    if found.int8 is not None:
        ways["int8 (quantize)"] = found.int8
    fits = [way for way, size in ways.items() if size < 0.9 * free]
    sizes = ", ".join(f"{_gigabytes(size)} in {way}" for way, size in ways.items())
    if not fits:
        verdict = "does not fit"
    else:
        verdict = "fits" if next(iter(ways)) in fits else f"fits in {fits[0]} only"
    yield (
        "memory",
        "ok" if fits else "missing",
        f"{verdict}: {_gigabytes(free)} free on {device}; weights take {sizes}",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _torch() -> Iterator[Check]:
    try:
        import torch
    except ImportError as error:
        yield "torch", "broken", f"{error}; pip install -c constraints.txt torch"
        return
    if torch.cuda.is_available():
        device = f"cuda: {torch.cuda.get_device_name(0)}"
    else:
        device = f"cpu, {torch.get_num_threads()} threads"
    yield "torch", "ok", f"{torch.__version__} on {device}"
    # In a process of its own: where the CPU advertises what it may not run, this dies by a signal.
    probe = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); print(float((a @ a).sum()))"
    child = processes.start(
        processes.python_command("-c", probe), environment=processes.minimal_environment()
    )
    if child.wait() == 0:
        yield "bfloat16", "ok", "matrix products run"
    else:
        detail = "matrix products crash on this CPU; stay with float32 (the default here)"
        yield "bfloat16", "missing", detail


def _transformers() -> Check:
    version = metadata.version("transformers")
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (5, 2) or major > 5:
        return "transformers", "broken", f"{version}; pip install 'transformers>=5.2,<6'"
    return "transformers", "ok", version


def _extras() -> Iterator[Check]:
    logging.disable(logging.WARNING)  # what they say when imported is not for here
    try:
        for module, (extra, purpose) in EXTRAS.items():
            try:
                import_module(module)
                yield module, "ok", f"{metadata.version(module.replace('_', '-'))}: {purpose}"
            except ImportError:
                yield module, "missing", f"needed for {purpose}: pip install 'twotemp[{extra}]'"
    finally:
        logging.disable(logging.NOTSET)


def _sandbox() -> Check:
    from twotemp.errors import UserError
    from twotemp.graders.sandbox import describe

    try:
        return "sandbox", "ok", describe()
    except UserError as error:
        return "sandbox", "missing", str(error)


def _embedded() -> Check:
    from twotemp.errors import UserError
    from twotemp.models.load import load

    try:
        model = load("tiny")
    except UserError as error:
        return "tiny", "broken", str(error)
    return "tiny", "ok", f"the embedded model loads ({model.vocab_size} tokens)"
