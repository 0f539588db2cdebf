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
}
