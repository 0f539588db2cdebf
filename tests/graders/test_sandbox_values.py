"""No value of the tests reaches the program through anything that Python invokes by itself.

Every special method of Python's data model is defined, by classes derived from `object` and from each built-in type
that has contents, and records what it is given. The tests then use a secret in every operator, protocol and
conversion there is.
"""

from __future__ import annotations

import pytest

from twotemp.graders.sandbox import Program, Sandbox

SECRET = 86028121
BASES = "object int float complex str bytes tuple frozenset list dict set bytearray deque Exception".split()

# All of the data model (Python's reference, chapter 3), but for what makes the object itself.
METHODS = """
eq ne lt le gt ge hash bool repr str bytes format sizeof dir
len length_hint getitem setitem delitem missing iter next reversed contains
add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or
radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand rxor ror
iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior
neg pos abs invert complex int float index round trunc floor ceil
call enter exit await aiter anext aenter aexit
instancecheck subclasscheck class_getitem get set delete buffer release_buffer fspath
reduce reduce_ex getstate setstate getnewargs getnewargs_ex copy deepcopy
""".split()

PROGRAM = """
from collections import deque
SECRET = 43014060 * 2 + 1
seen = []

def holds(value, depth=0):
    try:
        if depth < 6 and isinstance(value, (list, tuple, set, frozenset, deque)):
            return any(holds(item, depth + 1) for item in list(type(value).__mro__[-2].__iter__(value)))
        if depth < 6 and type(value) is dict:
            return any(holds(item, depth + 1) for pair in value.items() for item in pair)
        if isinstance(value, BaseException):
            return any(holds(item, depth + 1) for item in value.args)
        return str(SECRET) in str(value)
    except RecursionError:
        return False

def recording(name):
    def method(self, *arguments):
        if any(type(a).__module__ != "program" and holds(a) for a in arguments):
            seen.append(name)
        return ANSWERS.get(name, True)
    return method

ANSWERS = {"__hash__": SECRET, "__len__": 1, "__length_hint__": 1, "__iter__": iter(()), "__reversed__": iter(()),
           "__str__": "x", "__repr__": "x", "__format__": "x", "__bytes__": b"x", "__int__": 1, "__index__": 1,
           "__float__": 1.0, "__complex__": 1j, "__dir__": [], "__sizeof__": 1, "__fspath__": "x"}
METHODS = METHODS_HERE

class Meta(type):
    pass
for name in ("__instancecheck__", "__subclasscheck__", "__contains__", "__eq__", "__or__", "__ror__", "__lt__"):
    setattr(Meta, name, recording(name))
Meta.__hash__ = type.__hash__

def make(base):
    names = {f"__{name}__": recording(f"__{name}__") for name in METHODS} | {"tell": recording("tell")}
    if base is object:
        return Meta("Spy", (base,), names)
    return type("Spy", (base,), names)

SPY = make(BASE_HERE)

def f(x):
    return SPY()

def kind():
    return SPY

def leaked():
    return ", ".join(sorted(set(seen)))
"""

