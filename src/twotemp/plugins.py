"""Own tasks, graders and policies from outside the source tree.

A plug-in is a Python file or module that calls `add_task`, `add_grader` or `add_policy` when it is imported:

    # mine.py
    from twotemp import plugins
    from twotemp.records import Policy, Problem
    from twotemp.tasks import ProblemSet, Task

    def load(data=None, prompt=None, subset=None):
        return ProblemSet((Problem("sum/0", "sum", "1 + 2 =", {"answer": "3"}),), digest="1", source="mine.py")

    plugins.add_task(Task("sum", "one sum", grader="maths", length=16, load=load))
    plugins.add_policy(Policy("careful", "confidence", "threshold", threshold=0.95), parameters=("threshold",))

The command line takes it as `--plugin mine.py`; a package that is installed with an entry point in the group
`twotemp.plugins` needs no option. In Python, import it.

A distribution that draws samples elsewhere offers itself in the group `twotemp.backends` (`twotemp-sglang` does).
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
from twotemp.policies import PRESETS, Preset
from twotemp.records import Policy
from twotemp.tasks import Task

GROUP = "twotemp.plugins"
BACKENDS = "twotemp.backends"
NAMED: list[str] = []  # those that were loaded by name: worker processes load them, too
T = TypeVar("T")


def load_plugins(names: Iterable[str] = ()) -> None:
    """Those that are installed, then those named: what the command line calls first of all."""
    for point in entry_points(group=GROUP):
        _guarded(f"{point.name} ({point.value})", point.load)
    for name in names:
        load_plugin(name)


def load_plugin(name: str) -> None:
    """A file (`mine.py`) or a module (`mine`), once."""
    path = Path(name).resolve()
    known_as = str(path) if name.endswith(".py") else name  # a worker may have another working folder
    if known_as not in NAMED:
        NAMED.append(known_as)
    if not name.endswith(".py"):
        _guarded(name, lambda: import_module(name))
        return
    if not path.is_file():
        raise UserError(f"there is no plug-in {name}; give a Python file, or the name of a module")
    own = f"twotemp_plugin_{path.stem}"
    loaded = sys.modules.get(own)
    if loaded is None:
        _guarded(name, lambda: _import_file(own, path))
    elif loaded.__file__ != str(path):
        raise UserError(f"two plug-ins are called {path.name} ({loaded.__file__} and {path}); rename one")


def _import_file(own: str, path: Path) -> None:
    spec = spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[own] = module  # its dataclasses and pickles look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise


def backend(name: str) -> Any:
    """Return the backend that an installed distribution offers by this name (entry points `twotemp.backends`)."""
    for point in entry_points(group=BACKENDS, name=name):
        return _guarded(f"{name} ({point.value})", point.load)
    raise UserError(f"the backend {name!r} is not installed; install it with: pip install twotemp-{name}")


def _guarded(name: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except UserError as error:
        raise UserError(f"plug-in {name}: {error}") from error
    except Exception as error:
        raise UserError(
            f"plug-in {name} cannot be loaded ({type(error).__name__}: {error}); mend it or leave it out"
        ) from error


def add_task(task: Task) -> None:
    _add("task", tasks.TASKS, task.name, task)


def add_grader(name: str, make: Callable[[], Grader]) -> None:
    """make: called for a new grader; a class will do."""
    _add("grader", graders.GRADERS, name, make)


def add_policy(policy: Policy, parameters: Sequence[str] = (), formula: str = "", source: str = "") -> None:
    """parameters: the numbers a user may set beside those of every policy, as in `name:threshold=0.9`."""
    _add("policy", PRESETS, policy.name, Preset(policy, tuple(parameters), formula, source))


def _add(kind: str, table: dict[str, T], name: str, value: T) -> None:
    if name in table:
        raise UserError(f"there is a {kind} named {name!r} already; choose another name")
    table[name] = value
