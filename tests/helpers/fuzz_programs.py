"""A grammar of hostile programs and of the tests they try to pass, for fuzzing the sandbox.

A case is a program and a test. The test passes only if the program delivers a secret, a random number that is drawn
independently of the program's text and that the test never hands to the program. No generated program can therefore
implement the function: a case that passes is a hole, and so is one that is `ungraded`, because ungraded samples are
left out of scores. `honest` is the program that knows the secret; it shows that every test can be passed.

Programs come in groups that share one test, as the samples of one question do.

    python -m tests.helpers.fuzz_programs landlock --cases 3000
"""

from __future__ import annotations

import argparse
import random
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from twotemp.graders.sandbox import Program, Sandbox

GROUP = 4  # programs for each test
SECONDS = 0.3
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
    Idiom("r = f(1)\nassert isinstance(r, int) and r == S"),
    Idiom("assert type(f(1)) is int and f(1) == S"),
    Idiom("r = f(1)\nassert r is not None and r == S"),
    Idiom("match f(1):\n    case SECRET if SECRET == S: pass\n    case _: raise AssertionError"),
    Idiom("match f(1):\n    case [x, *_] if x == S: pass\n    case _: raise AssertionError", "return [S]"),
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
    # coroutines
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

# What every hostile program may use: the channel, its descriptors, and helpers.
PREAMBLE = """
import asyncio, collections, contextlib, dataclasses, decimal, enum, fractions, functools, itertools, json, math, os
import sys, time, types, unittest, unittest.mock
frame = sys._getframe()
while frame and 'channel' not in frame.f_locals: frame = frame.f_back
channel = frame.f_locals['channel']
operations, objects = channel._operations, frame.f_locals['objects']
candidate, values = sys.modules['sandboxed.candidate'], sys.modules['sandboxed.values']
answers = itertools.cycle([True, 0, -math.inf, math.inf, math.nan, '', [], None])
Point = collections.namedtuple('Point', 'x y')
Color = enum.IntEnum('Color', 'RED GREEN')
@dataclasses.dataclass(order=True)
class Data:
    value: object = 0
class Liar:
    __eq__ = __contains__ = __bool__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other=0: True
    __ne__ = lambda self, other: False
    __hash__ = lambda self: 0
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __xor__ = __rxor__ = __or__ = lambda self, other: 0
    __abs__ = __round__ = lambda self, *a: 0
    __divmod__ = __rdivmod__ = lambda self, other: (1, 0)
    __iter__ = lambda self: iter(())
    __len__ = lambda self: 0
    __getattr__ = lambda self, name: lambda *a: True
class Willing:
    __getattr__ = lambda self, name: lambda *a: True if name in ('__contains__', '__eq__') else 0
def throw(error): raise error
def write(data): os.write(channel._writing, len(data).to_bytes(8, 'little') + data)
def send(*content): write(json.dumps(content).encode())
def forge(**changes):
    real = operations['describe']
    def describe(kind):
        about = real(kind)
        return {**about, **changes} if kind.__module__ == 'program' else about
    operations['describe'] = describe
def scan():
    import ctypes, gc, re
    items = [*gc.get_objects(), *(name for module in sys.modules.values() for name in vars(module))]
    for spot in {id(item) >> 18 for item in items}:
        for number in re.findall(rb'S = ([0-9]{7,9})', ctypes.string_at(spot << 18, 1 << 18)): return int(number)
"""

# Contents of an object derived from a built-in type that are no such contents.
FORGED_CONTENTS = """
operations['plain'] = lambda content: FORGED()
for table in (candidate.CONTENTS, candidate.CHANGING):
    for kind in table: table[kind] = lambda content: FORGED()
"""