TESTS = """
import asyncio, bisect, copy, heapq, itertools, math, operator, os, statistics
SECRET = 86028121
VALUES = [SECRET, float(SECRET), complex(SECRET), str(SECRET), str(SECRET).encode(), (SECRET,), frozenset([SECRET]),
          [SECRET], {SECRET: SECRET}, {SECRET}, bytearray(str(SECRET).encode()), ValueError(SECRET)]
BUILT_IN = {type(value) for value in VALUES}
BINARY = [getattr(operator, name) for name in
          "eq ne lt le gt ge add sub mul matmul truediv floordiv mod pow lshift rshift and_ xor or_ contains "
          "concat countOf indexOf iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior "
          "iconcat is_ is_not".split()]
BINARY += [divmod, math.isclose, math.hypot, math.fmod, math.gcd, math.atan2, isinstance, issubclass,
           lambda a, b: max(a, b), lambda a, b: min([a, b]), lambda a, b: sorted([a, b]), lambda a, b: sum([a, b]),
           lambda a, b: sum([a], b), lambda a, b: a in [b], lambda a, b: [a].index(b), lambda a, b: [a].count(b),
           lambda a, b: [a].remove(b), lambda a, b: {a: 1}[b], lambda a, b: {a} & {b}, lambda a, b: {a} == {b},
           lambda a, b: [a] == [b], lambda a, b: (a, 1) < (b, 1), lambda a, b: {1: a} == {1: b},
           lambda a, b: {**a, **b},
           lambda a, b: [*a, *b], lambda a, b: str(a) + b, lambda a, b: b.join(a), lambda a, b: b.split(a),
           lambda a, b: b.replace(a, a), lambda a, b: b.startswith(a), lambda a, b: b.strip(a),
           lambda a, b: b.find(a),
           lambda a, b: b.update(a), lambda a, b: b.extend(a), lambda a, b: b.issubset(a), lambda a, b: b.union(a),
           lambda a, b: b.isdisjoint(a), lambda a, b: b.difference(a), lambda a, b: b.symmetric_difference(a),
           lambda a, b: b % a, lambda a, b: b % (a,), lambda a, b: pow(a, b, 7), lambda a, b: pow(7, a, b),
           lambda a, b: pow(b, 7, a), lambda a, b: round(b, a), lambda a, b: int(b, a), lambda a, b: range(a, b),
           lambda a, b: slice(a, b).indices(5), lambda a, b: bisect.bisect([a], b),
           lambda a, b: bisect.insort([a], b),
           lambda a, b: heapq.heappushpop([a], b), lambda a, b: heapq.merge([a], [b]), lambda a, b: list(zip(a, b)),
           lambda a, b: math.prod([a], start=b), lambda a, b: math.comb(a, b), lambda a, b: math.ldexp(a, b),
           lambda a, b: statistics.mean([a, b]), lambda a, b: list(itertools.accumulate([a, b])),
           lambda a, b: list(itertools.groupby([a, b])), lambda a, b: os.path.join(a, b), lambda a, b: f"{a}{b}",
           lambda a, b: isinstance(b, (int, a)), lambda a, b: issubclass(type(b), a), lambda a, b: a | type(b),
           lambda a, b: list(map(operator.eq, [a], [b])), lambda a, b: any(x == b for x in a),
           lambda a, b: next(a, b),
           lambda a, b: dict.fromkeys([a], b) == {b: b}, lambda a, b: copy.deepcopy([a, b]), lambda a, b: setattr,
           lambda a, b: b.index(a), lambda a, b: b.count(a), lambda a, b: b.get(a), lambda a, b: b.pop(a),
           lambda a, b: b[a], lambda a, b: type(b) in BUILT_IN and type(b)(a), lambda a, b: b == a or a == b]

def leave_block(a, b):
    with a:
        raise b if isinstance(b, BaseException) else ValueError(b)

def leave_by_assertion(a, b):
    with a:
        assert a == b, b

async def leave_later(a, b):
    async with a:
        raise b if isinstance(b, BaseException) else ValueError(b)

def match(a, b):
    match a:
        case 86028121 | 86028121.0 | "86028121" | [86028121] | {86028121: 86028121}:
            pass
        case int(86028121):
            pass

def raise_from(a, b):
    try:
        raise ValueError(b)
    except a:
        pass

BINARY += [leave_block, leave_by_assertion, lambda a, b: asyncio.run(leave_later(a, b)), match, raise_from]
for value in VALUES:
    for apply in BINARY:
        for make in (lambda: f(1), kind):
            for swap in (False, True):
                try:
                    a = make()
                    apply(*((value, a) if swap else (a, value)))
                except Exception:
                    pass
assert not leaked(), leaked()
"""


def spy(base: str) -> str:
    methods = [m for m in METHODS if f"__{m}__" not in CARRIERS]
    return PROGRAM.replace("METHODS_HERE", repr(methods)).replace("BASE_HERE", base)


