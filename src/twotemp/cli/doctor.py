"""`twotemp doctor`: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module, metadata
from typing import Annotated

import typer

EXTRAS = {
    "math_verify": ("eval", "grading MATH-500 (plain numbers work without it)"),
    "matplotlib": ("plots", "figures"),
    "pyarrow": ("analysis", "export to Parquet"),
    "accelerate": ("train", "GRPO post-training"),
    "peft": ("train", "LoRA adapters"),
}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a check.")] = False) -> None:
    """Say what works here (torch, device, sandbox, extras) and how to mend what does not."""
    checks = [_python(), *_torch(), _transformers(), *_extras(), _sandbox(), _embedded()]
    for name, state, detail in checks:
        if as_json:
            typer.echo(json.dumps({"check": name, "state": state, "detail": detail}))
        else:
            colour = {"ok": "green", "missing": "yellow", "broken": "red"}[state]
            typer.echo(typer.style(f"{state:8}", fg=colour) + f"{name:14}{detail}")
    if any(state == "broken" for _, state, _ in checks):
        raise typer.Exit(1)


Check = tuple[str, str, str]


def _python() -> Check:
    return "python", "ok", ".".join(map(str, sys.version_info[:3]))


def _torch() -> list[Check]:
    try:
        import torch
    except ImportError as error:
        return [("torch", "broken", f"{error}; pip install -c constraints.txt torch")]
    if torch.cuda.is_available():
        device = f"cuda: {torch.cuda.get_device_name(0)}"
    else:
        device = f"cpu, {torch.get_num_threads()} threads"
    # In a process of its own: where the CPU advertises what it may not run, this dies by a signal.
    probe = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); print(float((a @ a).sum()))"
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True)
    if ran.returncode == 0:
        bf16 = ("bfloat16", "ok", "matrix products run")
    else:
        bf16 = (
            "bfloat16",
            "missing",
            "matrix products crash on this CPU; stay with float32 (the default here)",
        )
    return [("torch", "ok", f"{torch.__version__} on {device}"), bf16]


def _transformers() -> Check:
    version = metadata.version("transformers")
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (5, 2) or major > 5:
        return "transformers", "broken", f"{version}; pip install 'transformers>=5.2,<6'"
    return "transformers", "ok", version


def _extras() -> list[Check]:
    checks = []
    for module, (extra, purpose) in EXTRAS.items():
        try:
            import_module(module)
            checks.append((module, "ok", f"{metadata.version(module.replace('_', '-'))}: {purpose}"))
        except ImportError:
            checks.append((module, "missing", f"needed for {purpose}: pip install 'twotemp[{extra}]'"))
    return checks


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