EXCEPTIONS = (
    "Exception() ValueError(1) KeyError('x') TypeError() StopIteration() StopIteration(7) StopAsyncIteration() "
    "GeneratorExit() SystemExit(0) SystemExit() KeyboardInterrupt() AssertionError() RecursionError() MemoryError() "
    "IndexError() AttributeError() NotImplementedError() EOFError() OSError(2,'no','name') UnicodeError() "
    "type('',(Exception,),{})() type('',(SystemExit,),{})() type('a'*70000,(BaseException,),{})() "
    "unittest.SkipTest() asyncio.CancelledError() ExceptionGroup('',[ValueError()]) Warning() Own() OwnStop() "
    "OwnAssertion()"
).split()
PLAIN = (
    "Liar() None True False 0 1 -1 7 2**70 0.0 math.nan math.inf -math.inf '' 'a' '7' b'' b'7' [] [0] (0,) () {} {0} "
    "set() "
    "{'a':0} {0:0} frozenset() 0j complex('nan') range(3) range(2**40) slice(None) ... NotImplemented int object "
    "type Exception AssertionError decimal.Decimal('NaN') decimal.Decimal('sNaN') decimal.Decimal(7) "
    "fractions.Fraction(1,2) collections.Counter() collections.Counter('aab') collections.deque([0]) "
    "collections.defaultdict(int) collections.defaultdict(lambda:C()) collections.OrderedDict() Point(0,0) Color.RED "
    "Data() Data(C()) unittest.mock.ANY unittest.mock.MagicMock() types.SimpleNamespace(value=0) iter([]) iter([0]) "
    "(i_for_i_in_range(2)) itertools.count() (lambda*_:0) len map(str,[1]) functools.partial(int) memoryview(b'7') "
    "contextlib.nullcontext(0) contextlib.suppress(BaseException) {}.keys() {0:0}.items() next(answers) Own() C E "
    "ExceptionGroup('m',[ValueError()]) coroutine() agen() manager(0) amanager(0) scan() object() super types"
).split()
BASES = (
    "object int float complex str bytes tuple frozenset list dict set bytearray collections.deque Exception "
    "AssertionError StopIteration SystemExit ValueError OSError collections.Counter collections.OrderedDict "
    "collections.defaultdict fractions.Fraction decimal.Decimal enum.Enum unittest.TestCase unittest.mock.MagicMock "
    "Point contextlib.ContextDecorator collections.UserList collections.UserDict collections.abc.Sequence"
).split()
MUTABLE = "list dict set bytearray collections.deque".split()
ENDS = "StopIteration() StopIteration(7) StopAsyncIteration() GeneratorExit() OwnStop()".split()
METHODS = (
    "eq ne lt le gt ge hash bool repr str bytes format len length_hint getitem iter next reversed contains missing "
    "add sub mul truediv floordiv mod divmod pow and xor or radd rsub rmul rtruediv rdivmod rxor ror neg pos "
    "abs invert complex int float index round trunc floor ceil call enter exit await aiter anext aenter aexit "
    "getattr class instancecheck subclasscheck get set set_name init_subclass class_getitem mro_entries "
    "reduce_ex deepcopy copy "
    "fspath del dict bases"
).split()
TYPES = "int str list dict tuple set float object Exception StopIteration SystemExit AssertionError NoneType".split()
TAGS = (
    "int tuple dict set frozenset bytes complex range slice Decimal Fraction date deque OrderedDict Counter "
    "defaultdict array dict_keys dict_items raise type NotImplementedType object class test global plain of"
).split()


