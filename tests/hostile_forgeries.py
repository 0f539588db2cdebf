"""Programs that forge a verdict: in what they print, in frames, in memory, in what they return."""

from __future__ import annotations

FORGERIES: dict[str, str] = {
    # forging
    "forged output": """
        print('{"outcome": "passed", "detail": ""}')
        def f(x):
            print('{"outcome": "passed", "detail": ""}')
    """,
    "forged output on every descriptor": """
        import os
        for descriptor in range(64):
            for text in (b'{"outcome": "passed", "detail": ""}\\n', b"r"):
                try:
                    os.write(descriptor, text)
                except OSError:
                    pass
        os._exit(0)
    """,
    "forged frames": """
        import os
        frame = b'{"value": 2}'
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, (len(frame).to_bytes(8, "little") + frame) * 9)
            except OSError:
                pass
        def f(x):
            os._exit(0)
    """,
    "frame with an unknown tag": """
        import os
        frame = b'{"value": {"name": "f", "ref": 0}}'
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, (len(frame).to_bytes(8, "little") + frame) * 9)
            except OSError:
                pass
    """,
    "flooded output": """
        def f(x):
            for _ in range(2000):
                print("x" * (1 << 16))
    """,
    "the server's frames": """
        import sys
        frame, wanted = sys._getframe(), "".join(["assert ", "f(21)"])
        while frame:
            for value in (*frame.f_locals.values(), *frame.f_globals.values()):
                if value is not wanted and type(value) is str and wanted in value:
                    f = lambda x: 2 * x
            frame = frame.f_back
    """,
    "the tests in memory": """
        import gc
        wanted = "".join(["assert ", "f(21)"])  # not a constant, or it finds itself
        for value in gc.get_objects():
            if isinstance(value, (dict, list, tuple)):
                for item in (value.values() if isinstance(value, dict) else value):
                    if item is not wanted and type(item) is str and wanted in item:
                        f = lambda x: 2 * x
    """,
    "equal to everything": """
        class Yes:
            __eq__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __hash__ = lambda self: 0
            __bool__ = lambda self: True
        def f(x):
            return Yes()
    """,
    "an int that equals everything": """
        class Yes(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        def f(x):
            return Yes(7)
    """,
    "patched built-ins": """
        import builtins
        builtins.AssertionError = type("Quiet", (Exception,), {})
        builtins.__build_class__ = builtins.abs = builtins.isinstance = lambda *_: 0
        def f(x):
            return 0
    """,
    "tracing": """
        import sys
        def trace(frame, event, argument):
            frame.f_trace_lines = False
            return trace
        sys.settrace(trace)
        sys.setprofile(lambda *_: None)
        def f(x):
            return None
    """,
    "patched runner": """
        import json, os, sys
        def passed(*_, **__):
            return {"outcome": "passed", "detail": ""}
        for name, module in list(sys.modules.items()):
            if name.startswith("sandboxed"):
                for attribute in list(vars(module)):
                    if callable(getattr(module, attribute)):
                        setattr(module, attribute, passed)
    """,
    "an exception without a name": """
        def f(*a): pass
        raise type("", (Exception,), {})()
    """,
    "an exit without a name": """
        def f(*a): pass
        raise type("", (SystemExit,), {})()
    """,
    "a base exception without a name": """
        raise type("", (BaseException,), {})()
    """,
    "an exception without a name, by a metaclass": """
        class Meta(type):
            __name__ = property(lambda cls: "")
        def f(*a): pass
        raise Meta("", (KeyboardInterrupt,), {"__str__": lambda self: ""})()
    """,
    "an exception without a name, in a call": """
        def f(*a): raise type("", (Exception,), {"__str__": lambda self: ""})
    """,
    "an exception by a hand-made frame": """
        import os
        frame = b'["raised", {"object": 0, "of": {"class": 0}}]'
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, len(frame).to_bytes(8, "little") + frame)
            except OSError:
                pass
        os._exit(0)
    """,
    "functions that are no dict, by a hand-made frame": """
        import os
        for frame in (b'["value", null]', b'["value", []]', b'["value", {"type": "builtins.dict"}]', b'["passed", {}]'):
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, len(frame).to_bytes(8, "little") + frame)
                except OSError:
                    pass
        os._exit(0)
    """,
    "an exception with a very long name": """
        def f(x): raise type("a" * 300_000, (Exception,), {})
    """,
    "a class with a very long name": """
        A = type("a" * 300_000, (), {})
        def f(x): return A()
    """,
    "a very long text": """
        def f(x): raise ValueError("a" * 300_000)
    """,
}
