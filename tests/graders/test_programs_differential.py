"""The sandbox's verdict is that of plain `exec` in a separate interpreter, for everything but hostile programs.

Programs: a table of small ones (`program_pairs.txt`), and the references of HumanEval and MBPP with mutants of them.
"""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.conftest import DataFile
from tests.helpers import program_pairs
from tests.helpers.benchmark_rows import MADE_UP, Row, read
from twotemp.graders.programs import assemble, entry_points
from twotemp.graders.sandbox import Program, Sandbox
from twotemp.records import Problem

CONFINEMENTS = ("bwrap", "landlock")

# One interpreter that forks for each program; "passed" is an end that was reached.
PLAIN = """
import asyncio, json, os, signal, sys, types, unittest
for line in sys.stdin:
    code, tests, seconds = json.loads(line)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        module = sys.modules["program"] = types.ModuleType("program")
        try:
            exec(compile(code, "<program>", "exec"), vars(module))
            exec(compile(tests, "<tests>", "exec"), vars(module))
        except BaseException:
            os._exit(1)
        os._exit(42)
    status = os.waitpid(child, 0)[1]
    passed = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 42
    print(json.dumps("passed" if passed else "timeout" if os.WIFSIGNALED(status) else "failed"), flush=True)
"""


@cache  # the same for both confinements
def in_plain_interpreter(programs: tuple[Program, ...]) -> list[str]:
    lines = "".join(json.dumps([p.code, p.tests, p.seconds]) + "\n" for p in programs)
    python = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [python, "-I", "-S", "-c", PLAIN],
        input=lines,
        text=True,
        capture_output=True,
        check=True,
        timeout=3600,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_there_are_a_hundred_programs() -> None:
    assert len({pair.code for pair in program_pairs.read("program_pairs")}) >= 100


def test_small_programs(box: Sandbox) -> None:
    table = program_pairs.read("program_pairs")
    programs = [Program(pair.code, pair.tests, ("f",), seconds=10.0) for pair in table]
    plain = in_plain_interpreter(tuple(programs))
    expected = ["passed" if pair.holds else "failed" for pair in table]
    assert [pair for pair, *both in zip(table, plain, expected) if both[0] != both[1]] == [], (
        "the table is wrong"
    )
    verdicts = [box.ask(program) for program in programs]
    wrong = [
        (pair.name, v.outcome, v.detail) for pair, v, is_ in zip(table, verdicts, plain) if v.outcome != is_
    ]
    assert wrong == []


def test_documented_differences_from_plain_exec(box: Sandbox) -> None:
    table = program_pairs.read("program_differences")
    programs = [Program(pair.code, pair.tests, ("f",), seconds=10.0) for pair in table]
    assert {*in_plain_interpreter(tuple(programs))} == {"passed"}
    passed = [pair.name for pair, program in zip(table, programs) if box.ask(program).outcome != "failed"]
    assert passed == []


def benchmark(of: Callable[[str], list[Row]]) -> list[tuple[Problem, str]]:
    items = []
    for name in ("humaneval", "mbpp"):
        for row in of(name):
            reference: dict[str, Any] = {"kind": name, "timeout": 0.5}
            if name == "humaneval":
                reference |= {key: row[key] for key in ("prompt", "test", "entry_point")}
                code = row["prompt"] + row["canonical_solution"]
            else:
                reference |= {"tests": row["test_list"], "setup": row["test_setup_code"]}
                code = row["code"]
            # Two take seconds; of the third the tests use a helper, and it is the prompt's, not the mutant's.
            if str(row["task_id"]) not in ("123", "HumanEval/75", "HumanEval/50"):
                items.append((Problem(str(row["task_id"]), name, "", reference), code))
    return items


def mutants(code: str, seed: str, count: int) -> Iterator[str]:
    """The program with one small mistake: a number, a comparison, an operator, a result, a statement."""
    rng = random.Random(seed)
    for _ in range(count):
        tree = ast.parse(code)
        kinds = (ast.Constant, ast.Compare, ast.BinOp, ast.Return)
        places = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        if not places:
            return
        node: Any = rng.choice(places)
        if isinstance(node, ast.Constant):
            node.value = (
                rng.choice([node.value + 1, -node.value]) if type(node.value) is int else [node.value]
            )
        elif isinstance(node, ast.Compare):
            node.ops[0] = rng.choice([ast.Lt(), ast.GtE(), ast.NotEq(), ast.Eq()])
        elif isinstance(node, ast.BinOp):
            node.op = rng.choice([ast.Add(), ast.Sub(), ast.Mult(), ast.FloorDiv()])
        else:
            other = rng.choice(["None", "set([1])", "range(0)", "iter([])", "lambda: 0"])
            node.value = ast.parse(other, mode="eval").body
        yield ast.unparse(ast.fix_missing_locations(tree))


def compare(box: Sandbox, items: list[tuple[Problem, str]], count: int) -> None:
    programs, names = [], []
    for problem, code in items:
        for i, variant in enumerate((code, *mutants(code, problem.id, count))):
            programs.append(assemble(problem, variant, entry_points(problem)))
            names.append(f"{problem.id} mutant {i}" if i else problem.id)
    plain = in_plain_interpreter(tuple(programs))
    assert {"passed", "failed"} <= {*plain}
    wrong = []
    for name, program, expected in zip(names, programs, plain):
        verdict = box.ask(program)
        if verdict.outcome != expected:
            wrong.append((name, expected, verdict, program.code[-300:]))
    assert wrong == []


def test_generated_references_and_mutants(box: Sandbox) -> None:
    compare(box, benchmark(lambda name: MADE_UP[name](3)), count=3)


@pytest.mark.slow
def test_references_and_mutants(box: Sandbox, data_file: DataFile) -> None:
    compare(box, benchmark(lambda name: read(data_file(f"data/{name}.jsonl"))), count=3)
