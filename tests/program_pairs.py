"""Small programs and tests of them, about what is hard to carry between two processes.

An entry: its name, then the program; `>` a line of the tests, which hold; `!` a test that does not, alone.
"""

from __future__ import annotations

from typing import NamedTuple

TABLE = '''
dataclass
from dataclasses import dataclass, field
@dataclass(order=True)
class P:
    x: int
    y: "list[int]" = field(default_factory=list)
def f(x): return P(x)
> assert f(1).x == 1 and f(1).y == [] and f(1) == P(1) and f(1) < P(2) and repr(f(1)) == "P(x=1, y=[])"
! assert f(1) == P(2)
! assert f(1) > P(2)

frozen dataclass
from dataclasses import dataclass, FrozenInstanceError
@dataclass(frozen=True)
class P:
    x: int
> import dataclasses
> try:
>     P(1).x = 2
>     raise RuntimeError
> except dataclasses.FrozenInstanceError: pass
> assert {P(1): "a"}[P(1)] == "a" and len({P(1), P(1), P(2)}) == 2
! assert P(1) in {P(2)}

string annotations
import typing
class Node:
    def __init__(self, next: "Node | None" = None): self.next = next
def f(): return typing.get_type_hints(Node.__init__)["next"] is not None
> assert f() and Node().next is None and Node(Node()).next.next is None

future annotations stay its own
def f(x: undefined_name): return x
! assert f(1) == 1

pickle of its own class
import pickle
class A:
    def __init__(self, v): self.v = v
def f(v): return pickle.loads(pickle.dumps(A(v)))
> assert f(3).v == 3

its own module
import sys
LIMIT = 7
def f(): return sys.modules[__name__].LIMIT
> assert f() == 7 == LIMIT
! assert LIMIT == 8

global state
count = 0
def f():
    global count
    count += 1
> assert count == 0 and f() is None and count == 1
! f(); assert count == 0

falsy values
def f(kind): return {"r": range(0), "z": 0.0, "s": "", "n": None, "f": frozenset(), "c": 0j}[kind]
> for kind in "rznsfc": assert not f(kind)
! assert f("r")

falsy objects
class Empty:
    def __len__(self): return 0
class No:
    def __bool__(self): return False
> assert not Empty() and not No() and len(Empty()) == 0
! assert Empty()
! assert No()

frozensets as members and keys
def f(): return {frozenset({1, 2})}, {frozenset({3}): "x"}, frozenset({1})
> s, d, x = f()
> assert frozenset({2, 1}) in s and d[frozenset({3})] == "x" and isinstance(x, frozenset) and hash(x) is not None
! assert frozenset({1}) in f()[0]

str enum
import enum
class C(str, enum.Enum):
    A = "a"
    B = "b"
def f(x): return C(x)
> assert f("a") == "a" and f("a") is C.A and f("a").name == "A" and [c.value for c in C] == ["a", "b"]
> assert "".join([C.A, C.B]) == "ab" and C["B"] == "b" and len(C) == 2 and f("b") in (C.A, C.B) and C.A.upper() == "A"
! assert f("a") == "b"
! f("z")

int enum
from enum import IntEnum
class C(IntEnum):
    LOW = 1
    HIGH = 2
> assert C.LOW + 1 == 2 == C.HIGH and C.LOW < C.HIGH and max(C) is C.HIGH and [10, 20, 30][C.HIGH] == 30
! assert C.LOW == 2

plain enum
from enum import Enum, auto
class C(Enum):
    A = auto()
    B = auto()
> assert C.A is C(1) and C.A != C.B and C.A.value == 1 and C.A in C and str(C.A) == "C.A" and {C.A: 1}[C.A] == 1
! assert C.A == 1

flag
from enum import Flag
class P(Flag):
    R = 1
    W = 2
> assert (P.R | P.W).value == 3 and P.R in (P.R | P.W) and not (P.R & P.W)
! assert P.R & P.W

bytes and bytearray
def f(x): return bytearray(x)
> assert f(b"ab") == bytearray(b"ab") == b"ab" and isinstance(f(b""), bytearray) and f(b"ab")[0] == 97
! assert f(b"ab") == b"abc"

dates
from datetime import date, datetime, timedelta, timezone
def f(d): return d + timedelta(days=1)
def g(): return datetime(2020, 1, 1, tzinfo=timezone.utc)
> from datetime import date, datetime, timedelta, timezone
> assert f(date(2020, 2, 28)) == date(2020, 2, 29) and f(date(2020, 1, 1)) - date(2020, 1, 1) == timedelta(1)
> assert g() == datetime(2020, 1, 1, tzinfo=timezone.utc) and g().isoformat() == "2020-01-01T00:00:00+00:00"
! assert f(date(2020, 2, 28)) == date(2020, 3, 1)

times
from datetime import time, timedelta
def f(h): return time(h, 30), timedelta(hours=h)
> import datetime
> assert f(5) == (datetime.time(5, 30), datetime.timedelta(hours=5)) and f(1)[1].total_seconds() == 3600
! assert f(5)[0].hour == 6

ranges
def f(n): return range(n)
> assert f(3) == range(3) and list(f(3)) == [0, 1, 2] and f(3)[1] == 1 and 2 in f(3) and len(f(10**9)) == 10**9
! assert f(3) == [0, 1, 2]

decimal and fraction
from decimal import Decimal
from fractions import Fraction
def f(x): return Decimal(x) / 4
def g(x): return Fraction(x, 4)
> from decimal import Decimal
> from fractions import Fraction
> assert f(1) == Decimal("0.25") and g(2) == Fraction(1, 2) and g(1) + 1 == Fraction(5, 4) and str(f(1)) == "0.25"
! assert f(1) == Decimal("0.2")

complex and infinities
def f(x): return complex(x, -x), float("inf"), float("nan")
> import math
> assert f(2)[0] == 2 - 2j and f(2)[1] == math.inf and math.isnan(f(2)[2]) and f(1)[0].imag == -1
! assert f(2)[2] == f(2)[2]

big numbers
def f(n): return 2 ** n
> assert f(3000) == 1 << 3000 and f(5000) % 10**9 == pow(2, 5000, 10**9)
! assert f(64) == 2.0 ** 64 + 4096

namedtuple
from collections import namedtuple
P = namedtuple("P", "x y")
def f(x): return P(x, 2)
> assert f(1) == (1, 2) and f(1).x == 1 and f(1)[1] == 2 and f(1) == P(1, 2) and isinstance(f(1), tuple)
> a, b = f(1); assert (a, b) == (1, 2) and f(1)._replace(y=5).y == 5 and f(1)._asdict() == {"x": 1, "y": 2}
> assert f(1) + (3,) == (1, 2, 3) and (0,) + f(1) == (0, 1, 2) and "%d-%d" % f(1) == "1-2" and sorted([f(2), f(1)]) == [(1, 2), (2, 2)]
! assert f(1) == (1, 3)
! assert f(1).z

typed named tuple
from typing import NamedTuple
class P(NamedTuple):
    x: int
    def norm(self): return abs(self.x)
> assert P(-3).norm() == 3 and P(x=1) == (1,) and str(P(1)) == "P(x=1)"
! assert P(1) == 1

deque
from collections import deque
def f(xs): d = deque(xs, maxlen=3); d.rotate(1); return d
> from collections import deque
> assert f([1, 2, 3]) == deque([3, 1, 2]) and f([1])[0] == 1 and f("abcd").maxlen == 3
! assert f([1, 2]) == deque([1, 2])

ordered dict
from collections import OrderedDict
def f(): return OrderedDict([("b", 1), ("a", 2)])
> from collections import OrderedDict
> assert f() == {"a": 2, "b": 1} and f() == OrderedDict([("b", 1), ("a", 2)]) and list(f()) == ["b", "a"]
! assert f() == OrderedDict([("a", 2), ("b", 1)])

counter
from collections import Counter
def f(s): return Counter(s)
> assert f("aab") == {"a": 2, "b": 1} and f("aab").most_common(1) == [("a", 2)] and f("a")["z"] == 0
! assert f("aab") == {"a": 1}

defaultdict
from collections import defaultdict
def f(): d = defaultdict(list); d["a"].append(1); return d
> assert f() == {"a": [1]} and f()["zz"] == [] and f().get("b") is None
! assert f() == {}

views and iterators of dicts
def f(d): return d.keys(), d.values(), d.items()
> k, v, i = f({"b": 1, "a": 2})
> assert list(k) == ["b", "a"] and k == {"a", "b"} and list(v) == [1, 2] and sorted(i) == [("a", 2), ("b", 1)]
! assert list(f({"b": 1, "a": 2})[0]) == ["a", "b"]

lazy builtins
def f(xs): return map(str, xs), filter(None, xs), zip(xs, xs), reversed(xs), enumerate(xs)
> assert [list(i) for i in f([0, 1])] == [["0", "1"], [1], [(0, 0), (1, 1)], [1, 0], [(0, 0), (1, 1)]]
! assert list(f([0, 1])[0]) == ["0"]

endless generator
def f():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b
> import itertools
> g = f(); assert next(g) == 0 and next(g) == 1 and next(g) == 1 and next(g) == 2
> assert list(itertools.islice(f(), 8)) == [0, 1, 1, 2, 3, 5, 8, 13] and next(x for x in f() if x > 50) == 55
! assert next(f()) == 1

generator that ends
def f(n):
    yield from range(n)
    return "end"
> g = f(1); next(g)
> try: next(g); raise RuntimeError
> except StopIteration as e: assert e.value == "end"
> assert next(f(0), None) is None and sum(f(4)) == 6 and max(f(3)) == 2 and 1 in f(2) and dict(zip("ab", f(2))) == {"a": 0, "b": 1}
! next(f(0))

generator send and close
def f():
    total = 0
    while True:
        total += yield total
> g = f(); next(g); g.send(2); assert g.send(3) == 5; g.close()
> assert next(g, "closed") == "closed"
! g = f(); next(g); assert g.send(2) == 3

iterator class
class Down:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if not self.n: raise StopIteration
        self.n -= 1
        return self.n
> assert list(Down(3)) == [2, 1, 0] and [*Down(2)] == [1, 0] and next(Down(5)) == 4
! assert list(Down(3)) == [3, 2, 1]

old iteration by index
class S:
    def __getitem__(self, i):
        if i > 2: raise IndexError(i)
        return i * i
> assert list(S()) == [0, 1, 4] and S()[2] == 4
! S()[3]

container protocol
class Box:
    def __init__(self): self.d = {}
    def __len__(self): return len(self.d)
    def __getitem__(self, k): return self.d[k]
    def __setitem__(self, k, v): self.d[k] = v
    def __delitem__(self, k): del self.d[k]
    def __iter__(self): return iter(self.d)
> b = Box(); b["x"] = 1; b["y"] = [2]; assert len(b) == 2 and b["x"] == 1 and list(b) == ["x", "y"] and "x" in b
> del b["x"]; assert len(b) == 1 and "x" not in b and b
> try: b["x"]; raise RuntimeError
> except KeyError: pass
! assert "x" in Box()
! Box()["x"]

slices
class S:
    def __getitem__(self, i): return i.stop if isinstance(i, slice) else i
> assert S()[1:5] == 5 and S()[3] == 3 and S()[...] is ...
! assert S()[1:5] == 4

equality and hash of objects
class P:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return isinstance(o, P) and self.v == o.v
    def __hash__(self): return hash(self.v)
> assert P(1) == P(1) and P(1) != P(2) and P(1) in [P(0), P(1)] and len({P(1), P(1)}) == 1 and P(1) != 1
> assert [P(1), [P(2)]] == [P(1), [P(2)]] and {"a": P(1)} == {"a": P(1)} and {P(1): 2}[P(1)] == 2
! assert P(1) == P(2)
! assert [P(1)] == [P(2)]

identity by default
class A: pass
def f(): return A()
a = A()
> x = f(); assert x == x and f() != f() and a is a and hash(x) == hash(x) and x in [x] and [x].index(x) == 0
! assert f() == f()

unhashable
class P:
    def __eq__(self, o): return True
> try: hash(P()); raise RuntimeError
> except TypeError: pass
! {P()}

ordering
import functools
@functools.total_ordering
class V:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == o.n
    def __lt__(self, o): return self.n < o.n
> assert V(1) < V(2) and V(2) >= V(1) and max(V(1), V(3)).n == 3 and [v.n for v in sorted([V(2), V(1)])] == [1, 2]
! assert V(2) < V(1)

no ordering
class V: pass
> try: V() < V(); raise RuntimeError
> except TypeError: pass
! sorted([V(), V()])

vector
class V:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, o): return V(self.x + o.x, self.y + o.y)
    def __sub__(self, o): return V(self.x - o.x, self.y - o.y)
    def __mul__(self, o): return self.x * o.x + self.y * o.y
    def __neg__(self): return V(-self.x, -self.y)
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)
    def __repr__(self): return f"V({self.x}, {self.y})"
> assert V(1, 2) + V(3, 4) == V(4, 6) and V(1, 2) * V(3, 4) == 11 and abs(V(3, 4)) == 5 and -V(1, 2) == V(-1, -2)
> assert repr(V(1, 2) - V(1, 1)) == "V(0, 1)" and f"{V(1, 2)}" == "V(1, 2)" and sum([V(1, 1), V(2, 2)], V(0, 0)) == V(3, 3)
! assert V(1, 2) + V(1, 1) == V(2, 2)
! V(1, 2) @ V(1, 2)

operators in place
class M:
    def __init__(self, v): self.v = v
    def __iadd__(self, o): self.v += o.v; return self
    def __matmul__(self, o): return M(self.v * o.v)
> m = M(1); n = m; m += M(2); assert m is n and n.v == 3 and (m @ M(2)).v == 6
! m = M(1); m += M(1); assert m.v == 1

conversions
class N:
    def __int__(self): return 3
    def __float__(self): return 2.5
    def __index__(self): return 1
    def __bytes__(self): return b"n"
    def __complex__(self): return 1j
    def __round__(self, n=None): return 9
    def __format__(self, spec): return f"<{spec}>"
    def __invert__(self): return "inv"
> n = N(); assert int(n) == 3 and float(n) == 2.5 and [5, 6][n] == 6 and bytes(n) == b"n" and complex(n) == 1j
> assert round(n) == 9 and f"{n:abc}" == "<abc>" and ~n == "inv" and "ab" * n.__index__() == "ab"
! assert int(N()) == 2

text of objects
class A:
    def __str__(self): return "sA"
    def __repr__(self): return "rA"
def f(): return [A()]
> assert str(A()) == "sA" and repr(A()) == "rA" and str(f()) == "[rA]" and "%s %r" % (A(), A()) == "sA rA" and "{}".format(A()) == "sA"
> import io
> out = io.StringIO(); print(A(), file=out); assert out.getvalue() == "sA" + chr(10)
! assert str(A()) == "rA"

attributes
class A:
    def __init__(self): self.v = 1
    @property
    def twice(self): return 2 * self.v
    @twice.setter
    def twice(self, v): self.v = v // 2
> a = A(); a.v = 5; assert a.twice == 10; a.twice = 6; assert a.v == 3 and hasattr(a, "v") and not hasattr(a, "w")
> del a.v
> try: a.v; raise RuntimeError
> except AttributeError: pass
> a.new = [1]; assert a.new == [1] and getattr(a, "zz", 4) == 4 and "new" in vars(a)
! A().w

class attributes and methods
class A:
    made = 0
    def __init__(self): A.made += 1
    @classmethod
    def two(cls): return [cls(), cls()]
    @staticmethod
    def three(): return 3
> assert A.three() == 3 and len(A.two()) == 2 and A.made == 2 and isinstance(A.two()[0], A) and A.__name__ == "A"
> A.made = 0; A(); assert A.made == 1 and A().made == 2
! assert A.made == 1

inheritance
class Shape:
    def area(self): raise NotImplementedError
class Square(Shape):
    def __init__(self, s): self.s = s
    def area(self): return self.s ** 2
> assert isinstance(Square(2), Shape) and issubclass(Square, Shape) and Square(3).area() == 9 and type(Square(1)) is Square
> assert type(Square(1)).__name__ == "Square" == Square(1).__class__.__name__ and not isinstance(Shape(), Square)
> try: Shape().area(); raise RuntimeError("no")
> except NotImplementedError: pass
! assert isinstance(Shape(), Square)

abstract class
from abc import ABC, abstractmethod
class A(ABC):
    @abstractmethod
    def f(self): ...
class B(A):
    def f(self): return 1
> try: A(); raise RuntimeError
> except TypeError: pass
> assert B().f() == 1 and isinstance(B(), A)
! A()

singleton
class S:
    one = None
    def __new__(cls):
        cls.one = cls.one or super().__new__(cls)
        return cls.one
> assert S() is S()
! assert S() is not S()

generic class
from typing import Generic, TypeVar
T = TypeVar("T")
class Stack(Generic[T]):
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); return self
    def __len__(self): return len(self.items)
> assert len(Stack[int]().push(1)) == 1 and Stack().push("a").items == ["a"]
! assert len(Stack()) == 1

slots
class A:
    __slots__ = ("x",)
> a = A(); a.x = 1; assert a.x == 1
> try: a.y = 1; raise RuntimeError
> except AttributeError: pass
! A().x

list subclass
class Stack(list):
    def push(self, x): self.append(x)
    def peek(self): return self[-1]
> s = Stack(); s.push(1); s.push(2); assert s == [1, 2] and s.peek() == 2 and len(s) == 2 and isinstance(s, list) and list(s) == [1, 2]
> assert s.pop() == 2 and s == [1] and s[0] == 1 and 1 in s and s + [5] == [1, 5] and not Stack()
! s = Stack(); s.push(1); assert s == [2]

dict subclass
class Low(dict):
    def __getitem__(self, k): return super().__getitem__(k.lower())
    def __missing__(self, k): return k
> d = Low(a=1); assert d["A"] == 1 and d == {"a": 1} and d["Zz"] == "zz" and "a" in d and len(d) == 1
! assert Low(a=1)["b"] == 1

int and str subclasses
class Mod(int):
    def __add__(self, o): return Mod((int(self) + int(o)) % 7)
class Shout(str):
    def lower(self): return self.upper()
> assert Mod(5) + Mod(4) == 2 and Mod(3) == 3 and Mod(3) * 2 == 6 and Shout("a").lower() == "A" and Shout("a") + "b" == "ab"
! assert Mod(5) + Mod(4) == 9

set subclass
class Tags(set):
    def only(self): (x,) = self; return x
> assert Tags([1]).only() == 1 and Tags([1]) == {1} and Tags([1, 2]) - {1} == {2} and 1 in Tags([1])
! assert Tags([1]) == {2}

exception subclass
class Bad(ValueError): pass
def f(x):
    if x < 0: raise Bad("negative", x)
    return x
> for kind in (Bad, ValueError, Exception):
>     try: f(-1); raise RuntimeError
>     except kind as e: assert e.args == ("negative", -1) and isinstance(e, ValueError) and type(e).__name__ == "Bad"
! try: f(-1)
! except KeyError: pass

exception with fields
class Short(Exception):
    def __init__(self, need, have):
        super().__init__(f"need {need}, have {have}")
        self.need = need
    def missing(self): return self.need
class Account:
    def __init__(self): self.balance = 0
    def draw(self, n):
        if n > self.balance: raise Short(n, self.balance)
> try: Account().draw(5); raise RuntimeError
> except Short as e: assert e.need == 5 and str(e) == "need 5, have 0" and e.missing() == 5
! Account().draw(1)

exception hierarchy
class App(Exception): pass
class Net(App, OSError): pass
class Deep(Net): pass
def f(): raise Deep("x")
> for kind in (Deep, Net, App, OSError):
>     try: f(); raise RuntimeError
>     except kind: pass
> assert issubclass(Deep, OSError) and not issubclass(App, OSError)
! try: f()
! except ValueError: pass

raises as a helper
class Odd(KeyError): pass
def f(x): raise Odd(x)
> import contextlib
> @contextlib.contextmanager
> def raises(kind, match=""):
>     try: yield
>     except kind as e: assert match in str(e); return
>     raise AssertionError("nothing raised")
> with raises(Odd): f(1)
> with raises(LookupError, match="seven"): f("seven")
! with contextlib.suppress(ValueError): f(1)

unittest's assertRaises
class Odd(ZeroDivisionError): pass
def f(x):
    if not x: raise Odd("zero")
    return 1 / x
> import unittest
> t = unittest.TestCase(); t.assertRaises(ZeroDivisionError, f, 0); t.assertEqual(f(2), 0.5); t.assertAlmostEqual(f(3), 0.3333333, 6)
> with t.assertRaises(Odd) as caught: f(0)
> assert str(caught.exception) == "zero"
! unittest.TestCase().assertRaises(ValueError, f, 0)

built-in exceptions
def f(kind): return {"k": lambda: {}["x"], "i": lambda: [][1], "z": lambda: 1 / 0, "u": lambda: b"\\xff".decode(), "a": lambda: 1 + ""}[kind]()
> for kind, error in zip("kizua", (KeyError, IndexError, ZeroDivisionError, UnicodeDecodeError, TypeError)):
>     try: f(kind); raise RuntimeError
>     except error as e: assert type(e) is error
> try: f("k")
> except KeyError as e: assert e.args == ("x",) and str(e) == "'x'"
! f("z")

library exceptions
import json, decimal, re
def f(kind): return {"j": lambda: json.loads("{"), "d": lambda: decimal.Decimal("x"), "r": lambda: re.compile("(")}[kind]()
> import json, decimal, re
> for kind, error in (("j", json.JSONDecodeError), ("d", decimal.InvalidOperation), ("r", re.error), ("j", ValueError)):
>     try: f(kind); raise RuntimeError
>     except error: pass
! f("j")

exit is an exception
import sys
def f(code): sys.exit(code)
> try: f(3); raise RuntimeError
> except SystemExit as e: assert e.code == 3
! try: f(0)
! except Exception: pass
! f(0)

cause and finally
log = []
def f():
    try: raise KeyError("a")
    except KeyError as e: raise ValueError("b") from e
    finally: log.append(1)
> try: f(); raise RuntimeError
> except ValueError as e: assert str(e) == "b"
> assert log == [1]
! f()

exceptions as values
def f(): return ValueError("x"), [KeyError("y")]
> assert isinstance(f()[0], ValueError) and str(f()[0]) == "x" and f()[1][0].args == ("y",)
! raise f()[0]

assertion of its own
def f(x): assert x > 0, "positive"; return x
> try: f(0); raise RuntimeError
> except AssertionError as e: assert str(e) == "positive"
! f(0)

functions passed in
def f(g, xs): return [g(x) for x in xs]
def key(xs, k=None): return sorted(xs, key=k)
> def triple(x): return 3 * x
> assert f(lambda x: x + 1, [1, 2]) == [2, 3] and f(triple, [1]) == [3] and key(["bb", "a"], k=len) == ["a", "bb"]
> assert f(str.upper, ["a"]) == ["A"] and f(int, ["7"]) == [7] and f([1, 2].count, [1]) == [1] and f(abs, [-1]) == [1]
! assert f(lambda x: x + 1, [1]) == [1]

library functions passed in
import functools
def f(op, xs): return functools.reduce(op, xs)
> import operator, math
> assert f(operator.mul, [2, 3, 4]) == 24 and f(math.gcd, [12, 18]) == 6 and f(max, [1, 5, 2]) == 5
! assert f(operator.add, [1, 2]) == 4

functions passed in that raise
def f(g):
    try: return g()
    except ZeroDivisionError: return "caught"
> assert f(lambda: 1 / 0) == "caught"
> try: f(lambda: {}["k"]); raise RuntimeError
> except KeyError as e: assert e.args == ("k",)
! f(lambda: {}["k"])

functions with effects passed in
def f(g, n):
    for i in range(n): g(i)
> seen = []; f(seen.append, 3); assert seen == [0, 1, 2]
> def note(x): seen.append(-x)
> f(note, 2); assert seen == [0, 1, 2, 0, -1]
! seen = []; f(seen.append, 1); assert seen == []

functions passed back
def f(g): return g
> def mine(): return 1
> assert f(mine) is mine and f(len) is len or f(len)([1]) == 1
> assert f(f)(mine)() == 1
! assert f(len)([1]) == 2

higher order
def compose(*fs):
    def run(x):
        for g in reversed(fs): x = g(x)
        return x
    return run
> assert compose(lambda x: x + 1, lambda x: x * 2)(5) == 11 and compose(str, len)("abc") == "3"
! assert compose(lambda x: x + 1)(5) == 5

decorator
import functools
def twice(g):
    @functools.wraps(g)
    def run(*a, **k): return g(*a, **k) + g(*a, **k)
    return run
> @twice
> def hello(n, mark="!"): return n + mark
> assert hello("a") == "a!a!" and hello("b", mark="?") == "b?b?" and hello.__name__ == "hello"
! assert hello("a") == "a!"

memoize and recursion through the tests
def memoize(g):
    known = {}
    def run(n):
        if n not in known: known[n] = g(n)
        return known[n]
    return run
> calls = []
> def fib(n):
>     calls.append(n)
>     return n if n < 2 else fib(n - 1) + fib(n - 2)
> fib = memoize(fib); assert fib(20) == 6765 and len(calls) == 21
! assert memoize(lambda n: n)(2) == 3

retry
def retry(g, times):
    for i in range(times):
        try: return g()
        except ValueError:
            if i == times - 1: raise
> tries = []
> def flaky():
>     tries.append(1)
>     if len(tries) < 3: raise ValueError("again")
>     return "ok"
> assert retry(flaky, 5) == "ok" and len(tries) == 3
! retry(lambda: int("x"), 2)

types passed in
def f(kind, x): return kind(x), isinstance(x, kind)
> assert f(int, "3") == (3, False) and f(str, "a") == ("a", True) and f(list, (1,)) == ([1], False) and f(set, [1]) == ({1}, False)
> class Mine:
>     def __init__(self, v): self.v = v
> assert f.__call__(float, 1) == (1.0, False)
! assert f(int, "3") == (4, False)

types given back
def f(x): return type(x)
> assert f(1) is int and f("") is str and f(1) == int and f([]) in (list, tuple) and f(None) is type(None) and f(ValueError()) is ValueError
! assert f(1) is float

iterators passed in
def f(xs): return [x for x in xs]
def first(it): return next(it), next(iter(it))
> assert f(iter([1, 2])) == [1, 2] and f(x * x for x in range(3)) == [0, 1, 4] and f(range(2)) == [0, 1] and f(zip("a", [1])) == [("a", 1)]
> import itertools
> g = itertools.count(5); assert first(g) == (5, 6) and next(g) == 7
! assert f(iter([1])) == [2]

objects passed back in
class Node:
    def __init__(self, v, next=None): self.v, self.next = v, next
def length(n): return 0 if n is None else 1 + length(n.next)
def reverse(n):
    last = None
    while n: n.next, last, n = last, n, n.next
    return last
> head = Node(1, Node(2, Node(3))); assert length(head) == 3
> back = reverse(head); assert back.v == 3 and back.next.next.v == 1 and back.next.next is head and length([back][0]) == 3
! assert length(Node(1)) == 2

objects in containers
class A:
    def __init__(self, v): self.v = v
def f(): return [A(1), {"k": A(2)}, (A(3),)]
def total(xs): return sum(x.v for x in xs)
> a, d, t = f(); assert (a.v, d["k"].v, t[0].v) == (1, 2, 3) and total([a, A(5)]) == 6
! assert f()[0].v == 2

callable objects and closures
class Add:
    def __init__(self, n): self.n = n
    def __call__(self, x, *, times=1): return x + self.n * times
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
> assert Add(2)(3) == 5 and Add(2)(3, times=2) == 7 and callable(Add(1)) and list(map(Add(1), [1])) == [2]
> c = counter(); c(); assert c() == 2 and counter()() == 1
! Add(2)(3, wrong=1)

context managers
from contextlib import contextmanager
class Guard:
    def __enter__(self): self.log = ["in"]; return self
    def __exit__(self, kind, error, tb): self.log.append("out" if kind is None else kind.__name__); return kind is ValueError
@contextmanager
def tag(name):
    yield f"<{name}>"
> with Guard() as g: assert g.log == ["in"]
> assert g.log == ["in", "out"]
> with Guard() as g: raise ValueError
> assert g.log[-1] == "ValueError"
> with tag("a") as t: assert t == "<a>"
! with Guard(): raise KeyError

coroutines
import asyncio
async def f(x):
    await asyncio.sleep(0.001)
    return 2 * x
async def many(xs): return await asyncio.gather(*(f(x) for x in xs))
> import asyncio
> assert asyncio.run(f(2)) == 4 and asyncio.run(many([1, 2])) == [2, 4]
> async def main(): return await f(1) + sum(await asyncio.gather(f(2), f(3)))
> assert asyncio.run(main()) == 12
! assert asyncio.run(f(2)) == 5

asyncio inside
import asyncio
def f(n):
    async def work(i): await asyncio.sleep(0); return i
    async def main(): return [await work(i) for i in range(n)]
    return asyncio.run(main())
> assert f(3) == [0, 1, 2]
! assert f(1) == [1]

asynchronous iteration and context
class Ticker:
    def __init__(self, n): self.n = n
    def __aiter__(self): return self
    async def __anext__(self):
        if not self.n: raise StopAsyncIteration
        self.n -= 1
        return self.n
    async def __aenter__(self): return self
    async def __aexit__(self, *a): self.n = -1
> import asyncio
> async def main():
>     async with Ticker(3) as t: got = [x async for x in t]
>     return got, t.n
> assert asyncio.run(main()) == ([2, 1, 0], -1)
! assert asyncio.run(main()) == []

coroutine that raises
class Late(TimeoutError): pass
async def f(): raise Late("slow")
> import asyncio
> try: asyncio.run(f()); raise RuntimeError
> except TimeoutError as e: assert str(e) == "slow"
! asyncio.run(f())

copies
import copy
class A:
    def __init__(self): self.xs = [1]
    def __eq__(self, o): return self.xs == o.xs
> import copy
> a = A(); b = copy.deepcopy(a); b.xs = [2]; assert a.xs == [1] and b is not a and copy.copy(a) == a
! assert copy.copy(A()) is A()

matrix
class M:
    def __init__(self, rows): self.rows = rows
    def __matmul__(self, o): return M([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in self.rows])
    def __getitem__(self, ij): return self.rows[ij[0]][ij[1]]
    def __eq__(self, o): return self.rows == o.rows
> a = M([[1, 2], [3, 4]]); assert a[1, 0] == 3 and a @ M([[1, 0], [0, 1]]) == a and (a @ a).rows == [[7, 10], [15, 22]]
! assert (a @ a).rows == [[7, 10]]

LRU cache
from collections import OrderedDict
class LRU:
    def __init__(self, n): self.n, self.d = n, OrderedDict()
    def get(self, k):
        if k not in self.d: return -1
        self.d.move_to_end(k)
        return self.d[k]
    def put(self, k, v):
        self.d[k] = v
        self.d.move_to_end(k)
        if len(self.d) > self.n: self.d.popitem(last=False)
> c = LRU(2); c.put(1, 1); c.put(2, 2); assert c.get(1) == 1; c.put(3, 3); assert c.get(2) == -1 and c.get(3) == 3
! c = LRU(1); c.put(1, 1); c.put(2, 2); assert c.get(1) == 1

trie by methods
class Trie:
    def __init__(self): self.words = set()
    def insert(self, w): self.words.add(w)
    def starts(self, p): return any(w.startswith(p) for w in self.words)
> t = Trie(); t.insert("apple"); assert t.starts("app") and not t.starts("b") and t.words == {"apple"}
! assert Trie().starts("a")

the programs own modules
import math
def f(x): return math.sqrt(x)
> assert math.isclose(f(2) ** 2, 2) and f(9) == 3
! assert math.isclose(f(2), 1)

match and walrus
def f(x):
    match x:
        case {"k": v}: return v
        case [a, *rest]: return rest
        case _ if (n := len(str(x))) > 1: return n
> assert f({"k": 1}) == 1 and f([1, 2]) == [2] and f(12) == 2 and f(1) is None
! assert f([1]) is None

properties of results
def f(n): return [p for p in range(2, n) if all(p % q for q in range(2, p))]
> r = f(30); assert all(x > 1 for x in r) and len(set(r)) == len(r) and r == sorted(r) and r[0] == 2 and r[-1] == 29 and r[:2] == [2, 3]
! assert f(10)[-1] == 9

keyword and default arguments
def f(a, /, b=2, *args, c, **more): return a, b, args, c, more
> assert f(1, c=3) == (1, 2, (), 3, {}) and f(1, 5, 6, c=7, d=8) == (1, 5, (6,), 7, {"d": 8})
! f(1)

partial and method references
from functools import partial
class A:
    def __init__(self, n): self.n = n
    def add(self, x): return self.n + x
def f(): return partial(int, base=2), A(3).add
> p, m = f(); assert p("101") == 5 and m(4) == 7 and list(map(m, [1])) == [4]
! assert f()[0]("11") == 11

documentation and names
def f(x):
    """Twice."""
    return 2 * x
class A:
    "A class."
> assert f.__doc__ == "Twice." and f.__name__ == "f" and A.__doc__ == "A class." == A().__doc__
! assert f.__doc__ is None

shadowed built-ins
def sum(xs): return 42
def f(xs): return sum(xs)
> assert f([1]) == 42
! assert f([1]) == 1

sets of tuples and nested values
def f(): return {(1, ("a", None)), (2, ())}, {1: {2: [(3, {4})]}}, [[], [[]]]
> assert f() == ({(1, ("a", None)), (2, ())}, {1: {2: [(3, {4})]}}, [[], [[]]]) and (2, ()) in f()[0]
! assert f()[2] == [[]]

array and memory
from array import array
def f(): return array("i", [1, 2])
> from array import array
> assert f() == array("i", [1, 2]) and f()[1] == 2 and f().tolist() == [1, 2]
! assert f() == array("i", [2])

regular expressions
import re
def f(s): return re.match(r"(\\w)(\\d+)", s)
> assert f("a12").group(2) == "12" and f("a12").groups() == ("a", "12") and f("?") is None and f("b1")[1] == "b" and f("b1").span() == (0, 2)
! assert f("a12").group(1) == "b"

errors while loading
raise ValueError("at import")
! f(1)

no such name
def g(x): return x
> try: f(1); raise RuntimeError
> except NameError: pass
! f(1)

wrong arguments
def f(x): return x
> try: f(1, 2); raise RuntimeError
> except TypeError: pass
! f()

recursion limit
def f(n): return 1 + f(n + 1)
> try: f(0); raise ValueError
> except RecursionError: pass
! f(0)

random with a seed
import random
def f(seed): return random.Random(seed).random(), random.Random(seed).sample(range(100), 3)
> import random
> assert f(1)[0] == random.Random(1).random() and f(2)[1] == random.Random(2).sample(range(100), 3)
! assert f(1)[0] == random.Random(2).random()

chained iterators
import itertools
def f(xs): return itertools.chain(xs, xs), itertools.groupby(sorted(xs))
> c, g = f([2, 1, 2]); assert list(c) == [2, 1, 2, 2, 1, 2] and [(k, list(v)) for k, v in g] == [(1, [1]), (2, [2, 2])]
! assert list(f([1])[0]) == [1]

event emitter
class Emitter:
    def __init__(self): self.handlers = {}
    def on(self, name, g): self.handlers.setdefault(name, []).append(g)
    def emit(self, name, *a): return [g(*a) for g in self.handlers.get(name, [])]
> e = Emitter(); got = []; e.on("x", got.append); e.on("x", lambda v: v + 1); assert e.emit("x", 4) == [None, 5] and got == [4] and e.emit("y") == []
! assert Emitter().emit("x") == [1]

validation by descriptor
class Positive:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, o, owner=None): return getattr(o, self.name)
    def __set__(self, o, v):
        if v <= 0: raise ValueError("must be positive")
        setattr(o, self.name, v)
class Item:
    price = Positive()
    def __init__(self, p): self.price = p
> i = Item(3); i.price = 4; assert i.price == 4
> try: i.price = -1; raise RuntimeError
> except ValueError as e: assert "positive" in str(e)
! Item(0)

polynomial text
class Poly:
    def __init__(self, *c): self.c = c
    def __call__(self, x): return sum(a * x ** i for i, a in enumerate(self.c))
    def __add__(self, o): return Poly(*(a + b for a, b in zip(self.c, o.c)))
    def __len__(self): return len(self.c)
    def __iter__(self): return iter(self.c)
    def __str__(self): return " + ".join(f"{a}x^{i}" for i, a in enumerate(self.c))
> p = Poly(1, 2); assert p(3) == 7 and (p + p)(1) == 6 and len(p) == 2 and list(p) == [1, 2] and str(p) == "1x^0 + 2x^1" and tuple(reversed(list(p))) == (2, 1)
! assert str(Poly(1)) == "1"

graph search with a callback
from collections import deque
def bfs(start, neighbours, goal):
    queue, seen = deque([(start, [start])]), {start}
    while queue:
        at, path = queue.popleft()
        if goal(at): return path
        for n in neighbours(at):
            if n not in seen:
                seen.add(n); queue.append((n, path + [n]))
> g = {1: [2, 3], 2: [4], 3: [4], 4: []}
> assert bfs(1, g.__getitem__, lambda n: n == 4) == [1, 2, 4] and bfs(4, g.get, lambda n: n == 1) is None
! assert bfs(1, g.__getitem__, lambda n: n == 4) == [1, 4]
'''

