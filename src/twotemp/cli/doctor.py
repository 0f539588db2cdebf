"""`twotemp doctor`: what works on this machine, what a model needs, and how to fix what does not work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Annotated

import typer

import twotemp
from twotemp import processes
from twotemp.cli.console import say
from twotemp.errors import UserError
from twotemp.graders.sandbox import describe
from twotemp.serialization import json_text

EXTRAS = {
    "math_verify": ("eval", "grading MATH-500 (plain numbers work without it)"),
    "matplotlib": ("plots", "figures"),
    "pyarrow": ("analysis", "export to Parquet"),
    "accelerate": ("train", "GRPO post-training, models over several GPUs"),
    "peft": ("train", "LoRA adapters"),
    "torchao": ("quantize", "int8 and int4 weights"),
    "bitsandbytes": ("quantize", "nf4 weights"),
}
CheckResult = tuple[str, str, str]  # name, ok | missing | broken, detail


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Describe this model and whether it fits; no weights are fetched."
        ),
    ] = None,
    gpu: Annotated[bool, "Load --model (default: tiny) on the GPU and take a decoding step."] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check.")] = False,
) -> None:
    """Check torch, device, sandbox and extras, and name the fix for a problem.

    [bold]Examples[/bold]
      twotemp doctor
      twotemp doctor --model GSAI-ML/LLaDA-8B-Instruct
      twotemp doctor --gpu
    """
    if gpu:
        from twotemp.cli.model_checks import gpu_checks

        checks = gpu_checks(model or "tiny")
    elif model is None:
        checks = _machine()
    else:
        # Needs torch: whether that works is one of the checks of the machine.
        from twotemp.cli.model_checks import model_checks

        checks = model_checks(model)
    broken = False
    for name, state, detail in checks:
        broken = broken or state == "broken"
        if as_json:
            typer.echo(json_text({"check": name, "state": state, "detail": detail}))
        else:
            color = {"ok": "green", "missing": "yellow", "broken": "red"}[state]
            typer.echo(typer.style(f"{state:8}", fg=color) + f"{name:14}{detail}")
    if broken:
        say("next: fix what is broken, then run the same command again")
        raise typer.Exit(1)
    say("next: twotemp demo" if model is None else f"next: twotemp sample --model {model} …")


def _machine() -> Iterator[CheckResult]:
    """Yield the checks one by one: importing torch and starting sandboxes takes seconds."""
    yield "python", "ok", ".".join(map(str, sys.version_info[:3]))
    yield from _torch()
    yield _transformers()
    yield from _extras()
    yield _sandbox()
    yield _embedded()


def _torch() -> Iterator[CheckResult]:
    """Yield whether torch works, on which device, and whether bfloat16 does."""
    try:
        import torch  # here, so that the checks before it are printed where it hangs or is broken
    except ImportError as error:
        yield "torch", "broken", f"{error}; pip install -c constraints.txt torch"
        return
    if torch.cuda.is_available():
        device = f"cuda: {torch.cuda.get_device_name(0)}"
    else:
        device = f"cpu, {torch.get_num_threads()} threads"
    yield "torch", "ok", f"{torch.__version__} on {device}"
    # In a separate process: a CPU that advertises instructions it may not run ends it with a signal.
    probe = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); print(float((a @ a).sum()))"
    child = processes.start(
        processes.python_command("-c", probe), environment=processes.minimal_environment()
    )
    if child.wait() == 0:
        yield "bfloat16", "ok", "matrix products run"
    else:
        detail = "matrix products crash on this CPU; stay with float32 (the default here)"
        yield "bfloat16", "missing", detail


def _transformers() -> CheckResult:
    version = metadata.version("transformers")
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (5, 2) or major > 5:
        return "transformers", "broken", f"{version}; pip install 'transformers>=5.2,<6'"
    return "transformers", "ok", version


def _extras() -> Iterator[CheckResult]:
    logging.disable(logging.WARNING)  # what these packages log when imported is not part of the checks
    try:
        for module, (extra, purpose) in EXTRAS.items():
            try:
                import_module(module)
                yield module, "ok", f"{metadata.version(module.replace('_', '-'))}: {purpose}"
            except ImportError:
                yield module, "missing", f"needed for {purpose}: pip install 'twotemp[{extra}]'"
    finally:
        logging.disable(logging.NOTSET)


def _sandbox() -> CheckResult:
    try:
        return "sandbox", "ok", describe()
    except UserError as error:
        return "sandbox", "missing", str(error)


def _embedded() -> CheckResult:
    try:
        model = twotemp.load("tiny")
    except UserError as error:
        return "tiny", "broken", str(error)
    return "tiny", "ok", f"the embedded model loads ({model.vocab_size} tokens)"
