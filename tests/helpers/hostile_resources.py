"""Programs that never end, take all memory, crash, or leave instead of answering."""

from __future__ import annotations

# A loop runs out of time ...
TIMEOUT: dict[str, str] = {
    "loop": """
        def f(x):
            while True:
                pass
    """,
    "loop before any definition": """
        while True:
            pass
    """,
    "loop that swallows everything": """
        def f(x):
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
    """,
    "loop that ignores signals": """
        import signal
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        def f(x):
            while True:
                pass
    """,
    "sleep": """
        import time
        def f(x):
            time.sleep(1000)
            return 2 * x
    """,
    "endless result": """
        def forever():
            while True:
                yield 1
        def f(x):
            return sum(forever())
    """,
    "huge power": """
        def f(x):
            return 9 ** 9 ** 9
    """,
    "regular expression that backtracks": """
        import re
        def f(x):
            return 2 * x if re.match("(a+)+$", "a" * 60 + "b") is None else 0
    """,
}

# ... and everything else is wrong.
FAILED: dict[str, str] = {
    "wrong": "def f(x): return x",
    "nothing": "",
    "syntax error": "def f(x) return 2 * x",
    "null byte": "def f(x): return 2 * x\0",
    "lone surrogate": "def f(x): return '\ud800' and 2 * x",
    "nesting": "x = " + "(" * 5000 + ")" * 5000 + "\ndef f(x): return 2 * x",
    "deep unary": "x = " + "-" * 90000 + "1\ndef f(x): return 2 * x",
    # memory
    "list bomb": """
        def f(x):
            held = []
            while True:
                held.append(bytearray(1 << 24))
    """,
    "string bomb": """
        def f(x):
            return len("a" * (1 << 40)) and 2 * x
    """,
    "map eight gigabytes": """
        import mmap
        def f(x):
            mmap.mmap(-1, 8 << 30)
            return 2 * x
    """,
    "result larger than a frame": """
        def f(x):
            return "a" * (20 << 20)
    """,
    "result nested too deep": """
        def f(x):
            value = 2 * x
            for _ in range(100_000):
                value = [value]
            return value
    """,
    "result that contains itself": """
        def f(x):
            value = []
            value.append(value)
            return value
    """,
    # recursion and crashes
    "recursion": "def f(x): return f(x)",
    "recursion without a limit": """
        import sys
        sys.setrecursionlimit(10 ** 9)
        class Deep:
            def __repr__(self):
                return repr(self) + ""
        def f(x):
            return repr(Deep())
    """,
    "segmentation fault": """
        import ctypes
        def f(x):
            return ctypes.string_at(0)
    """,
    "abort": """
        import os
        def f(x):
            os.abort()
    """,
    # ending instead of answering
    "exit 0 while loading": "import sys\nsys.exit(0)",
    "exit 0 when called": """
        import sys
        def f(x):
            sys.exit(0)
    """,
    "_exit 0": """
        import os
        def f(x):
            os._exit(0)
    """,
    "raise SystemExit": "raise SystemExit",
    "kill itself": """
        import os, signal
        def f(x):
            os.kill(os.getpid(), signal.SIGKILL)
    """,
    "swallowed exceptions": """
        def f(x):
            try:
                raise ValueError
            except BaseException:
                pass
    """,
    "exit hook": """
        import atexit, os, time
        atexit.register(time.sleep, 1000)
        raise RuntimeError
    """,
    "standard input": """
        def f(x):
            return int(input()) and 2 * x
    """,
}
