"""Own tasks, graders and policies, from a file, a module or an installed package, in an evaluation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import twotemp
from tests.helpers.toy_task import micro_model
from twotemp import graders, plugins, tasks
from twotemp.errors import UserError
from twotemp.evaluation import Evaluation, Plan, TaskChoice
from twotemp.evaluation.work import problems_of
from twotemp.policies import PRESETS, parse, policy, spell
from twotemp.records import Policy
from twotemp.store import Store

PLUGIN = """
from twotemp import plugins
from twotemp.records import Grade, Policy, Problem
from twotemp.tasks import ProblemSet, Task


def load(data=None, prompt=None, subset=None):
    problems = tuple(Problem(f"sums/{i}", "sums", f"{i} + 1 =", {"answer": str(i + 1)}) for i in range(2))
    return ProblemSet(problems, "sums 1", "plug-in")


class Equal:
    name = "equal 1"

    def grade(self, items):
        return (Grade("passed" if text == p.reference["answer"] else "failed", text) for p, text in items)

    def same(self, problem, a, b):
        return a == b

    def close(self):
        pass


plugins.add_task(Task("sums", "two sums", "equal", 8, load))
plugins.add_grader("equal", Equal)
plugins.add_policy(Policy("careful", "confidence", "threshold", threshold=0.95), ("threshold",), "c > 0.95", "me")
"""


def test_a_backend_that_is_not_installed_is_named_with_its_package():
    with pytest.raises(UserError, match=r"backend 'nowhere' is not installed.*pip install twotemp-nowhere"):
        plugins.backend("nowhere")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test adds is gone after it; workers of later tests would look for its plug-ins."""
    monkeypatch.setattr(plugins, "NAMED", [])
    tables: tuple[dict, ...] = (tasks.TASKS, graders.GRADERS, PRESETS, sys.modules)  # type: ignore[type-arg]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before):
        for name in table.keys() - kept.keys():
            del table[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def drawn(plan: Plan, out: Path) -> dict[str, list[str | None]]:
    with Evaluation(plan, out) as evaluation:
        store = evaluation.run(micro_model())
    for cell in store.cells():
        assert len(cell.grades(cell.graders()[0])) == len(list(cell.samples()))
    return {cell.name: [sample.text for sample in cell.samples()] for cell in store.cells()}


def test_a_task_a_grader_and_a_policy_from_a_file_work_in_an_evaluation(file, tmp_path):
    plugins.load_plugin(str(file))
    plugins.load_plugin(str(file))  # a second time does nothing
    plan = Plan((TaskChoice("sums"),), (parse("careful"), parse("careful:threshold=0.5"), parse("ar")), n=2)
    found = drawn(plan, tmp_path / "run")
    assert set(found) == {"sums@careful", "sums@careful:threshold=0.5", "sums@ar"}
    assert all(len(texts) == 4 for texts in found.values())
    for cell in Store.open(tmp_path / "run").cells():  # a report asks without the hub
        assert [p.id for p in problems_of(cell, hub=False).problems] == ["sums/0", "sums/1"]


def test_modules_and_entry_points_are_plugins(file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("sums", "mine", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == plugins.GROUP else [])
    plugins.load_plugins(["mine"])
    assert tasks.get("sums").grader == "equal"
    assert graders.get("equal").name == "equal 1"
    assert policy("careful").threshold == 0.95


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", r"mine.py cannot be loaded \(ZeroDivisionError"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        (PLUGIN + PLUGIN.replace("sums", "other"), "a grader named 'equal' already"),
        (
            "from twotemp import plugins, policy\nplugins.add_policy(policy('lc'))",
            "policy named 'lc' already",
        ),
    ],
)
def test_a_failing_plugin_is_named_with_the_reason(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UserError, match=message):
        plugins.load_plugin(str(tmp_path / "mine.py"))


REGISTRIES = (tasks.TASKS, graders.GRADERS, PRESETS)


@pytest.mark.parametrize("ending", ["1 / 0", "raise SystemExit(1)", "plugins.add_grader('equal', Equal)"])
def test_a_plugin_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, ending):
    """Neither what it registered before it failed, nor its name for the workers: once fixed, it loads."""
    monkeypatch.setattr(plugins, "NAMED", named := [])
    before = [dict(registry) for registry in REGISTRIES]
    path = tmp_path / "broken.py"
    path.write_text(f"{PLUGIN}\n{ending}\n")
    for _ in range(2):
        with pytest.raises(UserError, match="plug-in"):
            plugins.load_plugin(str(path))
        assert [dict(registry) for registry in REGISTRIES] == before
        assert named == []
        assert "twotemp_plugin_broken" not in sys.modules
    path.write_text(PLUGIN)
    plugins.load_plugin(str(path))
    assert "sums" in tasks.TASKS
    assert named == [str(path.resolve())]


def test_a_package_that_fails_is_loaded_again_whole(tmp_path, monkeypatch):
    """Its first module registers a task and is imported without error, the package fails, and is fixed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "fixed_package"
    package.mkdir()
    (package / "first.py").write_text(PLUGIN)
    (package / "__init__.py").write_text("from fixed_package import first\n1 / 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        plugins.load_plugin("fixed_package")
    assert "sums" not in tasks.TASKS
    (package / "__init__.py").write_text("from fixed_package import first  # and nothing else\n")
    importlib.invalidate_caches()
    plugins.load_plugin("fixed_package")
    assert "sums" in tasks.TASKS


@pytest.mark.parametrize("get", [tasks.get, graders.get, parse], ids=["task", "grader", "policy"])
def test_unknown_names_suggest_a_plugin(get):
    with pytest.raises(UserError, match=r"unknown \w+ 'sums'.*--plugin FILE.py"):
        get("sums")


def test_a_plugin_is_listed_for_workers_once(file, monkeypatch):
    monkeypatch.setattr(plugins, "NAMED", named := [])
    monkeypatch.chdir(file.parent)
    for name in ("mine.py", "./mine.py", str(file)):
        plugins.load_plugin(name)
    assert named == [str(file.resolve())]


def test_a_missing_plugin(tmp_path, file):
    with pytest.raises(UserError, match="no plug-in"):
        plugins.load_plugin(str(tmp_path / "nope.py"))
    with pytest.raises(UserError, match="nope_nope cannot be loaded"):
        plugins.load_plugin("nope_nope")
    plugins.load_plugin(str(file))
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"two plug-ins are called mine\.py"):
        plugins.load_plugin(str(file.rename(tmp_path / "other" / "mine.py")))


MINE = Policy("my own rule!", "neg_entropy", "budget", k=2, t_pos=0.3)


def test_a_policy_of_any_name_and_numbers_works_in_an_evaluation_as_in_sample(file, tmp_path):
    plugins.load_plugin(str(file))
    policies = (MINE, replace(MINE, t_pos=0.5), replace(policy("lc"), t_pos=0.2))
    names = [spell(one) for one in policies]
    assert len(set(names)) == 3
    assert [name.split("+")[0] for name in names] == ["my-own-rule", "my-own-rule", "lc"]
    found = drawn(Plan((TaskChoice("sums"),), policies, n=1), tmp_path / "run")
    assert set(found) == {f"sums@{name}" for name in names}
    (alone,) = twotemp.sample(micro_model(), "0 + 1 =", MINE, length=8, ids=["sums/0"])
    assert alone.text in found[f"sums@{names[0]}"]


def test_two_equal_policies_are_refused_whatever_they_are_called():
    with pytest.raises(UserError, match=r"my-own-rule\+.* is given twice"):
        Plan((TaskChoice("sums"),), (MINE, MINE))