class Grammar:
    """Draws program texts from one stream of random numbers.

    Half of them suit the form of the test (a block, a coroutine), which an attacker may know. The secret is unknown.
    """

    def __init__(self, seed: object, idiom: Idiom) -> None:
        self._random = random.Random(f"program {seed}")
        self._block = "with f(1)" in idiom.tests or "enter_context" in idiom.tests
        self._later = "async" in idiom.tests
        self._always = ""  # a result of most methods

    def program(self) -> str:
        """Return the text of a hostile program; a quarter of them put all their methods to one purpose."""
        theme = self._random.random()
        if theme < 0.15:
            forged = FORGED_CONTENTS.replace("FORGED", self._pick(["Liar", "Willing", "Willing"]))
            classes = self._classes(self._pick(MUTABLE))
            return "\n".join((PREAMBLE, classes, forged, "def f(x): return C()"))
        if theme < 0.25:
            self._always = f"throw({self._pick(ENDS)})"
            return "\n".join((PREAMBLE, self._classes(), "def f(x): return C()"))
        parts = [PREAMBLE, self._classes()]
        parts += [self._attack() for _ in range(self._random.choice((0, 0, 1, 1, 2, 3)))]
        parts.append(self._function())
        if self._chance(0.1):
            parts.append(f"raise {self._exception()}")
        if self._chance(0.1):
            parts.append(f"f = {self._value()}")
        return "\n".join(parts)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _pick(self, items: list[str]) -> str:
        return self._random.choice(items).replace("_for_", " for ").replace("_in_", " in ")

    def _exception(self) -> str:
        return self._pick(EXCEPTIONS)

    def _value(self, depth: int = 0) -> str:
        kind = self._random.random()
        if kind < 0.35:
            return "C()"
        if depth < 2 and kind < 0.45:
            form = self._pick(["[{}]", "({},)", "{{'a': {}}}", "iter([{}])", "Data({})", "lambda *_: {}"])
            return form.format(self._value(depth + 1))
        return self._pick(PLAIN)

    def _result(self) -> str:
        """Return an expression for the result of a method, which may use its arguments."""
        kind = self._random.random()
        if self._always and kind < 0.8:
            return self._always
        if kind < 0.12:
            return f"throw({self._exception()})"
        if kind < 0.5:
            return self._pick(
                "True False self a[-1:]and(a[-1]) NotImplemented 0 a 0.0 '' next(answers)".split()
            )
        return self._value()

    def _classes(self, base: str = "") -> str:
        bases = [base] if base else self._random.sample(BASES, self._random.choice((0, 1, 1, 1, 2)))
        count = self._random.choice((0, 2, 5, 12, len(METHODS)))
        if base:
            count = len(METHODS)
        if self._always:
            bases, count = [], len(METHODS)
        elif self._chance(0.2):
            self._always = f"throw({self._exception()})"
        lines = ["class Own(Exception): pass", "class OwnStop(StopIteration): pass"]
        lines += ["class OwnAssertion(AssertionError): pass", "class E(Exception):"]
        lines.append(f"    __str__ = __eq__ = lambda self, *a: {self._result()}")
        lines.append("async def coroutine(): return 0")
        lines.append(f"async def agen():\n    yield {self._pick(PLAIN[:30])}")
        swallow = "try: yield value\n    except BaseException: pass"
        lines.append(f"@contextlib.contextmanager\ndef manager(value):\n    {swallow}")
        lines.append(f"@contextlib.asynccontextmanager\nasync def amanager(value):\n    {swallow}")
        body = [
            f"__{name}__ = lambda self, *a: {self._result()}" for name in self._random.sample(METHODS, count)
        ]
        if self._chance(0.05):  # which may leave no object at all
            body.append(f"__{self._pick(['new', 'getattribute'])}__ = lambda self, *a: {self._result()}")
        if self._block or self._chance(0.1):
            body.append("__enter__ = lambda self: " + self._value())
            body.append("__exit__ = lambda self, *a: True")
        if self._later or self._chance(0.1):
            body.append("async def __aenter__(self): return " + self._value())
            body.append("async def __aexit__(self, *a): return True")
        body.append(f"value = get = property(lambda self: {self._result()})")
        meta = ""
        if self._chance(0.15):
            methods = self._random.sample(METHODS, 3)
            text = "\n".join(f"    __{name}__ = lambda cls, *a: {self._result()}" for name in methods)
            lines.append(f"class Meta(type):\n{text}")
            meta = ", metaclass=Meta"
        definition = f"class C({', '.join(bases)}{meta if bases else meta[2:]}):\n" + textwrap.indent(
            "\n".join(body), "    "
        )
        # Many combinations of bases do not exist: then it is a class of no kind.
        lines.append("try:\n" + textwrap.indent(definition + "\nC()", "    "))
        lines.append("except BaseException:\n    class C: __eq__ = lambda *a: True")
        return "\n".join(lines)

    def _json(self, depth: int = 0) -> str:
        kind = self._random.random()
        if depth > 3 or kind < 0.4:
            return self._pick(
                ["null", "true", "0", "1", "2", "-1", "NaN", '""', '"f"', '"function"', "[]", "{}"]
            )
        if kind < 0.55:
            return f"[{', '.join(self._json(depth + 1) for _ in range(self._random.randint(0, 3)))}]"
        if kind < 0.7:
            return f'{{"type": "builtins.{self._pick(TYPES)}"}}'
        if kind < 0.85:
            number, kind_number = self._random.randint(0, 3), self._random.randint(0, 2)
            return f'{{"object": {number}, "of": {kind_number}, "plain": {self._json(depth + 1)}}}'
        return f'{{"{self._pick(TAGS)}": {self._json(depth + 1)}}}'

    def _frame(self) -> str:
        kind = self._pick(["value", "value", "raised", "raised", "ask", "passed", ""])
        content = self._json()
        if kind == "ask":
            operation = self._pick(["__call__", "__iter__", "__next__", "describe", "name", "x"])
            content = f'["{operation}", {self._json()}, {self._json()}, {{"dict": []}}]'
        if kind == "raised" and self._chance(0.7):
            content = f'{{"raise": [{{"type": "builtins.{self._pick(TYPES)}"}}, {self._json()}]}}'
        data = f'["{kind}", {content}]'
        return (
            f"write({data.encode()!r})"
            if self._chance(0.9)
            else f"os.write(channel._writing, {data.encode()!r})"
        )

    def _description(self) -> str:
        field = self._pick(
            ["name", "module", "doc", "base", "base", "bases", "bases", "bases", "can", "hashable"]
        )
        value = {
            "base": self._pick([*BASES, "C", "C()"]),
            "bases": f"[{', '.join(self._random.sample(BASES, self._random.choice((0, 1, 1, 2))))}]",
            "can": f"[{', '.join(repr(f'__{m}__') for m in self._random.sample(METHODS, 8))}]",
        }.get(field, self._value())
        return f"forge({field}={value})"

    def _attack(self) -> str:
        """Return a statement that tampers with the program's own process."""
        operation = self._pick("plain special call getattr name describe await setattr".split())
        value = self._pick(["Liar()", self._value()])
        behaviour = self._pick([f"throw({self._exception()})", value, self._value(), self._frame()])
        table = self._pick(["candidate.CONTENTS", "candidate.CHANGING"])
        return self._random.choice(
            [
                lambda: f"operations[{operation!r}] = lambda *a: {behaviour}",
                lambda: f"operations[{operation!r}] = lambda *a: {behaviour}",
                self._description,
                self._description,
                lambda: f"for kind in {table}: {table}[kind] = lambda content: {value}",
                lambda: f"operations['plain'] = lambda content: {value}",
                lambda: f"objects.export = lambda value: json.loads({self._json()!r})",
                lambda: f"channel._encode = lambda value: json.loads({self._json()!r})",
                lambda: f"channel.answer = lambda action: {self._frame()}",
                lambda: f"objects._kept[:] = [{self._value()}] * 9",
                self._frame,
                lambda: 'print(\'{"outcome": "passed", "detail": ""}\', flush=True)',
                lambda: "for fd in range(3, 64):\n    with contextlib.suppress(OSError): os.close(fd)",
                lambda: (
                    "for fd in range(0, 64):\n    with contextlib.suppress(OSError): os.write(fd, b'r' * 99)"
                ),
                lambda: "sys.settrace(lambda *a: None)",
                lambda: "sys.setrecursionlimit(10 ** 6)",
                lambda: "import builtins; builtins.isinstance = builtins.type = lambda *a: True",
                lambda: "os._exit(0)" if self._chance(0.3) else "pass",
            ]
        )()

    def _function(self) -> str:
        kind = self._random.random()
        if (self._block or self._later) and self._chance(0.5):
            value = self._value()
            if not self._block:
                return f"async def f(x, *a): return {value}"
            block = self._pick(["C()", f"{'a' * self._later}manager({value})"])
            return f"def f(x, *a): return {block}"
        value, result = self._value(), self._result().replace("self", "x").replace("a[-1:]and(a[-1])", "x")
        result = result.replace(" a", " x") if result == "a" else result
        if kind < 0.55:
            return f"def f(x, *a, self=0): return {value}"
        if kind < 0.7:
            return f"def f(x, *a, self=0): return {result}"
        if kind < 0.76:
            return f"def f(x, *a):\n    yield {value}\n    raise {self._exception()}"
        if kind < 0.82:
            return f"async def f(x, *a, self=0): return {result}"
        if kind < 0.86:
            return (
                f"def f(x, *a):\n    try: return x({value})\n    except BaseException: return {self._value()}"
            )
        if kind < 0.92:
            return f"def f(x, *a):\n    {self._frame()}\n    {self._frame()}\n    return {value}"
        if kind < 0.95:
            return f"f = C\ndef g(x): return {value}"
        if kind < 0.97:
            return f"@contextlib.contextmanager\ndef f(x):\n    try: yield {value}\n    except BaseException: pass"
        return "def f(x, *a):\n    " + self._pick(
            [
                "time.sleep(9)",
                "while True: pass",
                "while True: time.sleep(0.01); sum(range(9999))",
                "return [0] * 10 ** 10",
                "return 'a' * (80 << 20)",
                "return [object() for _ in range(10 ** 5)]",
                "os._exit(0)",
                "return scan()",
                "return scan()",
                "return f(x)",
                "sys.exit()",
            ]
        )


