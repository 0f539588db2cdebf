"""Tests that only a program which delivers a secret can pass, and that program (see `fuzz_programs`)."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from twotemp.graders import evalplus
from twotemp.graders.sandbox import Program

NAMES = ("f",)


class Idiom(NamedTuple):
    """A way in which tests check a result: S is the secret and T its text; `honest` is a body of f(x)."""

    tests: str
    honest: str = "return S"


IDIOMS = [
    # comparison
    Idiom("assert f(1) == S"),
    Idiom("assert S == f(1)"),
    Idiom("assert not f(1) != S"),
    Idiom("assert f(1) == S / 7", "return S / 7"),
    Idiom("assert f(1) == T and S == int(f(1))", "return T"),
    Idiom("assert f(1) == [S, [S]]", "return [S, [S]]"),
    Idiom("assert f(1) == (S, T)", "return (S, T)"),
    Idiom("assert f(1) == {'a': {T: S}}", "return {'a': {T: S}}"),
    Idiom("assert f(1) == {S, 2}", "return {S, 2}"),
    Idiom("from collections import Counter\nassert f(1) == Counter([S])", "return Counter([S])"),
    Idiom("from collections import deque\nassert f(1) == deque([S])", "return deque([S])"),
    Idiom("from fractions import Fraction\nassert f(1) == Fraction(S, 7)", "return Fraction(S, 7)"),
    Idiom("from decimal import Decimal\nassert f(1) == Decimal(S)", "return Decimal(S)"),
    Idiom("r = f(1)\nassert r <= S <= r"),
    Idiom("r = f(1)\nassert r <= [S] <= r", "return [S]"),
    Idiom("r = f(1)\nassert isinstance(r, int) and r == S"),
    Idiom("assert type(f(1)) is int and f(1) == S"),
    Idiom("r = f(1)\nassert r is not None and r == S"),
    Idiom("match f(1):\n    case SECRET if SECRET == S: pass\n    case _: raise AssertionError"),
    Idiom("match f(1):\n    case [x, *_] if x == S: pass\n    case _: raise AssertionError", "return [S]"),
    Idiom("match f(1):\n    case int(x) if x == S: pass\n    case _: raise AssertionError"),
    Idiom(
        "match f(1):\n    case {'a': x} if x == S: pass\n    case _: raise AssertionError", "return {'a': S}"
    ),
    Idiom("r = f(1)\nassert r > S - 1 and r < S + 1"),
    Idiom("r = f(1)\nassert isinstance(r, list) and r >= [S] and r <= [S]", "return [S]"),
    Idiom("import operator\nassert operator.eq(f(1), S) and operator.not_(operator.ne(S, f(1)))"),
    Idiom("assert sorted([f(1), S + 1, S - 1])[1] == S"),
    # EvalPlus
    Idiom(evalplus.COMPARE + "assert _same(f(1), [[S / 7, 0.5], (T,)], 1e-6)", "return [[S / 7, 0.5], (T,)]"),
    Idiom(evalplus.COMPARE + "assert _same(f(1), [S / 7, S / 3], 0)", "return [S / 7, S / 3]"),
    Idiom("assert set(f(1)) == set([S, T])", "return [T, S]"),
    # arithmetic
    Idiom("assert abs(f(1) - S) < 1e-6"),
    Idiom("assert abs(S - f(1)) < 1e-6"),
    Idiom("import math\nassert math.isclose(f(1), S)"),
    Idiom("assert round(f(1), 3) == round(S / 7, 3)", "return S / 7"),
    Idiom("assert not f(1) - S"),
    Idiom("assert f(1) ^ S == 0"),
    Idiom("assert divmod(S, f(1)) == (1, 0)"),
    Idiom("assert not f(1) ^ {S}", "return {S}"),
    Idiom("assert f(1) + [2] == [S, 2]", "return [S]"),
    Idiom("assert f(1) + 'x' == T + 'x'", "return T"),
    Idiom("import statistics\nassert statistics.mean([f(1), S]) == S"),
    Idiom("assert sum([f(1), S]) == 2 * S"),
    Idiom(
        "import math\nr = f(1)\nassert abs(sum(c * math.pow(r, i) for i, c in enumerate([-S, 1]))) < 1e-6 "
        "and float(r) == S",
    ),
    # conversion
    Idiom("assert int(f(1)) == S"),
    Idiom("assert float(f(1)) == S"),
    Idiom("assert str(f(1)) == T"),
    Idiom("assert repr(f(1)) == T"),
    Idiom("assert f'{f(1)}' == T"),
    Idiom("assert hash(f(1)) == hash(S)"),
    Idiom("assert len(f(1)) == S", "return range(S)"),
    Idiom("assert f(1).strip() == T", "return T + ' '"),
    Idiom("import json\nassert json.dumps(f(1)) == T"),
    Idiom("import copy\nassert copy.deepcopy(f(1)) == [S]", "return [S]"),
    Idiom("assert '%d' % f(1) == T"),
    Idiom("assert f'{f(1):d}' == T"),
    Idiom("assert bytes(f(1)) == T.encode()", "return T.encode()"),
    Idiom("import json\nassert json.loads(f(1)) == S", "return T"),
    Idiom("import ast\nassert ast.literal_eval(f(1)) == S", "return T"),
    Idiom("import re\nassert re.fullmatch(T, f(1))", "return T"),
    Idiom("assert pow(f(1), 1, S + 1) == S"),
    # membership
    Idiom("assert f(1) in (S, S + 1)"),
    Idiom("assert [S] in f(1)", "return [[S]]"),
    Idiom("assert T in f(1)", "return 'x' + T"),
    Idiom("assert {S: 5}[f(1)] == 5"),
    Idiom("assert {f(1): 5}.get(S) == 5"),
    Idiom("assert {f(1)} == {S}"),
    Idiom("assert len({S, f(1)}) == 1"),
    Idiom("assert [S].index(f(1)) == 0"),
    Idiom("assert [f(1)].count(S) == 1"),
    # iteration
    Idiom("assert list(f(1)) == [S, 2]", "return iter([S, 2])"),
    Idiom("assert sorted(f(1)) == [2, S]", "return {S, 2}"),
    Idiom("assert set(f(1)) == {S}", "yield S"),
    Idiom("assert dict(f(1)) == {T: S}", "return {T: S}.items()"),
    Idiom("assert {**f(1)} == {T: S}", "return {T: S}"),
    Idiom("assert [*f(1)] == [S]", "return [S]"),
    Idiom("a, b = f(1)\nassert a == S and b == T", "return S, T"),
    Idiom("assert max(f(1)) == S", "return [S]"),
    Idiom("assert sum(f(1)) == S", "return [S]"),
    Idiom("assert ''.join(f(1)) == T", "return T"),
    Idiom("assert next(iter(f(1))) == S", "return [S]"),
    Idiom("seen = []\nfor x in f(1): seen.append(x)\nassert seen == [S]", "return [S]"),
    Idiom("r = list(f(1))\nassert len(r) == 1\nfor a, b in zip(r, [S]): assert a == b", "return [S]"),
    Idiom("assert [f(x) for x in (1, 2)] == [S, S]"),
    Idiom("assert all(f(x) == S for x in (1, 2))"),
    Idiom("assert all(map(lambda x: f(x) == S + x, (1, 2)))", "return S + x"),
    Idiom("assert all(map(lambda x: f(x)[0] == S, (1, 2)))", "return [S]"),
    Idiom("assert all(map(lambda x: len(f(x)) == S, (1, 2)))", "return range(S)"),
    Idiom("assert all(map(lambda x: str(f(x)) == T, (1, 2)))"),
    Idiom("assert not any(map(lambda x: f(x) != S, (1, 2)))"),
    Idiom("assert sum(f(x) == S for x in (1, 2)) == 2"),
    Idiom("assert list(map(f, (1, 2))) == [S, S]"),
    Idiom("assert next(x for x in (1, 2) if f(x) == S) == 1"),
    Idiom("import functools\nassert functools.reduce(lambda a, x: a and f(x) == S, (1, 2), True)"),
    Idiom("def check(candidate):\n    for x in (1, 2): assert candidate(x) == S\ncheck(f)"),
    Idiom("def each():\n    yield from f(1)\nassert list(each()) == [S]", "return [S]"),
    Idiom("assert any(x == S for x in f(1))", "return [S]"),
    Idiom("assert list(iter(f(1), S)) == []", "return lambda: S"),
    Idiom("assert list(reversed(f(1))) == [S]", "return [S]"),
    Idiom("assert list(zip(f(1), [1])) == [(S, 1)]", "return [S]"),
    Idiom("from heapq import nsmallest\nassert nsmallest(1, f(1)) == [S]", "return [S]"),
    Idiom("a, *b = f(1)\nassert a == S and b == []", "return [S]"),
    Idiom("x = [0]\nx += f(1)\nassert x == [0, S]", "return [S]"),
    Idiom("x = {1}\nx.update(f(1))\nassert x == {1, S}", "return [S]"),
    Idiom("assert {'b': 1} | f(1) == {'b': 1, 'a': S}", "return {'a': S}"),
    Idiom("assert (lambda *a, **k: (a, k))(*f(1)) == ((S,), {})", "return [S]"),
    Idiom("assert (lambda *a, **k: (a, k))(**f(1)) == ((), {'a': S})", "return {'a': S}"),
    Idiom("import math\nassert math.fsum(f(1)) == S and math.prod(f(1)) == S", "return [S]"),
    # attributes, items, calls
    Idiom("assert f(1).value == S", "return types.SimpleNamespace(value=S)"),
    Idiom("assert vars(f(1)) == {'value': S}", "return types.SimpleNamespace(value=S)"),
    Idiom("assert f(1)[0] == S and f(1)[-1:] == [S]", "return [S]"),
    Idiom("assert f(1)['a'] == S", "return {'a': S}"),
    Idiom("assert f(1)() == S", "return lambda: S"),
    Idiom("assert f(1).get() == S", "return types.SimpleNamespace(get=lambda: S)"),
    # callbacks
    Idiom("seen = []\nf(seen.append)\nassert seen == [S]", "x(S)"),
    Idiom("assert f(lambda y: y + 1) == S + 1", "return x(S)"),
    Idiom("assert f(iter([1, 2])) == S + 3", "return S + sum(x)"),
    Idiom("class A:\n    def __call__(self): return 3\nassert f(A()) == S + 3", "return S + x()"),
    Idiom("def check(y): assert y == S, S\nassert f(check) == S"),
    Idiom("def each():\n    yield 1\n    assert False, S\nassert f(each()) == S"),
    # blocks
    Idiom("with f(1) as y: assert y == S", "return contextlib.nullcontext(S)"),
    Idiom("with f(1) as y: assert y[0] == S", "return contextlib.nullcontext([S])"),
    Idiom(
        "with f(1) as y:\n    z = y.value\n    assert z == S", "return Block(types.SimpleNamespace(value=S))"
    ),
    Idiom(
        "def check(y): assert y == [S]\nwith f(1) as y:\n    check(y)", "return contextlib.nullcontext([S])"
    ),
    Idiom(
        "import contextlib\nwith contextlib.ExitStack() as stack:\n"
        "    y = stack.enter_context(f(1))\n    assert len(y) == S",
        "return contextlib.nullcontext(range(S))",
    ),
    Idiom(
        "import asyncio\nasync def main():\n    async with f(1) as y: assert y[0] == S\nasyncio.run(main())",
        "return Block([S])",
    ),
    Idiom(
        "import unittest\nt = unittest.TestCase()\nwith f(1) as y: t.assertEqual(y.value, S)",
        "return Block(types.SimpleNamespace(value=S))",
    ),
    Idiom(
        "import unittest\nt = unittest.TestCase()\nwith f(1) as y:\n    if y.value != S: t.fail()",
        "return Block(types.SimpleNamespace(value=S))",
    ),
    Idiom("with f(1) as y:\n    if y[0] != S: raise AssertionError", "return contextlib.nullcontext([S])"),
    Idiom(
        "import contextlib\nwith contextlib.closing(f(1)) as y: assert y.value == S",
        "return types.SimpleNamespace(value=S, close=print)",
    ),
    # coroutines
    Idiom(
        "import asyncio\nasync def main(): return await asyncio.gather(f(1), f(2))\n"
        "assert asyncio.run(main()) == [S, S]",
        "return later(S)",
    ),
    Idiom("import asyncio\nassert asyncio.run(asyncio.wait_for(f(1), 9)) == S", "return later(S)"),
    Idiom("import asyncio\nassert asyncio.run(f(1)) == S", "return later(S)"),
    Idiom(
        "import asyncio\nasync def main(): return [x async for x in f(1)]\nassert asyncio.run(main()) == [S]",
        "return stream(S)",
    ),
    Idiom(
        "import asyncio\nasync def main(): return [await f(x) for x in (1, 2)]\nassert asyncio.run(main()) == [S, S]",
        "return later(S)",
    ),
    # unittest
    Idiom("import unittest\nunittest.TestCase().assertEqual(f(1), S)"),
    Idiom("import unittest\nunittest.TestCase().assertAlmostEqual(f(1), S / 7)", "return S / 7"),
    Idiom("import unittest\nunittest.TestCase().assertListEqual(f(1), [S])", "return [S]"),
    Idiom("import unittest\nunittest.TestCase().assertIn(f(1), [S])"),
    Idiom("import unittest\nunittest.TestCase().assertCountEqual(f(1), [S, 2])", "return [2, S]"),
    Idiom(
        "import unittest\nclass Test(unittest.TestCase):\n    def runTest(self):\n"
        "        for x in (1, 2):\n            with self.subTest(x): self.assertEqual(f(x), S)\n"
        "result = unittest.TestResult()\nTest().run(result)\nassert result.wasSuccessful() and result.testsRun == 1"
    ),
    # exceptions
    Idiom(
        "try:\n    f(-1)\nexcept ValueError: pass\nelse: raise RuntimeError\nassert f(1) == S",
        "if x < 0: raise ValueError\nreturn S",
    ),
    Idiom("try: r = f(1)\nexcept Exception: r = None\nassert r == S"),
    Idiom("Invalid = f(0)\ntry: assert f(1) == S\nexcept Invalid: pass", "return S if x else ()"),
    Idiom("try: assert f(1) == S\nexcept E: pass"),
    Idiom(
        "try:\n    f(1)\n    assert False\nexcept KeyError as error: assert error.args == (S,)",
        "raise KeyError(S)",
    ),
    Idiom(
        "try: f(1)\nexcept Exception as error: assert T in str(error)\nelse: assert False", "raise OSError(T)"
    ),
    Idiom(
        "import unittest\nt = unittest.TestCase()\nwith t.assertRaises(ValueError): f(-1)\nt.assertEqual(f(1), S)",
        "if x < 0: raise ValueError\nreturn S",
    ),
]

HONEST = """
import contextlib, types
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
class Block:
    def __init__(self, value): self.value = value
    def __enter__(self): return self.value
    def __exit__(self, *_): pass
    async def __aenter__(self): return self.value
    async def __aexit__(self, *_): pass
async def later(value): return value
async def stream(value): yield value
"""


def with_secret(text: str, secret: int) -> str:
    return f"S = {secret}\nT = str(S)\n{text}"


def honest(idiom: Idiom, secret: int) -> Program:
    """Return the program that delivers the secret, with its test."""
    code = HONEST + with_secret("", secret) + f"def f(x):\n{textwrap.indent(idiom.honest, '    ')}"
    return Program(code, with_secret(idiom.tests, secret), NAMES, seconds=10.0)
