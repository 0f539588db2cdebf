"""Add tasks, graders, policies and rewards from outside the source tree.

A plug-in is a Python file or module that calls `add_task`, `add_grader`, `add_policy` or `add_reward` when it is
imported:

    # mine.py
    from twotemp import plugins
    from twotemp.records import Policy, Problem
    from twotemp.tasks import ProblemSet, Task

    def load(data=None, prompt=None, subset=None):
        return ProblemSet((Problem("sum/0", "sum", "1 + 2 =", {"answer": "3"}),), digest="1", source="mine.py")

    plugins.add_task(Task("sum", "one sum", grader="maths", length=16, load=load))
    plugins.add_policy(Policy("careful", "confidence", "threshold", threshold=0.95), parameters=("threshold",))

The command line loads it with `--plugin mine.py`; an installed package with an entry point in the group
`twotemp.plugins` needs no option. In Python, import it.

A distribution that draws samples elsewhere offers itself in the group `twotemp.backends` (`twotemp-sglang` does):
`backend` finds it by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

from twotemp import graders, tasks
from twotemp.errors import UserError
from twotemp.graders.base import Grader
from twotemp.graders.rewards import REWARDS, Reward
from twotemp.policies import PRESETS, Preset
from twotemp.records import Policy
from twotemp.tasks import Task

GROUP = "twotemp.plugins"
BACKENDS = "twotemp.backends"
NAMED: list[str] = []  # plug-ins that were loaded by name: worker processes load them as well
T = TypeVar("T")


def load_plugins(names: Iterable[str] = ()) -> None:
    """Load the installed plug-ins, then those named. The command line calls this first."""
    for point in entry_points(group=GROUP):
        _guarded(f"{point.name} ({point.value})", point.module, point.load)
    for name in names:
        load_plugin(name)


def load_plugin(name: str) -> None:
    """Load a plug-in, a file (`mine.py`) or a module (`mine`), unless it is loaded already.

    If loading fails, nothing that the plug-in registered remains.
    """
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise UserError(f"there is no plug-in {name}; give a Python file, or the name of a module")
        module = f"twotemp_plugin_{path.stem}"
        loaded = sys.modules.get(module)
        if loaded is None:
            _guarded(name, module, lambda: _import_file(module, path))
        elif loaded.__file__ != str(path):
            raise UserError(f"two plug-ins are called {path.name} ({loaded.__file__} and {path}); rename one")
        name = str(path)  # a worker may have another working directory
    else:
        _guarded(name, name, lambda: import_module(name))
    if name not in NAMED:
        NAMED.append(name)


def _import_file(name: str, path: Path) -> None:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses and pickles look there
    spec.loader.exec_module(module)


def backend(name: str) -> Any:
    """Return the backend that an installed distribution offers by this name (entry points `twotemp.backends`)."""
    for point in entry_points(group=BACKENDS, name=name):
        return _guarded(f"{name} ({point.value})", point.module, point.load)
    raise UserError(f"the backend {name!r} is not installed; install it with: pip install twotemp-{name}")


def _guarded(name: str, module: str, load: Callable[[], T]) -> T:
    """Load a plug-in; if that fails, undo what it registered and forget the modules of its package.

    A module that stays imported would not register anything when the plug-in is loaded again.
    """
    package = module.partition(".")[0]
    registries: tuple[dict[str, Any], ...] = (tasks.TASKS, graders.GRADERS, PRESETS, REWARDS)
    before = [dict(registry) for registry in registries]
    modules, named = {*sys.modules}, list(NAMED)
    try:
        return load()
    except BaseException as error:
        for registry, entries in zip(registries, before):
            registry.clear()
            registry.update(entries)
        NAMED[:] = named
        for loaded in {*sys.modules} - modules:
            if loaded.partition(".")[0] == package:
                del sys.modules[loaded]
        if isinstance(error, UserError):
            raise UserError(f"plug-in {name}: {error}") from error
        if not isinstance(error, Exception | SystemExit):  # Ctrl-C
            raise
        raise UserError(
            f"plug-in {name} cannot be loaded ({type(error).__name__}: {error}); fix it or leave it out"
        ) from error


def add_task(task: Task) -> None:
    """Register a task under its name; a name that is taken raises a UserError."""
    _add("task", tasks.TASKS, task.name, task)


def add_grader(name: str, make: Callable[[], Grader]) -> None:
    """Register a grader; `make` is called without arguments for a new one, so a class will do."""
    _add("grader", graders.GRADERS, name, make)


def add_reward(name: str, reward: Reward) -> None:
    """Register a reward function of GRPO (`--reward NAME=WEIGHT`) with the arguments that `graders.rewards` lists."""
    _add("reward", REWARDS, name, reward)


def add_policy(policy: Policy, parameters: Sequence[str] = (), formula: str = "", source: str = "") -> None:
    """Register a policy under its name.

    Args:
        policy: The policy with its default parameters.
        parameters: Which further parameters a user may set, as in `name:threshold=0.9`.
        formula: What the playground and traces show for it.
        source: Where it was published.
    """
    _add("policy", PRESETS, policy.name, Preset(policy, tuple(parameters), formula, source))


def _add(kind: str, table: dict[str, T], name: str, value: T) -> None:
    if name in table:
        raise UserError(f"there is a {kind} named {name!r} already; choose another name")
    table[name] = value
