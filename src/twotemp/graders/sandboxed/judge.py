"""The process that runs the tests. No line of the program runs here: the judge asks for values and compares them.

"passed" is a positive fact. This process says it at one place, after the last statement of the tests has returned,
if the tests have used the program and the channel to it is intact, on a socket that only the judge and the server
hold. Everything else is a failure of the program.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import operator
import random
import sys
import traceback
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType
from typing import Any

from .channel import Channel
from .mirrors import Mirrors, StandIn, StandInClass, original
from .values import decode, encode, shared_exception

_LONGEST_TEXT = 200  # characters of each part of a reason
_BY_NAME = (type, FunctionType, BuiltinFunctionType, MethodDescriptorType)
_CHANGING_NOTHING = ("plain", "describe")  # asked for by what the tests do with an earlier answer
_FAILING = ("fail", "AssertionError")  # names in other statements that assert: t.fail(), raise AssertionError
_LENT = ("__call__", "__iter__", "__next__")  # what the program may do with an object of the tests
# Python takes these for the end of an iteration, and `all(map(check, cases))` for the end of the cases.
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)
# Their `except` clause also catches a failed assertion of the tests, so the program may not give one of them.
_CATCHING_ASSERTIONS = frozenset({AssertionError, Exception, BaseException})


class Assertions:
    """Tells which `with` blocks of the tests contain assertions.

    The `__exit__` method of a program's class may ask Python to drop the exception that leaves the block, and with
    it the assertions that were not reached. A block that contains assertions therefore drops nothing.

    Args:
        sources: The texts that run here, by the file names they were compiled with.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources
        self._trees: dict[str, ast.Module] = {}
        # Names of functions that contain an assertion or call one that does.
        self._asserting: set[str] = set()

    def in_current_block(self) -> bool:
        """Return whether the `with` block that Python is leaving contains an assertion; True if in doubt."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in self._sources:
            frame = frame.f_back
        if frame is None:
            return True
        self._parse()
        line = frame.f_lineno  # while a block is left, the line of its context expression
        blocks = [
            node
            for node in ast.walk(self._trees[frame.f_code.co_filename])
            if isinstance(node, (ast.With, ast.AsyncWith))
            and node.lineno <= line <= (node.items[-1].context_expr.end_lineno or line)
        ]
        return not blocks or any(self._asserts(statement) for block in blocks for statement in block.body)

    def _parse(self) -> None:
        if self._trees:
            return
        self._trees = {name: ast.parse(source) for name, source in self._sources.items()}
        functions = [
            node
            for tree in self._trees.values()
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        count = -1
        while count != len(self._asserting):  # until no caller of an asserting function is left
            count = len(self._asserting)
            self._asserting |= {function.name for function in functions if self._asserts(function)}

    def _asserts(self, tree: ast.AST) -> bool:
        return any(self._is_assertion(node) for node in ast.walk(tree))

    def _is_assertion(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Assert):
            # `assert False` marks a line that is never reached.
            return not isinstance(node.test, ast.Constant)
        name = getattr(node, "id", None) or getattr(node, "attr", None) or ""
        return name.startswith("assert") or name in _FAILING or name in self._asserting


class ProgramChannel(Channel):
    """The judge's end of the channel to the program.

    Args:
        requests: File descriptor to which questions are written.
        replies: File descriptor from which the program's answers are read.
        sources: The texts that run here, by the file names they are compiled with.
    """

    def __init__(self, requests: int, replies: int, sources: dict[str, str]) -> None:
        self.questions = 0  # to the program, as far as the answer may change something
        self._assertions = Assertions(sources)
        self._mirrors = Mirrors()
        self._mirrors.channel = self
        self._lent: dict[int, Any] = {}  # objects of the tests that the program has a reference to
        super().__init__(
            replies,
            requests,
            lambda value: encode(value, self._export),
            lambda data: decode(data, self._resolve, _CATCHING_ASSERTIONS),
            {
                "__call__": lambda value, arguments, named: _call_test(
                    self._borrowed(value), *arguments, **named
                ),
                "__iter__": lambda value, arguments, named: _call_test(iter, self._borrowed(value)),
                "__next__": lambda value, arguments, named: _call_test(next, self._borrowed(value)),
            },
        )

    def ask(self, operation: str, *arguments: Any, ends: tuple[type[BaseException], ...] = ()) -> Any:
        """Ask the program; `ends` are the ends of an iteration that this question may be answered with."""
        self.questions += operation not in _CHANGING_NOTHING
        try:
            return super().ask(operation, *arguments)
        except _ENDS as error:
            if isinstance(error, ends):
                raise
            raise RuntimeError(f"the program raised {type(error).__name__}") from error

    def may_drop_exception(self) -> bool:
        """Return whether the program may drop the exception that leaves the current `with` block."""
        return not self._assertions.in_current_block()

    def _export(self, value: Any) -> Any:
        if (tag := original(value)) is not None:
            return tag
        if (path := _path(value)) is not None:
            return {"global": path}
        if isinstance(value, BaseException):
            return self._encode(shared_exception(value)(*value.args))
        number = id(value)
        self._lent[number] = value
        can = [name for name in _LENT if hasattr(type(value), name)]
        return {"test": number, "can": can, "name": getattr(value, "__name__", None)}

    def _resolve(self, tag: dict[str, Any]) -> Any:
        if "test" in tag:
            return self._lent[tag["test"]]
        return self._mirrors.stand_in(tag, self._decode(tag.get("plain")))

    def _borrowed(self, value: Any) -> Any:
        if self._lent.get(id(value)) is not value:
            raise TypeError("not an object of the tests that the program was given")
        return value


def _call_test(function: Any, /, *arguments: Any, **named: Any) -> Any:
    try:
        return function(*arguments, **named)
    except AssertionError:
        raise AssertionError from None  # its message may contain the value that was expected


def _path(value: Any) -> tuple[str, str] | None:
    """Return where the program's process finds a function or class of the standard library; None for others."""
    module = getattr(value, "__module__", None) or "builtins"
    if not isinstance(value, _BY_NAME) or module == "tests":
        return None
    try:
        named = operator.attrgetter(value.__qualname__)(sys.modules[module])
    except (AttributeError, KeyError):
        return None
    return (module, value.__qualname__) if named == value else None


