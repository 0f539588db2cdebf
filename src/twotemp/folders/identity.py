"""run.json: what a run directory holds, how it was made, and whether it may be continued with these settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from twotemp import __version__
from twotemp.errors import UserError
from twotemp.folders.files import disk_errors, is_temporary, make_folder, read_json, sweep, write_text
from twotemp.serialization import json_text, to_json

FILE = "run.json"
FORMAT = {"format": "twotemp run", "version": 2}
RunKind = Literal["evaluation", "grpo", "forks", "training", "search"]
KINDS: dict[RunKind, str] = {
    "evaluation": "a run of `twotemp eval`",
    "grpo": "a run of `twotemp grpo`",
    "forks": "a study of `twotemp forks`",
    "training": "a run of `python -m recipes`",
    "search": "a search of `twotemp tune --gradient`",
}
# About the file, not about the run.
_ABOUT = (*FORMAT, "kind", "twotemp", "changes")


def read_run(folder: Path) -> dict[str, Any] | None:
    """Return run.json of a folder; None where there is none. A run of another format version is refused."""
    path = folder / FILE
    if not path.exists():
        return None
    described: dict[str, Any] = read_json(path)
    if not isinstance(described, dict) or not (
        described.get("format") == FORMAT["format"] or "twotemp" in described
    ):
        raise UserError(f"{path} was not written by twotemp; give the folder named by --out")
    if {name: described.get(name) for name in FORMAT} != FORMAT:
        writer = described.get("twotemp", "0.1.0")  # which did not always name itself
        raise UserError(
            f"{folder} was written by twotemp {writer}, in another format than twotemp {__version__} reads; "
            f"install twotemp {writer} to read or continue it, or choose another folder (--out)"
        )
    return described


def kind_of(folder: Path) -> RunKind | None:
    """Return what kind of run a folder holds; None if it is not a run."""
    described = read_run(folder)
    if described is None:
        return None
    kind: RunKind = described.get("kind")  # type: ignore[assignment]
    if kind not in list(KINDS):  # of any type: a damaged file may hold anything
        raise UserError(
            f"{folder} holds {kind!r}, which twotemp {__version__} does not know; install the version that wrote it"
        )
    return kind


def expect(folder: Path, *kinds: RunKind) -> RunKind:
    """Return the kind of a run, which must be one of these; the UserError says what the folder is instead."""
    kind = kind_of(folder)
    if kind in kinds:
        return kind
    wanted = " or ".join(KINDS[name] for name in kinds)
    if kind is not None:
        raise UserError(f"{folder} is {KINDS[kind]}; {wanted} is needed here")
    if (folder / "cell.json").exists():
        raise UserError(f"{folder} is one cell of a run; give the run: {folder.parent}")
    inside = sorted(path.parent.name for path in folder.glob(f"*/{FILE}"))
    hint = f"it holds {', '.join(inside)}: give one of them" if inside else "give the folder named by --out"
    raise UserError(f"{folder} is not a run: it has no {FILE}; {hint}")


def continued(
    folder: Path,
    kind: RunKind,
    identity: Mapping[str, Any],
    *,
    step: int | None = 0,
    free: Collection[str] = (),
    adjustable: Collection[str] = (),
) -> dict[str, Any]:
    """Return run.json of a run that starts or continues in a folder; raise a UserError if it holds anything else.

    Args:
        folder: The run directory.
        kind: The kind of run.
        identity: The settings, which must be those of the run in the folder.
        step: The last finished step, recorded with changes; None if nothing is done yet that they could contradict.
        free: Settings that may differ because they do not change what is computed. A name covers all below it:
            `settings` covers `settings.seed`.
        adjustable: Settings that may differ, where the change is recorded.
    """
    # Listed first: if two processes create a run, the other one may write run.json meanwhile, but nothing before it.
    others = _others(folder)
    before = read_run(folder)
    now = {**FORMAT, "kind": kind, "twotemp": __version__, **to_json(identity)}
    if before is None:
        if others:
            raise UserError(
                f"{folder} holds something other than a run ({others[0]}); choose a new or an empty folder (--out)"
            )
        return now
    if before["kind"] != kind:
        expect(folder, kind)
    if step is None:
        return now
    changes = before.get("changes", [])
    different = differences(before, now)
    refuse(folder, KINDS[kind], {n: d for n, d in different.items() if not _covers((*free, *adjustable), n)})
    adjusted = {name: new for name, (_, new) in different.items() if _covers(adjustable, name)}
    if adjusted:
        changes = [*changes, {"after step": step, **adjusted}]
    return {**now, "changes": changes} if changes else now


def claim(folder: Path, kind: RunKind, identity: Mapping[str, Any], *, step: int | None = 0) -> None:
    """Create run.json, or continue the run in this folder if it has the same identity; remove leftovers."""
    write_run(folder, continued(folder, kind, identity, step=step))


def write_run(folder: Path, described: Mapping[str, Any]) -> None:
    """Write run.json, unless the file has this content already."""
    make_folder(folder)
    sweep(folder)
    text = json_text(described, indent=2) + "\n"
    path = folder / FILE
    with disk_errors(path, "read"):
        same = path.exists() and path.read_text("utf-8") == text
    if not same:
        write_text(path, text)


def refuse(folder: Path, what: str, different: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise a UserError if anything differs."""
    if different:
        changes = "; ".join(f"{name}: {old!r}, now {new!r}" for name, (old, new) in sorted(different.items()))
        raise UserError(
            f"{folder} is {what} with other settings ({changes}). Nothing was changed: use the same settings to "
            "continue it, or another folder (--out) for the new ones"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return full name -> (old, new) of every difference; null equals a missing value."""
    old, new = _flat(before), _flat(now)
    names = {name for name in old.keys() | new.keys() if not _covers(_ABOUT, name)}
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _flat(data: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{inside}{key}.") if isinstance(value, Mapping) else {inside + key: value}
    return flat


def _covers(names: Collection[str], name: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in names)


def _others(folder: Path) -> list[str]:
    if not folder.exists():
        return []
    if not folder.is_dir():
        return ["a file"]
    with disk_errors(folder, "read"):
        return sorted(path.name for path in folder.iterdir() if not is_temporary(path))