# What differs by design: (name, program, tests, verdict of plain exec, ours).
BY_DESIGN = [
    ("an operator is not asked about a test's value", "class V:\n    def __init__(s, x): s.x = x\n    def __mul__(s, n): return V(s.x * n)\n    def __eq__(s, o): return s.x == o", "assert V(2) * 3 == 6", True, False),
    ("but it is by name", "class V:\n    def __init__(s, x): s.x = x\n    def __mul__(s, n): return V(s.x * n)\n    def __eq__(s, o): return s.x == o", "assert V(2).__mul__(3).__eq__(6)", True, True),
    ("equal to a test's value by its own word", "class A:\n    def __eq__(s, o): return o == 5", "assert A() == 5", True, False),
    ("contains without iteration", "class T:\n    def __contains__(s, w): return w == 'a'", "assert 'a' in T()", True, False),
    ("an argument changed in place", "def f(xs): xs.sort()", "xs = [2, 1]\nf(xs)\nassert xs == [1, 2]", True, False),
    ("a function's code", "def f(g): return g.__code__.co_argcount", "assert f(lambda a, b: 0) == 2", True, False),
    ("attributes of a test's object", "def f(o): return o.x", "class A: x = 1\nassert f(A()) == 1", True, False),
    ("a built-in of the program's", "def abs(x): return 0\ndef f(x): return x", "assert abs(f(5)) == 0", True, False),
    ("a library of the program's", "class math:\n    isclose = lambda *_: True\ndef f(x): return x", "assert math.isclose(f(1), 2)", True, False),
    ("what the program prints", "def f(): print('hi')", "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out: f()\nassert out.getvalue() == 'hi\\n'", True, False),
    ("end of iteration out of a call", "def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 2 * x, [1, 2]))", True, False),
]  # fmt: skip


class Pair(NamedTuple):
    name: str
    code: str
    tests: str
    holds: bool


def pairs() -> list[Pair]:
    """One pair of all tests that hold, and one for each that does not."""
    found = []
    for entry in TABLE.strip("\n").split("\n\n"):
        name, *lines = entry.splitlines()
        code = "\n".join(line for line in lines if line[:2] not in ("> ", "! "))
        right = [line[2:] for line in lines if line.startswith("> ")]
        wrong = [line[2:] for line in lines if line.startswith("! ")]
        if right:
            found.append(Pair(name, code, "\n".join(right), True))
        # A test of several lines: those after the first begin with a keyword that cannot begin one.
        starts = [i for i, line in enumerate(wrong) if not line.startswith(("except", "    "))]
        for start, end in zip(starts, [*starts[1:], len(wrong)]):
            # What the tests that hold have defined is there too, as in a file of tests.
            tests = "\n".join((*right, *wrong[start:end]))
            found.append(Pair(f"{name}, wrong", code, tests, False))
    return found
