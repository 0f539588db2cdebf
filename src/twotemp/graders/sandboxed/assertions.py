"""Which `with` blocks of the tests contain assertions.

The `__exit__` method of a program's class may ask Python to drop the exception that leaves the block, and with it
the assertions that were not reached. A block that contains assertions therefore drops nothing.
"""

from __future__ import annotations

import ast
import sys
from types import FrameType


class Assertions:
    """The assertions of some source texts, by the file names they were compiled with."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources
        self._trees: dict[str, ast.Module] = {}
        self._asserting: set[str] = (
            set()
        )  # names of functions that contain an assertion or call one that does

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
            return not isinstance(
                node.test, ast.Constant
            )  # `assert False` marks a line that is never reached
        name = getattr(node, "id", None) or getattr(node, "attr", None) or ""
        return name.startswith("assert") or name in self._asserting