# Where the tests themselves write a call, a subscript, an attribute or a format.
CARRIERS = {
    f"__{name}__" for name in "call getitem setitem delitem missing class_getitem format get set".split()
}


@pytest.mark.parametrize("base", BASES)
def test_no_special_method_sees_a_value_of_the_tests(box: Sandbox, base: str) -> None:
    verdict = box.ask(Program(spy(base), TESTS, ("f",), seconds=30.0))
    assert verdict.outcome == "passed", verdict


@pytest.mark.parametrize("base", ["object", "int", "list"])
def test_the_spies_report_what_they_see(box: Sandbox, base: str) -> None:
    """A method that the tests call by name is given the secret, so silence above means something."""
    tests = f"f(1).tell(ValueError([{SECRET}]))\nassert leaked() == 'tell', leaked()"
    verdict = box.ask(Program(spy(base), tests, ("f",)))
    assert verdict.outcome == "passed", verdict


def test_written_calls_subscripts_and_formats_carry_values(box: Sandbox) -> None:
    code = """
class Box:
    def __getitem__(self, key): return key
    def __format__(self, spec): return spec
    def __call__(self, value): return value
    def __getattr__(self, name): return name
def f(x): return Box()
"""
    tests = f"b = f(1)\nassert b[{SECRET}] == b({SECRET}) == int(f'{{b:{SECRET}}}') and b.x{SECRET} == 'x{SECRET}'"
    assert box.ask(Program(code, tests, ("f",))).outcome == "passed"


# What a program gives for the contents of its own object. The first one's operators are methods of its class; the
# second one answers when it is asked for a method, with results that the checks below hope for.
FORGED = {
    "methods": """
    def __getattr__(self, name): return lambda *operands: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __or__ = __contains__ = __eq__ = lambda self, other: other * 0
    __hash__ = None
""",
    "lookup": """
    def __getattr__(self, name): return lambda *operands: results.get(name, True)
""",
}

# A program that answers for the contents of its own object, or for its class, with another object.
FORGED_CONTENTS = """
import sys
from collections import deque
results = {"__sub__": 0.0, "__add__": 0, "__rmul__": 0, "__or__": 0, "__radd__": 0}
class Evil:FORGED
OPERATORS = "__sub__ __contains__ __eq__ __add__ __rmul__ __or__ __radd__".split()
Spy = type("Spy", (BASE,), {name: lambda self, *operands: True for name in OPERATORS} | {"__hash__": None})
candidate = sys.modules['sandboxed.candidate']
frame = sys._getframe()
while 'channel' not in frame.f_locals: frame = frame.f_back
frame.f_locals['channel']._operations['plain'] = lambda value: Evil()
for table in (candidate.CHANGING, candidate.CONTENTS):
    for kind in table: table[kind] = lambda value: Evil()
def f(x): return Spy()
"""


FORGED_CHECKS = (
    "abs(f(1.0) - 2.5) < 1e-6",
    "2.5 in f(1)",
    "f(1) == 2.5",
    "not (f(1) + 2.5)",
    "not (2.5 * f(1))",
    "f(1) | {2.5} == 0",
    "not [2.5] + f(1)",
)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("forged", FORGED)
def test_contents_are_of_exactly_a_built_in_type(box: Sandbox, forged: str, base: str) -> None:
    """All checks are reached and none holds: one that held would make the tests pass."""
    tests = "tried, held = [], False"
    for check in FORGED_CHECKS:
        tests += f"\ntry:\n    tried.append(1)\n    assert {check}\n    held = True\nexcept Exception: pass"
    code = FORGED_CONTENTS.replace("FORGED", FORGED[forged]).replace("BASE", base)
    verdict = box.ask(Program(code, f"{tests}\nassert held, f'none of {{len(tried)}}'", ("f",)))
    assert verdict.outcome == "failed"
    assert f"none of {len(FORGED_CHECKS)}" in verdict.detail
