"""A grammar of hostile program texts (see `fuzz_programs`)."""

from __future__ import annotations

import random
import textwrap

from tests.helpers.fuzz_idioms import Idiom

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
extremes = itertools.cycle([[-math.inf], [math.inf]])
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
    "AssertionError StopIteration SystemExit ValueError OSError ExceptionGroup collections.Counter "
    "collections.OrderedDict collections.defaultdict fractions.Fraction decimal.Decimal enum.Enum unittest.TestCase "
    "unittest.mock.MagicMock "
    "Point contextlib.ContextDecorator collections.UserList collections.UserDict collections.abc.Sequence"
).split()
SHARED = [f"'{name if '.' in name else 'builtins.' + name}'" for name in BASES]  # as `describe` names them
CATCHING = ["Exception", "(Own,Exception)", "(ValueError,(BaseException,))", "AssertionError", "C"]
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
            forged = FORGED_CONTENTS.replace(
                "FORGED()", self._pick(["Liar()", "Willing()", "next(extremes)"])
            )
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
        if self._chance(0.1):
            parts.append(f"E = {self._pick(CATCHING)}")
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
        if self._chance(0.2):  # what Python calls by other names: of mappings, exception groups, text
            names = self._random.sample(
                "keys items values update split derive lstrip strip encode decode".split(), 3
            )
            body += [f"{name} = lambda self, *a: {self._result()}" for name in names]
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
            content = f'{{"raise": ["builtins.{self._pick(TYPES)}", {self._json()}]}}'
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
            "base": self._pick([*BASES, *SHARED, *SHARED, "C", "C()"]),
            "bases": f"[{', '.join(self._random.sample([*BASES, *SHARED], self._random.choice((0, 1, 1, 2))))}]",
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
        if kind < 0.89:  # the values of a function or an iterator of the tests, and of what they raise
            use = self._pick(
                ["x()", "x(0)", "[*x]", "next(x)", "x.__next__()", "x._channel.ask('__iter__', x, (), {})"]
            )
            return (
                f"def f(x, *a):\n    try: return {use}\n    except BaseException as error:\n"
                "        return error.args[0] if error.args else getattr(error, 'value', error)"
            )
        if kind < 0.93:
            return f"def f(x, *a):\n    {self._frame()}\n    {self._frame()}\n    return {value}"
        if kind < 0.955:
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
