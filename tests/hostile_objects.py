"""Programs whose objects lie, by what must come of them: a name, the program and the tests it would forge.

Each uses a door that the stand-ins of program objects open: operators, conversions, iteration, exceptions,
functions of the tests', classes. With plain `exec` most of them pass.
"""

from __future__ import annotations

LIAR = """
class Liar:
    def __init__(self, *_): pass
    yes = lambda self, *_: True
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __bool__ = yes
    __ne__ = lambda self, other: False
    __hash__ = lambda self: 2
    __sub__ = __rsub__ = __add__ = __mul__ = __mod__ = __truediv__ = __pow__ = __xor__ = lambda self, other: self
    __abs__ = __neg__ = __round__ = lambda self, *_: self
    __class__ = int
def f(x): return Liar()
"""
INT = """
class Int(int):
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = lambda self: 2
    __sub__ = __rsub__ = __add__ = __mod__ = lambda self, other: Int(0)
    __abs__ = lambda self: Int(0)
    real = property(lambda self: Liar())
def f(x): return Int(7)
"""
LIST = """
class List(list):
    __eq__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __iter__ = lambda self: iter([])
def f(x): return List([7])
"""

FAILED: dict[str, tuple[str, str]] = {
    "a liar's difference": (LIAR, "assert abs(f(1) - 2) < 1e-6"),
    "a liar on the right": (LIAR, "assert abs(2 - f(1)) < 1e-6"),
    "a liar's order": (LIAR, "assert 1 < f(1) < 3"),
    "a liar among values": (LIAR, "assert f(1) in (2, 3)"),
    "a liar in a list": (LIAR, "assert [f(1)] == [2]"),
    "a liar in a set": (LIAR, "assert {f(1)} == {2}"),
    "a liar as a key": (LIAR, "assert {2: 'x'}[f(1)] == 'x'"),
    "a liar that holds everything": (LIAR, "assert 2 in f(1)"),
    "a liar's class": (LIAR, "assert isinstance(f(1), int) and f(1) == 2"),
    "a liar's type": (LIAR, "assert type(f(1)) is int"),
    "a liar's remainder": (LIAR, "assert f(1) % 2 == 0"),
    "a liar for isclose": (LIAR, "import math\nassert math.isclose(f(1), 2)"),
    "a liar for unittest": (LIAR, "import unittest\nunittest.TestCase().assertEqual(f(1), 2)"),
    "a liar for almost equal": (LIAR, "import unittest\nunittest.TestCase().assertAlmostEqual(f(1), 2)"),
    "a class that lies": (LIAR + "f = Liar", "assert f(1) == 2"),
    "a metaclass that lies": (
        "class M(type):\n    __eq__ = __contains__ = lambda *_: True\n    __hash__ = type.__hash__\n"
        "class A(metaclass=M): pass\ndef f(x): return A",
        "assert f(1) == 2 or 2 in f(1)",
    ),
    "an int's equality": (INT, "assert f(1) == 2"),
    "an int's difference": (INT, "assert f(1) - 2 == 0"),
    "an int's distance": (INT, "assert abs(f(1) - 2) < 1"),
    "an int's order": (INT, "assert f(1) < 3"),
    "a list's equality": (LIST, "assert f(1) == [2]"),
    "a list's contents": (LIST, "assert 2 in f(1)"),
    "a list of liars": (LIAR + "\ndef f(x): return [Liar()]", "assert f(1) == [2] or f(1)[0] == 2"),
    "a lying item": (LIAR + "\nclass S:\n    __getitem__ = Liar\ndef f(x): return S()", "assert f(1)[0] == 2"),
    "a named tuple's equality": (
        "import collections\nclass P(collections.namedtuple('P', 'x')):\n    __eq__ = lambda *_: True\ndef f(x): return P(7)",
        "assert f(1) == (2,)",
    ),
    "wrong kinds of answers": (
        "class A:\n    __len__ = __bool__ = __str__ = lambda self: self\ndef f(x): return A()",
        "for ask in (len, bool, str):\n    ask(f(1))",
    ),
    "a text larger than a frame": ("class A:\n    __repr__ = lambda self: 'a' * (20 << 20)\ndef f(x): return A()", "repr(f(1))"),
    "an error with a huge text": (
        "class E(Exception):\n    __str__ = lambda self: 'a' * (20 << 20)\ndef f(x): raise E",
        "assert f(1) == 2",
    ),
    "an error whose text is an error": (
        "class E(Exception):\n    def __str__(self): raise self\ndef f(x): raise E",
        "assert f(1) == 2",
    ),
    "an exit out of every method": (
        "class A:\n    def __getattr__(self, name): raise SystemExit(0)\n    __len__ = __iter__ = __getattr__\ndef f(x): return A()",
        "try:\n    f(1).x\nexcept Exception:\n    pass",
    ),
    "an interrupt": ("def f(x): raise KeyboardInterrupt", "try:\n    f(1)\nexcept Exception:\n    pass"),
    "an end swallowed by the tests": ("import os\ndef f(x): os._exit(0)", "try:\n    f(1)\nexcept BaseException:\n    pass"),
    "an end of iteration": ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 2 * x, [1, 21]))"),
    "a skipped test": (
        "import unittest\ndef f(x): raise unittest.SkipTest",
        "import unittest\nclass T(unittest.TestCase):\n    def runTest(self): self.assertEqual(f(1), 2)\n"
        "result = unittest.TestResult()\nT().run(result)\nassert result.wasSuccessful()",
    ),
    "an argument emptied": ("def f(x): x.clear(); return []", "x = [3, 1]\nassert f(x) == sorted(x)"),
    "a name of the tests' library": ("class math:\n    isclose = lambda *_: True\nf = int", "assert math.isclose(f(1), 2)"),
    "a name of Python's": ("abs = all = len = lambda *_: 0\nf = int", "assert abs(f(1) - 2) < 1"),
    "a million handles": ("def f(x): return [object() for _ in range(10 ** 6)]", "assert len(f(1)) == 2"),
    "recursion through the tests": (
        "def f(g): return g(f)",
        "def g(h): return h(g)\nassert f(g) == 2",
    ),
    "recursion through a method": ("class A:\n    def __len__(self): return len(self)\ndef f(x): return A()", "assert len(f(1)) == 2"),
    "a look into a test's function": (
        "def f(g):\n    for name in ('__globals__', '__closure__', '__code__', '__self__', 'gi_frame', '__init__'):\n"
        "        for operation in ('getattr', '__getattribute__', 'call', '__class__'):\n"
        "            try:\n                return g._channel.ask(operation, g, name, {})\n"
        "            except BaseException: pass",
        "assert f(lambda: 2) is not None",
    ),
    "another object of the tests'": (
        "def f(g):\n    for number in range(1 << 12):\n        try:\n            g._number = number\n"
        "            return g()\n        except KeyError: pass",
        "assert f(lambda: 2) == 2",
    ),
    "a forged description of its class": (
        "import sys\nsys.modules['sandboxed.candidate']._OPERATIONS['describe'] = lambda kind: dict(name='int', "
        "module='builtins', doc='', base=object, bases=[], hashable=True, can=['__new__', '__del__', '__class__', "
        "'__getattribute__', '__instancecheck__', '__eq__', '__sub__', '__abs__', '_origin'])\n" + LIAR,
        "assert f(1) == 2 or abs(f(1) - 2) < 1",
    ),
    "forged contents": (
        "import sys\nsys.modules['sandboxed.candidate']._CONTENTS[object] = lambda value: [[]]\nclass A(int): pass\n" + LIAR,
        "assert f(1) == 2",
    ),
}  # fmt: skip

TIMEOUT: dict[str, tuple[str, str]] = {
    "an iterator without an end": ("import itertools\ndef f(x): return itertools.count()", "for _ in f(1): pass"),
    "an error whose text never ends": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef f(x): raise E",
        "assert f(1) == 2",
    ),
    "a test's function called for ever": ("def f(g):\n    while True: g(1)", "f(lambda x: x)"),
    "a test's function with too much to do": ("def f(g): return g(10 ** 12)", "f(lambda n: sum(range(n)))"),
    "a coroutine that sleeps": ("import asyncio\nasync def f(x): await asyncio.sleep(1000)", "import asyncio\nasyncio.run(f(1))"),
    "sleep in small pieces": (
        "import time\ndef f(x):\n    while True:\n        time.sleep(0.004)\n        sum(range(20_000))",
        "assert f(1) == 2",
    ),
    "a method that never returns": ("class A:\n    def __len__(self):\n        while True: pass\ndef f(x): return A()", "len(f(1))"),
}  # fmt: skip