class _Names(dict[str, Any]):
    """The global names of the tests: their own, then Python's, then the program's (`names` before Python's)."""

    def __init__(self, program: ProgramChannel, names: list[str]) -> None:
        super().__init__({"__name__": "tests"})
        self._program = program
        self._names = names
        self.functions: dict[str, Any] = {}  # those of the program, known from the start

    def __missing__(self, name: str) -> Any:
        if name.startswith("__") or (hasattr(builtins, name) and name not in self._names):
            raise KeyError(name)
        value = self.functions[name] if name in self.functions else self._program.ask("name", name)
        if name in sys.stdlib_module_names and name not in self._names:
            # A module that the program imported is there for the tests as well, but it is Python's own `math`.
            if type(value).__name__ != "module":
                raise NameError(f"name {name!r} is not defined: tests import what they use")
            return importlib.import_module(name)
        if isinstance(value, (StandIn, StandInClass)):
            self[name] = value
        return value


class _Module:
    """Takes the place of the tests in `sys.modules`: the names of a real module must be a plain dict."""


def judge(requests: int, replies: int, prelude: str, names: list[str], tests: str) -> dict[str, str]:
    """Run the tests with the program's names in place and return the verdict.

    Args:
        requests: File descriptor to which questions to the program are written.
        replies: File descriptor from which its answers are read.
        prelude: Source that runs before the tests, without the program.
        names: Names that are the program's even where Python or the prelude has them.
        tests: Source of the tests.

    Returns:
        The outcome, "passed" or "failed", and a detail that says why, for people.
    """
    random.seed(tests)  # some tests draw their inputs: the same ones each time, and not known to the program
    program = ProgramChannel(requests, replies, {"<prelude>": prelude, "<tests>": tests})
    namespace = _Names(program, names)
    module = _Module()
    module.__dict__ = namespace
    sys.modules["tests"] = module  # type: ignore[assignment]
    try:
        functions = program.wait()
        if type(functions) is not dict:
            raise TypeError("the program's functions are not a dict")
        namespace.functions = functions
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), namespace)
        for name in names:
            namespace.pop(name, None)
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), namespace)
    except BaseException as error:
        return {"outcome": "failed", "detail": program.broken or _reason(error, tests)}
    finally:
        program.close()
    if program.broken is not None:  # and the tests caught the exception that said so
        return {"outcome": "failed", "detail": program.broken}
    if not program.questions:
        return {"outcome": "failed", "detail": "the tests ended without using the program"}
    return {"outcome": "passed", "detail": ""}


def _reason(error: BaseException, tests: str) -> str:
    """Return what went wrong, for people. The class, its name and its text may all be the program's."""
    parts = [type(error).__name__[:_LONGEST_TEXT] or "an exception without a name"]
    try:
        # Python's own slice of what may be a subclass.
        text = str.__getitem__(str(error), slice(_LONGEST_TEXT))
        parts += [": ", text] if text else []
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<tests>"]
        if lines and lines[-1]:
            parts += [" in `", tests.splitlines()[lines[-1] - 1].strip()[:_LONGEST_TEXT], "`"]
    except BaseException:
        parts += [" (whose text cannot be read)"]
    return "".join(parts)