def with_secret(text: str, secret: int) -> str:
    return f"S = {secret}\nT = str(S)\n{text}"


def honest(idiom: Idiom, secret: int) -> Program:
    """Return the program that delivers the secret, with its test."""
    code = HONEST + with_secret("", secret) + f"def f(x):\n{textwrap.indent(idiom.honest, '    ')}"
    return Program(code, with_secret(idiom.tests, secret), NAMES, seconds=10.0)


def cases(count: int, seed: int = 0) -> Iterator[Program]:
    """Yield hostile programs, each with a test that it cannot pass; all idioms come in turn."""
    order = random.Random(f"order {seed}").sample(IDIOMS, len(IDIOMS))
    for index in range(count):
        idiom = order[index // GROUP % len(order)]
        secret = random.Random(f"secret {seed} {index // GROUP}").randrange(10**6, 10**9)
        # The failed line that a reason quotes shows the secret, as the assertions of benchmarks do.
        text = with_secret(idiom.tests, secret) + f"  # S = {secret}"
        yield Program(Grammar(f"{seed} {index}", idiom).program(), text, NAMES, seconds=SECONDS)


def holes(sandbox: Sandbox, count: int, seed: int = 0, attempts: int = 3) -> list[tuple[int, str, Program]]:
    """Run generated programs and return those that pass or are ungraded, with their index and outcome.

    A machine that is too busy is asked again, up to `attempts` times.
    """
    found = []
    for index, program in enumerate(cases(count, seed)):
        for _ in range(attempts):
            verdict = sandbox.ask(program)
            if "too busy" not in verdict.detail:
                break
        if verdict.outcome not in ("failed", "timeout"):
            found.append((index, f"{verdict.outcome}: {verdict.detail}", program))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("confinement")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sandbox = Sandbox(arguments.confinement)
    found = holes(sandbox, arguments.cases, arguments.seed)
    sandbox.close()
    for index, outcome, program in found:
        program_text = program.code.removeprefix(PREAMBLE)
        print(f"--- {index}: {outcome}\n{program_text}\n>>> {program.tests}\n")
    print(f"{len(found)} of {arguments.cases} programs passed or were not graded in {arguments.confinement}")


if __name__ == "__main__":
    main()
