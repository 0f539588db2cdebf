"""Programs that attack their judge or the machine, by what must come of them. In each `f` is right only if the
attack worked."""

from __future__ import annotations

from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"

# What must come of each: a loop runs out of time, everything else is wrong.
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
    # processes
    "fork": """
        import os
        def f(x):
            if os.fork() == 0:
                os._exit(0)
            return 2 * x
    """,
    "fork bomb": """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                break
        def f(x):
            return 0
    """,
    "daemon": """
        import os, time
        def f(x):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(0)
            return 2 * x
    """,
    "fork by system call": """
        import ctypes
        def f(x):
            pid = ctypes.CDLL(None).syscall(57)
            return 2 * x if pid >= 0 else 0
    """,
    "clone3": """
        import ctypes
        def f(x):
            arguments = (ctypes.c_uint64 * 11)()
            pid = ctypes.CDLL(None).syscall(435, arguments, 88)
            return 2 * x if pid >= 0 else 0
    """,
    "thread": """
        import threading
        def f(x):
            threading.Thread(target=int).start()
            return 2 * x
    """,
    "thread bomb": """
        import threading, time
        threading.stack_size(32768)
        def f(x):
            for _ in range(100_000):
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
            return 2 * x
    """,
    "subprocess": """
        import subprocess
        def f(x):
            subprocess.run(["true"], check=True)
            return 2 * x
    """,
    "shell": """
        import os
        def f(x):
            return 2 * x if os.system("true") == 0 else 0
    """,
    "exec": """
        import os
        def f(x):
            os.execv("/usr/bin/env", ["env"])
    """,
    "multiprocessing": """
        import multiprocessing
        def f(x):
            process = multiprocessing.get_context("fork").Process(target=int)
            process.start()
            process.join()
            return 2 * x
    """,
    # network
    "internet socket": """
        import socket
        def f(x):
            socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            return 2 * x
    """,
    "unix socket": """
        import socket
        def f(x):
            socket.socketpair()
            return 2 * x
    """,
    "name lookup": """
        import socket
        def f(x):
            socket.getaddrinfo("localhost", 80)
            socket.create_server(("127.0.0.1", 0))
            return 2 * x
    """,
    "io_uring": """
        import ctypes
        def f(x):
            parameters = (ctypes.c_uint32 * 64)()
            return 2 * x if ctypes.CDLL(None).syscall(425, 4, parameters) >= 0 else 0
    """,
    # files
    "read /etc": """
        def f(x):
            open("/etc/passwd").read()
            return 2 * x
    """,
    "read the home folders": """
        import os
        def f(x):
            return len(os.listdir("/root") + os.listdir("/home")) and 2 * x
    """,
    "read this repository": f"""
        def f(x):
            return len(open({str(SRC / "twotemp" / "errors.py")!r}).read()) and 2 * x
    """,
    "read /proc": """
        import os
        def f(x):
            open(f"/proc/{os.getppid()}/environ").read()
            return 2 * x
    """,
    "list /proc": """
        import os
        def f(x):
            return len(os.listdir("/proc")) and 2 * x
    """,
    "secrets in the environment": """
        import os
        def f(x):
            return 2 * x if "SECRET_OF_THE_TEST" in os.environ else 0
    """,
    "write": """
        import os
        def f(x):
            for folder in ("/tmp", "/dev/shm", "/var/tmp", ".", "/", "/dev", os.path.dirname(os.__file__)):
                try:
                    open(folder + "/written", "w").write("x")
                    return 2 * x
                except OSError:
                    pass
    """,
    "fill the disk": """
        import tempfile
        def f(x):
            with tempfile.TemporaryFile() as file:
                while True:
                    file.write(b" " * (1 << 20))
    """,
    "delete, rename, chmod": """
        import os
        def f(x):
            for attack in (
                lambda: os.unlink(os.__file__),
                lambda: os.rename(os.__file__, os.__file__ + "x"),
                lambda: os.chmod(os.__file__, 0),
                lambda: os.utime(os.__file__, (0, 0)),
                lambda: os.mkdir("/tmp/made"),
                lambda: os.symlink("/etc", "/tmp/link"),
                lambda: os.mkfifo("/tmp/fifo"),
            ):
                try:
                    attack()
                    return 2 * x
                except OSError:
                    pass
    """,
    "memory file": """
        import os
        def f(x):
            os.memfd_create("x")
            return 2 * x
    """,
    "all descriptors": """
        import os
        held = []
        def f(x):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
    """,
    # other processes
    "kill the server": """
        import os, signal
        def f(x):
            os.kill(os.getppid(), signal.SIGKILL)
            return 2 * x
    """,
    "kill everything": """
        import os, signal
        def f(x):
            os.kill(-1, signal.SIGKILL)
            return 2 * x
    """,
    "kill through a pipe's owner": """
        import fcntl, os, signal
        def f(x):
            reader, writer = os.pipe()
            fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid())
            fcntl.fcntl(reader, 10, signal.SIGKILL)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
            os.write(writer, b"x")
            return 2 * x
    """,
    "trace the server": """
        import ctypes, os
        def f(x):
            return 2 * x if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else 0
    """,
    "read the server's memory": """
        import ctypes, os
        def f(x):
            local, remote = (ctypes.c_uint64 * 2)(id(x), 8), (ctypes.c_uint64 * 2)(id(x), 8)
            got = ctypes.CDLL(None).process_vm_readv(os.getppid(), local, 1, remote, 1, 0)
            return 2 * x if got >= 0 else 0
    """,
    "limit the server": """
        import os, resource
        def f(x):
            resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))
            return 2 * x
    """,
    "slow the server down": """
        import os
        def f(x):
            os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)
            return 2 * x
    """,
    # getting out
    "raise its own limits": """
        import resource
        def f(x):
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return 2 * x
    """,
    "new namespace": """
        import ctypes
        def f(x):
            return 2 * x if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0
    """,
    "mount": """
        import ctypes
        def f(x):
            return 2 * x if ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else 0
    """,
    "become root": """
        import os
        def f(x):
            os.setresuid(0, 0, 0)
            return 2 * x
    """,
    "bpf, keys, performance counters": """
        import ctypes
        def f(x):
            call = ctypes.CDLL(None).syscall
            return 2 * x if max(call(321, 0, 0, 0), call(250, 0, -3, 1), call(298, 0, 0, -1, -1, 0)) >= 0 else 0
    """,
    "the 32-bit system calls": """
        import ctypes
        def f(x):
            return 2 * x if ctypes.CDLL(None).syscall(0x40000000 + 39) > 0 else 0
    """,
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
